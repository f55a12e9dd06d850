"""A mistake is one line that names the key, exit code 2, and leaves nothing behind.

Most are made in this process: `command` does what ``python -m dgc_repro`` does, with the rank run
here instead of in a process of its own. A few real processes at the end show that it is the same.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from filelock import FileLock
from omegaconf import OmegaConf
from PIL import Image
from tiny_run import PLAIN, TEXT, TINY, UNIFORM4_EF, configured, without_times

from dgc_repro.errors import UserError
from dgc_repro.launch import local, main, single
from dgc_repro.launch.local import RunFailed
from dgc_repro.launch.paths import conf_dir
from dgc_repro.launch.reproduce import runs_of
from dgc_repro.launch.worker import read_config, run_worker

Command = Callable[..., tuple[int, list[str]]]


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Command]:
    """Run the command line with these arguments: exit code and the lines on stderr."""

    def rank_here(config: dict[str, Any], folder: Path) -> None:
        assert config["launch"]["kind"] == "simulated", "would start processes"
        run_worker(folder)

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(single, "execute", rank_here)

    def run(*arguments: str) -> tuple[int, list[str]]:
        monkeypatch.setattr(sys, "argv", ["dgc_repro", *arguments])
        try:
            code = main.answer(main.dispatch)
        except SystemExit as end:  # from inside Hydra
            code = int(end.code or 0)
        return code, capsys.readouterr().err.splitlines()

    yield run
    for number, handler in before.items():
        signal.signal(number, handler)


PATIENCE_SECONDS = 200
"""Seconds for a process that ends in 5 on an idle machine; a busy one starts Python slowly."""


def refused(answer: tuple[int, list[str]]) -> str:
    """The one line, after the checks that every mistake has to pass."""
    code, lines = answer
    assert code == 2, lines
    assert len(lines) == 1, lines
    assert lines[0].startswith("error: ")
    return lines[0].removeprefix("error: ")


def left_in(folder: Path) -> list[str]:
    """What is in the runs/ of a working folder."""
    return sorted(path.name for path in (folder / "runs").glob("*"))


GRAVAC = ("compressor=topk", "policy=gravac")
MISTAKES: list[tuple[Sequence[str], str, str]] = [
    # overrides, how the line begins, what it must also say
    (["compressor=unifrom"], "compressor: no 'unifrom'", "did you mean uniform?"),
    (["policy=zzz"], "policy: no 'zzz'", "there are: accordion, adaqs, fixed"),
    (["nothing=zzz"], "nothing: no such key", ""),
    (["experiment=dynamic/statik8"], "experiment.dynamic: no 'statik8'", "did you mean static8?"),
    (["scale=huge"], "scale: no 'huge'", "there are: none, paper, quick, small"),
    (["scale=null"], "scale: a name, got None", "there are: none, paper, quick, small"),
    (["~scale"], "scale: has no value", ""),
    (["train.epoch=3"], "train.epoch: no such key", "did you mean train.epochs?"),
    (["compressor.bits=4"], "compressor.bits: no such key", "a setting of compressor=uniform"),
    (["compresor=topk"], "compresor: no such key", "did you mean compressor?"),
    (["seeed=1"], "seeed: no such key", "did you mean seed?"),
    (["+seeed=1"], "seeed: no such key", "did you mean seed?"),
    (["+train.epoch=3"], "train.epoch: no such key", "did you mean epochs?"),
    (["+sink.mirro=wandb"], "sink.mirro: no such key", "did you mean mirror?"),
    (["sink=wandb", "++sink.projcet=x"], "sink.projcet: no such key", "did you mean project?"),
    (["+exchange.chek=true"], "exchange.chek: no such key", "did you mean check?"),
    (["train.epochs="], "train.epochs: a whole number from 1", "got ''"),
    (["compressor.bits=[4"], "compressor.bits: cannot read compressor.bits=[4", "quote"),
    (["compressor=uniform", "compressor.bits=1"], "compressor.bits: ", "2 to 16, got 1"),
    (["compressor=uniform", "compressor.bits=17"], "compressor.bits: ", "2 to 16, got 17"),
    (["compressor=uniform", "compressor.bits=eight"], "compressor.bits: ", "got 'eight'"),
    (["compressor=uniform", "compressor.rounding=up"], "compressor.rounding: ", "got 'up'"),
    (["compressor=uniform", "compressor.block=0"], "compressor.block: ", "got 0"),
    # Sparsifiers.
    (
        ["compressor=topk", "compressor.density=0"],
        "compressor.density: a number above 0 and at most 1",
        "got 0;",
    ),
    (
        ["compressor=topk", "compressor.density=1.5"],
        "compressor.density: a number above 0 and at most 1",
        "got 1.5",
    ),
    (["compressor=topk", "compressor.density=half"], "compressor.density: a number", "got 'half'"),
    (
        ["compressor=topk", "compressor.density=nan"],
        "compressor.density: a number above 0 and at most 1",
        "got nan",
    ),
    (["compressor=topk", "compressor.factor=0.5"], "compressor.factor: a number from 1", "got 0.5"),
    (["compressor=topk", "compressor.factor=inf"], "compressor.factor: a number from 1", "got inf"),
    (
        ["compressor=topk", "compressor.density=0.1", "compressor.factor=100"],
        "compressor.density: 0.1 is a factor of 10, and factor is 100; give one",
        "",
    ),
    (["compressor=topk", "compressor.indices=int16"], "compressor.indices: one of auto", "int16"),
    (["compressor=topk", "compressor.values=fp8"], "compressor.values: one of fp32", "got 'fp8'"),
    (
        ["compressor=topk", "policy.field=density", "policy.values=[0.1,2]"],
        "compressor.density: a number above 0 and at most 1",
        "got 2",
    ),
    (["launch.workers=0"], "launch.workers: ", "got 0"),
    (["launch.workers=two"], "launch.workers: ", "got 'two'"),
    (["launch.workers=100"], "launch.workers: 100 workers x 16", "there are 128"),
    (["launch=local", "launch.workers=100000"], "launch.workers: 100000 workers", "are 128"),
    (
        ["launch=local", "launch.workers=100000", "dataset.train_size=null"],
        "launch.workers: 100000 workers",
        "there are 1386",
    ),
    (["launch.kind=slurm"], "launch.kind: one of local, simulated", "got 'slurm'"),
    (["launch.threads=0"], "launch.threads: ", "got 0"),
    (["launch.timeout_seconds=soon"], "launch.timeout_seconds: ", "got 'soon'"),
    (["launch.timeout_seconds=0"], "launch.timeout_seconds: seconds from 1", "got 0"),
    (["launch.timeout_seconds=inf"], "launch.timeout_seconds: ", "got inf"),
    (["launch.start_timeout_seconds=-1"], "launch.start_timeout_seconds: ", "got -1"),
    (["launch.timeout_seconds=1e-45"], "launch.timeout_seconds: seconds from 1", "got 1e-45"),
    (["launch.threads=true"], "launch.threads: a whole number from 1", "got True"),
    (["launch.threads=1000000"], "launch.threads: a whole number from 1 to 1024", "got 1000000"),
    (["scale.seeds=word"], "scale.seeds: a list", "got 'word'"),
    (["seed=1e23"], "seed: a whole number from 0", "got 1e+23"),
    (["paths.runs=-1"], "paths.runs: a folder's name", "got -1"),
    (["sink.mirror=word"], "sink.mirror: settings by name", "got 'word'"),
    (["exchange=-1"], "exchange: has settings by name", "got -1"),
    (["optimizer=-1"], "optimizer: a name, got -1", "there are: sgd"),
    (["=3"], "=3: settings are written key=value", ""),
    (["--resolve"], "The --resolve flag can only be used", "--cfg"),
    (["schedule=step", "schedule.gamma=-1"], "schedule.gamma: a number above 0", "got -1"),
    (["policy.rung=true"], "policy.rung: ", "got True"),
    (["policy.values=''"], "policy.values: a list", "got ''"),
    (["model._target_=builtins.dict"], "model._target_: a dataclass with a method build", "dict"),
    (["model.width=100000000000"], "model.width: 100000000000 makes a model", "use a smaller one"),
    (["launch.start_timeout=9"], "launch.start_timeout: no such key", "start_timeout_seconds?"),
    (["launch.device=tpu"], "launch.device: ", "got 'tpu'"),
    (["launch.backend=mpi"], "launch.backend: ", "got 'mpi'"),
    (["dataset=cifar10", "dataset.root=missing"], "dataset.root: ", "missing"),
    (["dataset=cifar10", "dataset.root=."], "dataset.root: ", "holds no CIFAR-10"),
    (["dataset.train_size=100000"], "dataset.train_size: at most ", "got 100000"),
    (["dataset.validation=5000"], "dataset.validation: ", "got 5000"),
    (
        ["compressor=uniform", "policy=stepwise", "policy.accuracy_thresholds=[50]"],
        "policy.accuracy_thresholds: one for each step down, 4",
        "got 1",
    ),
    (["policy=stepwise"], "policy.field: the compressor has no setting 'bits'", "it has none"),
    (
        ["compressor=uniform", "policy.field=density", "policy.values=[1]"],
        "policy.field: the compressor has no setting 'density'",
        "it has bits, rounding, block",
    ),
    (
        ["compressor=uniform", "policy.field=bits", "policy.values=[8,1]"],
        "compressor.bits: ",
        "got 1",
    ),
    (
        ["compressor=uniform", "policy.field=bits", "policy.values=[8,4]", "policy.rung=3"],
        "policy.rung: ",
        "got 3",
    ),
    (["wrap=[error_feedbak]"], "wrap: no wrapper 'error_feedbak'", "did you mean error_feedback"),
    (["wrap=error_feedback"], "wrap: a list", "got 'error_feedback'"),
    (["wrap=[ladder]"], "wrap: `ladder` needs a policy", ""),
    (["wrap=[]", "wrapper.per_layer.smaller_than=9"], "wrapper.per_layer.smaller_than: ", "wrap"),
    (["exchange.unit=model"], "wrap: per_layer chooses between tensors", "exchange.unit=model"),
    (["exchange.junction=per_bucket"], "exchange.junction: ", "after_backward"),
    # Wrappers and whole nests.
    (
        ["compressor=topk", "wrap=[error_feedback,momentum_correction]", "optimizer.momentum=0"],
        "wrap: error_feedback around momentum_correction would keep a residual",
        "put momentum_correction first",
    ),
    (
        ["compressor=dgc", "wrap=[per_layer,momentum_correction,error_feedback]"],
        "wrap: per_layer around momentum_correction would leave some tensors without",
        "put momentum_correction first",
    ),
    (
        ["compressor=dgc", "wrap=[ladder,momentum_correction,error_feedback]"],
        "wrap: ladder around momentum_correction would leave rung 0 without momentum",
        "put momentum_correction first",
    ),
    (
        ["compressor=dgc", "wrap=[momentum_correction,clip_local,error_feedback]"],
        "wrap: clip_local clips the gradient before anything is added to it",
        "put it first",
    ),
    (
        ["compressor=dgc", "wrap=[momentum_correction,block_momentum]"],
        "wrap: momentum_correction and block_momentum would apply momentum twice",
        "leave one of them out",
    ),
    (
        ["compressor=dgc", "wrap=[block_momentum,error_feedback]"],
        "wrap: block_momentum keeps a residual of its own",
        "leave error_feedback out",
    ),
    (
        ["compressor=dgc", "optimizer.momentum=0.5"],
        "optimizer.momentum: momentum_correction applies momentum on the workers",
        "(wrapper.momentum_correction.momentum=0.9), got 0.5 here too; use optimizer.momentum=0",
    ),
    (
        ["compressor=uniform", "wrap=[block_momentum]"],
        "optimizer.momentum: block_momentum applies momentum on the workers",
        "got 0.9 here too; use optimizer.momentum=0",
    ),
    (
        ["compressor=dgc", "wrapper.momentum_correction.momentum=1"],
        "wrapper.momentum_correction.momentum: a number from 0 to below 1",
        "got 1",
    ),
    (
        ["compressor=dgc", "wrapper.momentum_correction.masking=no"],
        "wrapper.momentum_correction.masking: true or false",
        "got 'no'",
    ),
    (
        ["wrap=[clip_local]", "wrapper.clip_local.threshold=0"],
        "wrapper.clip_local.threshold: a number above 0",
        "got 0",
    ),
    (["wrap=[clip_local]", "wrapper.clip_local.of=all"], "wrapper.clip_local.of: one of", "'all'"),
    (
        ["wrap=[clip_local]", "launch=local", "exchange.junction=per_bucket"],
        "wrap: clip_local needs the norm of the whole gradient, exchange.junction=per_bucket",
        "after_backward",
    ),
    (
        ["compressor=dgc", "wrapper.clip_local.threshold=1"],
        "wrapper.clip_local.threshold: ",
        "wrap",
    ),
    (["compressor=dgc", "policy.epochs_each=0"], "policy.epochs_each: ", "from 1, got 0"),
    (["compressor=dgc", "policy.values=[0.1,2]"], "compressor.density: ", "got 2"),
    (["policy=warmup"], "policy.field: the compressor has no setting 'density'", "it has none"),
    (["compressor=dgc", "compressor.bits=4"], "compressor.bits: no such key", "compressor=uniform"),
    (["compressor=dgcc"], "compressor: no 'dgcc'", "did you mean dgc?"),
    (
        ["exchange.combine=ring"],
        "exchange.combine: one of gather, scatter, tree, auto",
        "got 'ring'",
    ),
    (["exchange.combine=scatter"], "exchange.combine: scatter needs a method that", "Dense"),
    (["compressor=uniform", "exchange.combine=tree"], "exchange.combine: tree needs", "Uniform"),
    (["train.on_nonfinite=ignore"], "train.on_nonfinite: one of raise, skip", "got 'ignore'"),
    (["train.compile=no"], "train.compile: true or false", "got 'no'"),
    (["train.resume_from=nowhere"], "train.resume_from: no checkpoint in nowhere", ""),
    (["optimizer.lr=0"], "optimizer.lr: a number above 0", "got 0"),
    (["optimizer.lr=fast"], "optimizer.lr: a number", "got 'fast'"),
    (["model.width=0"], "model.width: ", "got 0"),
    (["model._target_=no.such.Thing"], "model._target_: cannot import no.such.Thing", "'no')"),
    (["sink.every_steps=-1"], "sink.every_steps: ", "got -1"),
    (["seed=-1"], "seed: a whole number from 0", "got -1"),
    # Models and goals.
    (["model=resnet101", "model.blocks=[3,4]"], "model.blocks: four whole numbers", "got [3, 4]"),
    (["model.num_classes=9"], "model.num_classes: at least the 10 classes", "got 9"),
    ([*TEXT, "model.num_classes=50"], "model.num_classes: at least the ", "words of scikit"),
    ([*TEXT, "dataset.bptt=1200"], "dataset.bptt: at most 1199, the text", "got 1200"),
    (["goal.target=101"], "goal.target: a number from 0 to 100", "got 101"),
    (["goal.stop=true"], "goal.stop: needs goal.target", ""),
    (["goal.metric=perplexity"], "goal.metric: of images", "got perplexity"),
    (
        ["network=gcp_v100_32", "launch.workers=4", "network.as_workers=1"],
        "network.as_workers: ",
        "1",
    ),
    (["method=gravac/topc"], "method.gravac: no 'topc'", "did you mean topk?"),
    # Policies that measure, and those that are given runs.
    ([*GRAVAC, "policy.eps=0"], "policy.eps: a share above 0 and at most 1", "got 0"),
    ([*GRAVAC, "policy.eps=1.5"], "policy.eps: a share above 0 and at most 1", "got 1.5"),
    (
        [*GRAVAC, "policy.theta_min=50", "policy.theta_max=20"],
        "policy.theta_min: at most theta_max",
        "got 50 above 20",
    ),
    ([*GRAVAC, "policy.window=0"], "policy.window: a whole number from 1", "got 0"),
    ([*GRAVAC, "policy.omega=-0.1"], "policy.omega: a share from 0", "got -0.1"),
    ([*GRAVAC, "policy.decide=soon"], "policy.decide: one of now, last", "got 'soon'"),
    (
        [*GRAVAC, "policy.ratio=4"],
        "policy.ratio: does nothing with scaling=exponential; give scaling=geometric",
        "got 4",
    ),
    (
        [*GRAVAC, "policy.ladder=[10,100]", "policy.theta_max=500"],
        "policy.theta_max: does nothing beside ladder",
        "leave one of them out, got 500",
    ),
    (
        [*GRAVAC, "policy.smoothing=0.1", "policy.workers=32"],
        "policy.workers: does nothing beside policy.smoothing=0.1",
        "leave it at launch.workers=2, or give policy.smoothing=null, got 32",
    ),
    (["policy=gravac"], "policy.field: the compressor has no setting 'factor'", "it has none"),
    (
        ["policy=gravac", "compressor=uniform"],
        "policy.field: the compressor has no setting 'factor'",
        "it has bits, rounding, block",
    ),
    (
        ["policy=gravac", "compressor=powersgd", "policy.field=rank", "policy.ladder=[4,1]"],
        "policy: it must measure each rung before it chooses, and rank=4 of this compressor cannot",
        "use a policy that plans beforehand",
    ),
    (
        [*GRAVAC, "launch=local", "exchange.junction=per_bucket"],
        "exchange.junction: per_bucket needs plans made before the step",
        "use exchange.junction=after_backward or policy.decide=last",
    ),
    (
        ["compressor=topk", "policy=accordion", "wrap=[]", "exchange.unit=model"],
        "exchange.unit: model joins all tensors into one, and this policy judges each by itself",
        "use exchange.unit=layer",
    ),
    (["policy=probed", "policy.value=8"], "policy.field: names the compressor's setting", "8"),
    (
        ["compressor=topk", "policy=scadles", "policy.delta=2"],
        "policy.delta: a number above 0 and at most 1",
        "got 2",
    ),
    (
        ["compressor=topk", "policy=oracle", "policy.runs=[nowhere,null]"],
        "policy.runs: a finished run of at least one value, got none",
        "nowhere",
    ),
]


@pytest.mark.parametrize(
    ("overrides", "begins", "says"), MISTAKES, ids=[" ".join(m[0]) for m in MISTAKES]
)
def test_a_mistake_is_one_line_and_nothing_is_left(
    overrides: Sequence[str], begins: str, says: str, command: Command, tmp_path: Path
) -> None:
    line = refused(command(*TINY, *overrides))
    assert line.startswith(begins)
    assert says in line
    assert left_in(tmp_path) == []


@pytest.mark.parametrize("scale", ["~scale", "scale=none"])
def test_without_a_scale_epochs_are_asked_for(scale: str, command: Command) -> None:
    assert refused(command(scale)) == "train.epochs: has no value; give one"


@pytest.mark.parametrize("name", main.COMMANDS)
def test_every_command_has_help(name: str, command: Command) -> None:
    assert command(name, "--help") == (0, [])


def test_a_gpu_asked_for_where_there_is_none(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    line = refused(command(*TINY, "launch.device=cuda"))
    assert line.startswith("launch.device: cuda asked for, torch sees no GPU here")
    line = refused(command(*TINY, "launch.backend=nccl"))
    assert line.startswith("launch.backend: nccl needs a GPU")
    assert left_in(tmp_path) == []


def test_wandb_online_without_a_key(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    line = refused(command(*TINY, "sink=wandb", "sink.mode=online"))
    assert line.startswith("sink.mode: online needs a wandb key")
    assert left_in(tmp_path) == []


# -- data ----------------------------------------------------------------------------------------


def png() -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (32, 32)).save(file, "PNG")
    return file.getvalue()


def write_parquet(folder: Path, columns: dict[str, list[Any]]) -> None:
    folder.mkdir()
    for part in ("train", "test"):
        pq.write_table(pa.table(columns), folder / f"{part}-00000-of-00001.parquet")


def test_a_folder_whose_parquet_is_truncated(command: Command, tmp_path: Path) -> None:
    folder = tmp_path / "cut"
    write_parquet(folder, {"img": [{"bytes": png()}] * 4, "label": [0, 1, 2, 3]})
    path = folder / "train-00000-of-00001.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    line = refused(command(*TINY, "dataset=cifar10", f"dataset.root={folder}"))
    assert line.startswith("dataset.root: ")
    assert path.name in line
    assert left_in(tmp_path) == []


def test_a_folder_whose_parquet_has_other_columns(command: Command, tmp_path: Path) -> None:
    write_parquet(tmp_path / "other", {"text": ["a", "b"], "kind": [0, 1]})
    line = refused(command(*TINY, "dataset=cifar10", f"dataset.root={tmp_path / 'other'}"))
    assert line.startswith("dataset.root: ")
    assert "columns" in line
    assert left_in(tmp_path) == []


def test_a_penn_treebank_without_its_train_file(command: Command, tmp_path: Path) -> None:
    folder = tmp_path / "ptb"
    folder.mkdir()
    for part in ("valid", "test"):
        (folder / f"ptb.{part}.txt").write_text(" the cat sat \n" * 200)
    given = (*TEXT, "dataset=ptb", f"dataset.root={folder}", "dataset.train_size=null")
    line = refused(command(*TINY, *given))
    assert line.startswith(f"dataset.root: {folder} has no ptb.train.txt beside the others")
    assert "dataset.train_part=valid" in line
    assert left_in(tmp_path) == []


def test_an_empty_folder(command: Command, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    line = refused(command(*TINY, "dataset=cifar10", f"dataset.root={tmp_path / 'empty'}"))
    assert line.startswith("dataset.root: ")
    assert left_in(tmp_path) == []


# -- folders -------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["a file/below", "/proc/dgc_repro", "a file"])
def test_a_place_that_cannot_be_written_to(where: str, command: Command, tmp_path: Path) -> None:
    (tmp_path / "a file").write_text("")
    line = refused(command(*TINY, f"paths.runs='{where}'"))
    assert line.startswith("paths.runs: cannot write to ")
    assert left_in(tmp_path) == []


def test_a_folder_that_the_system_protects(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Root may write anywhere, so the refusal is made up."""

    make = Path.mkdir

    def refuse(self: Path, *arguments: Any, **more: Any) -> None:
        if "runs" in self.parts:
            raise PermissionError(13, "Permission denied", str(self))
        make(self, *arguments, **more)

    monkeypatch.setattr(Path, "mkdir", refuse)
    line = refused(command(*TINY))
    assert line.startswith("paths.runs: cannot write to ")
    assert "Permission denied" in line


def test_a_disk_that_fills_up_in_the_middle_is_no_mistake_of_the_config(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(config: dict[str, Any], folder: Path) -> None:
        raise RunFailed("OSError: [Errno 28] No space left on device (exit code 1; ...)")

    monkeypatch.setattr(single, "execute", fail)
    code, lines = command(*TINY)
    assert code == 1
    assert lines == ["error: OSError: [Errno 28] No space left on device (exit code 1; ...)"]


def run_folder_of(tmp_path: Path) -> Path:
    (name,) = left_in(tmp_path)
    return tmp_path / "runs" / name


def test_a_folder_that_holds_another_config_is_refused(command: Command, tmp_path: Path) -> None:
    command(*TINY, "train.epochs=1")
    folder = run_folder_of(tmp_path)
    (folder / "summary.json").unlink()
    config = folder / "config.yaml"
    config.write_text(config.read_text().replace("seed: 0", "seed: 1", 1))
    line = refused(command(*TINY, "train.epochs=1"))
    assert line.startswith("paths.runs: ")
    assert "holds another config" in line


def test_a_malformed_file_of_a_run_is_one_line_and_nothing_is_lost(
    command: Command, tmp_path: Path
) -> None:
    mine = (*TINY, *PLAIN, "train.epochs=1")
    command(*mine)
    folder = run_folder_of(tmp_path)
    path = folder / "config.yaml"
    whole = path.read_bytes()
    config = yaml.safe_load(whole)
    checkpoints = {p: p.read_bytes() for p in (folder / "checkpoints").rglob("*") if p.is_file()}
    (folder / "summary.json").write_text("[]")

    def refusal() -> str:
        texts = []
        for reading in (lambda: single.prepare(folder, config), lambda: read_config(folder)):
            with pytest.raises(UserError, match=r"^paths\.runs: .*config\.yaml") as caught:
                reading()
            texts.append(str(caught.value))
        assert "\n" not in "".join(texts)
        return texts[0]

    malformed = (b"", b"[]", b"null", b"3", b'"x"', b"\xff\xfe", b"{" * 2000, b"&a [*a]", b"a: [")
    for content in (
        *malformed,
        b"{launch: 3, scale: [], experiment: null}",
        whole[: len(whole) // 2],
    ):
        path.write_bytes(content)
        assert "delete" in refusal()
    path.write_bytes(b"[]")
    assert (
        refused(command(*mine)).partition("config.yaml")[2] == refusal().partition("config.yaml")[2]
    )

    for number, offset in enumerate(range(0, len(whole), len(whole) // 30)):
        damaged = bytearray(whole)
        damaged[offset] ^= 1 << number % 8
        for read in (lambda: single.prepare(folder, config), lambda: read_config(folder)):
            path.write_bytes(bytes(damaged))
            with contextlib.suppress(UserError):
                read()

    assert checkpoints == {path: path.read_bytes() for path in checkpoints}
    (folder / "environment.json").write_text("[]")
    path.unlink()
    assert command(*mine) == (0, [])
    assert "could not be read" in (folder / "environment.json").read_text()
    notes = (folder / "metrics.jsonl").read_text()
    assert "continuing at step 4 " in notes


def test_a_damaged_run_continues_from_what_is_whole_and_ends_with_the_same_record(
    command: Command, tmp_path: Path
) -> None:
    mine = (*TINY, *PLAIN, *UNIFORM4_EF, "train.epochs=3", "sink.every_steps=1")
    assert command(*mine)[0] == 0
    folder = run_folder_of(tmp_path)
    whole = numbers_of(folder)
    (folder / "summary.json").unlink()
    saved = folder / "checkpoints"
    (saved / "step-99999999").mkdir()
    for path in (saved / "step-00000012" / "worker-1.pt", folder / "metrics.jsonl"):
        damaged = bytearray(path.read_bytes())
        damaged[len(damaged) // 3] ^= 1
        path.write_bytes(bytes(damaged))
    lines = (folder / "steps.jsonl").read_text().splitlines(keepends=True)
    (folder / "steps.jsonl").write_text("".join(lines[:2] + lines[3:]))
    assert command(*mine) == (0, [])
    assert numbers_of(folder) == whole
    told = (folder / "metrics.jsonl").read_text()
    assert "step-00000012 is not used (worker-1.pt is damaged: " in told
    assert "using the one before, step-00000008" in told
    assert "ignored step-99999999" in told
    for name in ("metrics.jsonl", "steps.jsonl"):
        assert f"{folder.name}/{name} was damaged; it was rebuilt from" in told


def numbers_of(folder: Path) -> list[dict[str, Any]]:
    """A run's record without times and notes."""
    texts = [(folder / name).read_text() for name in ("metrics.jsonl", "steps.jsonl")]
    lines = [json.loads(line) for text in texts for line in text.splitlines()]
    return [without_times(line) for line in lines if line["kind"] != "note"]


def test_another_world_goes_on_from_a_folder_that_is_named(
    command: Command, tmp_path: Path
) -> None:
    assert command(*TINY, *UNIFORM4_EF, "train.epochs=1")[0] == 0
    old = run_folder_of(tmp_path)
    more = (*TINY, *UNIFORM4_EF, "launch.workers=4", f"train.resume_from={old}")
    line = refused(command(*more))
    assert line.startswith("train.reshard: ")
    assert "saved by 2 workers, this run has 4" in line
    assert left_in(tmp_path) == [old.name]

    assert command(*more, "train.reshard=mean") == (0, [])
    (new,) = set(left_in(tmp_path)) - {old.name}
    told = (tmp_path / "runs" / new / "metrics.jsonl").read_text()
    assert '"epoch": 2' in told


def test_a_non_finite_gradient_is_one_line_and_a_new_folder_is_not_kept(
    command: Command, tmp_path: Path
) -> None:
    poisoned = "+model={_target_:odd_models.Plain,poisoned_steps:[2],poisoned_rank:1}"
    line = refused(command(*TINY, "~model", poisoned))
    assert line.startswith("train.on_nonfinite: the gradient is not finite at step 3 (rank 1: ")
    assert left_in(tmp_path) == []


def test_the_same_command_does_nothing_when_the_run_is_finished(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command(*TINY, "train.epochs=1") == (0, [])

    def fail(config: dict[str, Any], folder: Path) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr(single, "execute", fail)
    assert command(*TINY, "train.epochs=1") == (0, [])
    assert len(left_in(tmp_path)) == 1


# -- sweeps and other commands -------------------------------------------------------------------


def test_a_sweep_makes_one_folder_a_run(command: Command, tmp_path: Path) -> None:
    assert command("--multirun", *TINY, "train.epochs=1", "seed=0,1") == (0, [])
    assert len(left_in(tmp_path)) == 2


def test_a_sweep_over_compressors_gives_each_its_own_defaults(
    command: Command, tmp_path: Path
) -> None:
    assert command("--multirun", *TINY, "train.epochs=1", "compressor=dgc,topk") == (0, [])
    made = {}
    for name in left_in(tmp_path):
        config = OmegaConf.load(tmp_path / "runs" / name / "config.yaml")
        made[str(config.policy["_target_"].rpartition(".")[2])] = (
            list(config.wrap),
            config.optimizer.momentum,
        )
    assert made == {
        "Warmup": (["momentum_correction", "per_layer", "error_feedback"], 0),
        "Fixed": (["per_layer", "error_feedback"], 0.9),
    }


@pytest.mark.parametrize("bits", ["17", "17,8"])
def test_a_mistake_in_a_sweep_ends_it_with_one_line(
    bits: str, command: Command, tmp_path: Path
) -> None:
    overrides = ("compressor=uniform", f"compressor.bits={bits}", "train.epochs=1")
    line = refused(command("--multirun", *TINY, *overrides))
    assert line.startswith("compressor.bits: ")
    assert left_in(tmp_path) == []


@pytest.mark.parametrize("given", ["wrapper.clip_local.threshold=1,2", "+sink.every_step=1,2"])
def test_a_setting_that_nothing_reads_ends_a_sweep_before_it_trains(
    given: str, command: Command, tmp_path: Path
) -> None:
    line = refused(command("--multirun", *TINY, "train.epochs=1", given))
    assert line.startswith(given.lstrip("+").partition("=")[0])
    assert "nothing was trained" in line
    assert left_in(tmp_path) == []


@pytest.mark.parametrize("override", ["compressor=dense,unifrom", "train.epoch=1,2"])
def test_an_unknown_name_in_a_sweep_is_one_line(
    override: str, command: Command, tmp_path: Path
) -> None:
    line = refused(command("--multirun", *TINY, "train.epochs=1", override))
    assert line.startswith(override.partition("=")[0])
    assert "did you mean" in line


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["dynamic/tabel1"], "did you mean dynamic/table1?"),
        ([], "there are: dynamic/"),
        (["dynamic/table1", "scale=hug"], "scale: no 'hug'"),
        (["dynamic/table1", "scale=none"], "scale: an artifact has runs at quick, small and paper"),
        (["dynamic/table1", "train.epoch=1"], "did you mean train.epochs?"),
    ],
)
def test_a_mistake_in_reproduce_is_one_line(
    arguments: Sequence[str], says: str, command: Command, tmp_path: Path
) -> None:
    assert says in refused(command("reproduce", *arguments))
    assert left_in(tmp_path) == []


def test_results_that_cannot_be_written_are_found_out_before_any_training(
    command: Command, tmp_path: Path
) -> None:
    (tmp_path / "a file").write_text("")
    given = ("dynamic/table1", "scale=quick", "paths.reproduced='a file/below'")
    assert refused(command("reproduce", *given)).startswith("paths.reproduced: cannot write to ")
    assert left_in(tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "scale"),
    [
        (["scale=small"], "small"),
        (["scale=small", "seed=7", "dataset.root=elsewhere"], "small"),
        (["scale=small", "train.epochs=2"], "custom"),
        (["model.width=4"], "custom"),
    ],
)
def test_runs_of_another_size_are_not_called_by_the_scales_name(
    given: Sequence[str], scale: str
) -> None:
    assert {config["scale"]["name"] for config, _ in runs_of("dynamic/table1", given)} == {scale}


@pytest.mark.parametrize(
    ("kind", "started", "says"),
    [("local", "3", "config says 2, torchrun started 3"), ("simulated", "2", "start it without")],
)
def test_ranks_started_by_hand_must_be_as_many_as_the_folder_says(
    kind: str, started: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configured(*TINY, f"launch={kind}", "launch.workers=2")
    (tmp_path / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(config)))
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", started)
    with pytest.raises(UserError, match=f"^launch.*{says}"):
        run_worker(tmp_path)


def test_a_folder_that_another_process_writes_to_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "_see_through", lambda *_: pytest.fail("ranks were started"))
    config = configured(*TINY)
    with (
        FileLock(tmp_path / local.LOCK_FILE),
        pytest.raises(UserError, match=r"^paths.runs: .* is being written by another process"),
    ):
        local.execute(config, tmp_path)
    assert not (tmp_path / local.LOG_FILE).exists()


# -- real processes ------------------------------------------------------------------------------


def python(*arguments: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


@pytest.mark.timeout(PATIENCE_SECONDS + 20)
@pytest.mark.parametrize("flag", ["--info", "--help"])
def test_a_closed_pipe_ends_the_output_quietly(flag: str, tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "dgc_repro", flag]
    ended = subprocess.run(
        command,
        cwd=tmp_path,
        stdout=writer,
        stderr=subprocess.PIPE,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    os.close(writer)
    assert ended.stderr == b""


@pytest.mark.slow
@pytest.mark.timeout(PATIENCE_SECONDS + 20)
def test_help_lists_the_groups_and_their_members(tmp_path: Path) -> None:
    done = python("dgc_repro", "--help", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    for group in ("compressor", "policy", "launch"):
        members = sorted(path.stem for path in (conf_dir() / group).glob("*.yaml"))
        assert f"{group}: {', '.join(members)}" in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.timeout(PATIENCE_SECONDS + 20)
def test_a_real_process_says_one_line_and_ends_with_2(tmp_path: Path) -> None:
    wrong = ("compressor=uniform", "compressor.bits=eight")
    done = python("dgc_repro", *wrong, folder=tmp_path)
    answer = (done.returncode, done.stderr.splitlines())
    assert refused(answer).startswith("compressor.bits: ")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.timeout(PATIENCE_SECONDS + 20)
def test_a_mistake_that_only_the_ranks_can_see_is_one_line_too(tmp_path: Path) -> None:
    wrong = ("launch=local", "launch.workers=2", "dataset.validation=5000")
    done = python("dgc_repro", *TINY, *wrong, folder=tmp_path)
    answer = (done.returncode, done.stderr.splitlines())
    assert refused(answer).startswith("dataset.validation: ")
    assert left_in(tmp_path) == []


@pytest.mark.timeout(PATIENCE_SECONDS + 20)
def test_a_worker_without_a_run_folder_says_what_to_do(tmp_path: Path) -> None:
    done = python("dgc_repro", "worker", "nowhere", folder=tmp_path)
    answer = (done.returncode, done.stderr.splitlines())
    assert refused(answer).startswith("paths.runs: no nowhere/config.yaml")
    assert list(tmp_path.iterdir()) == []
