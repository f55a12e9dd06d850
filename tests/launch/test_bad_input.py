"""A mistake is one line that names the key, exit code 2, and leaves nothing behind.

Most are made in this process, by the fixture `command`. A few real processes at the end show that it is the
same.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import subprocess
import sys
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest
import yaml
from commands import PATIENCE_SECONDS
from omegaconf import OmegaConf
from tiny_run import PLAIN, TEXT, TINY, UNIFORM4_EF, configured, without_times

from dgc_repro.errors import LONG_MESSAGE, UserError
from dgc_repro.launch import environment, main
from dgc_repro.launch import run as running
from dgc_repro.launch.ranks import LOG_FILE, RunFailed, execute, held
from dgc_repro.launch.reproduction import runs_of
from dgc_repro.launch.rules import PROCESS_BYTES, validate
from dgc_repro.launch.worker import read_config, run_worker

Command = Callable[..., tuple[int, list[str]]]


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


LONG = "x" * 300
NESTED = {"GRAVAC": ("compressor=topk", "policy=gravac"), "TEXT": TEXT}
TABLE = Path(__file__).with_name("mistakes.txt").read_text(encoding="utf-8").partition("# Slow.\n")
MISTAKES = [
    pytest.param(*(part.strip() for part in line.split(" |")), id=line.split(" |")[0], marks=marks)
    for lines, marks in ((TABLE[0], ()), (TABLE[2], pytest.mark.slow))
    for line in lines.splitlines()
    if not line.startswith("#")
]


@pytest.mark.parametrize(("overrides", "begins", "says"), MISTAKES)
def test_a_mistake_is_one_line_and_nothing_is_left(
    overrides: str, begins: str, says: str, command: Command, tmp_path: Path
) -> None:
    words = overrides.replace("LONG", LONG).split(" ")
    given = [part for word in words for part in NESTED.get(word, [word])]
    line = refused(command(*(() if given[0] in main.COMMANDS else TINY), *given))
    assert line.startswith(begins)
    assert says in line
    assert left_in(tmp_path) == []
    assert not (tmp_path / "elsewhere").exists()


DIGITS, LETTERS, LEVELS = "9" * 5000, "a" * 5000, "[" * 200 + "]" * 200


@pytest.mark.parametrize(
    ("given", "begins"),
    [
        *((f"{key}={DIGITS}", f"{key}: a number of at most") for key in ("seed", "optimizer.lr", "sink")),
        (f"wrap=[{DIGITS}]", "wrap: a number of at most"),
        (f"--multirun seed=0,{DIGITS}", "seed: a number of at most"),
        (f"reproduce dynamic/table1 seed={DIGITS}", "seed: a number of at most"),
        (f"recommend workers={DIGITS}", "workers: a number of at most"),
        (f"calibrate sizes={DIGITS}", "sizes: a number of at most"),
        *((f"{key}={LEVELS}", f"{key}: at most") for key in ("seed", "wrap", "sink", "experiment.row")),
        (f"reproduce dynamic/table1 optimizer={LEVELS}", "optimizer: at most"),
        *((f"sink=[{value}]", "sink: a name, got [") for value in ("-1", "null", "true", "1.5", "[a]")),
        ("compressor=[1]", "compressor: a name, got [1]"),
        ("optimizer=[jsonl,2]", "optimizer: a name, got ["),
        (f"seed={LETTERS}", "seed: a whole number"),
        (f"train.precision={LETTERS}", "train.precision: one of"),
        (f"{LETTERS}=1", ""),
        (f"{LETTERS}", "aaa"),
        (f"train.resume_from={LETTERS}", ""),
        (f"reproduce {LETTERS}", "reproduce: no artifact"),
        (f"reproduce list={LETTERS}", "list: "),
        (f"compare {LETTERS}", "aaa"),
        (f"wandb {LETTERS}", "aaa"),
        (f"experiment.row=[{','.join(['12'] * 2500)}]", "experiment.row: "),
        (f"train.resume_from='{'a ' * 2500}'", "a a a"),
    ],
    ids=lambda value: value[:40],
)  # fmt: skip
def test_an_extreme_value_is_one_short_line(
    given: str, begins: str, command: Command, tmp_path: Path
) -> None:
    words = given.split(" ") if "'" not in given else [given]
    line = refused(command(*(() if words[0] in main.COMMANDS else TINY), *words))
    assert line.startswith(begins)
    assert len(line) < LONG_MESSAGE
    assert left_in(tmp_path) == []


def test_control_characters_of_a_command_line_are_shown(command: Command) -> None:
    line = refused(command(*TINY, "train.precision=\x1b[2J\x07"))
    assert "\x1b" not in line
    assert "\\x1b[2J\\x07" in line


@pytest.mark.parametrize(
    ("overrides", "begins"),
    [
        ("train.epoch=3", "train.epoch: no such key; did you mean train.epochs?"),
        ("compressor=topkk", "compressor: no 'topkk'; did you mean topk"),
        ("train.epochs=0", "train.epochs: a whole number from 1, got 0"),
        ("seed=0,1", "Ambiguous value for argument 'seed=0,1'"),
        ("seed=[1", ""),
        ("--multirun train.epoch=1,2", "train.epoch: no such key; did you mean train.epochs?"),
    ],
)
def test_mistakes_are_the_same_where_hydra_composes_to_know_its_mode(
    overrides: str, begins: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """`command` leaves this composition out."""
    whole: Command = request.getfixturevalue("whole_command")
    line = refused(whole(*TINY, *overrides.split()))
    assert line.startswith(begins)
    quick: Command = request.getfixturevalue("command")
    assert refused(quick(*TINY, *overrides.split())) == line
    assert left_in(tmp_path) == []


def test_a_word_that_is_no_command(command: Command) -> None:
    line = refused(command("predict", "network=nvlink"))
    assert line.startswith(
        "predict: no such command; there are: reproduce, compare, recommend, calibrate, selfcheck,"
    )
    line = refused(command("queue", "list=true"))
    assert line.startswith(
        "queue: no such command; reproduce list=queue trains the list (plan=true "
    )


def test_more_processes_than_the_machine_has_memory_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "available_bytes", lambda: 4 * PROCESS_BYTES)
    validate(configured(*TINY, "launch=local", "launch.workers=4"))
    with pytest.raises(UserError, match=r"^launch.workers: 5 processes take 1.75 GB.*simulated"):
        validate(configured(*TINY, "launch=local", "launch.workers=5"))


@pytest.mark.parametrize("scale", ["~scale", "scale=none"])
def test_without_a_scale_epochs_are_asked_for(scale: str, command: Command) -> None:
    assert refused(command(scale)) == "train.epochs: has no value; give one"


def test_a_recipe_keeps_its_sizes_unless_a_scale_is_given(command: Command) -> None:
    line = refused(command("recipe=gpt", "train.epochs=0"))
    assert line.startswith("train.epochs: a whole number from 1, got 0")
    line = refused(command("recipe=gpt", "scale=quick"))
    assert line.startswith("dataset.reading: no such key; ")


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


# -- folders -------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["a file/below", "/proc/dgc_repro"])
def test_a_place_that_cannot_be_written_to(where: str, command: Command, tmp_path: Path) -> None:
    (tmp_path / "a file").write_text("")
    line = refused(command(*TINY, f"paths.runs='{where}'"))
    assert line.startswith("paths.runs: cannot write to ")
    assert left_in(tmp_path) == []


def test_a_disk_that_fills_up_in_the_middle_is_no_mistake_of_the_config(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(config: dict[str, Any], folder: Path, **_: Any) -> None:
        raise RunFailed("OSError: [Errno 28] No space left on device")

    monkeypatch.setattr(running, "execute", fail)
    code, lines = command(*TINY)
    assert code == 1
    assert lines == ["error: OSError: [Errno 28] No space left on device"]


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
        for reading in (lambda: running.prepare(folder, config), lambda: read_config(folder)):
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
        for read in (lambda: running.prepare(folder, config), lambda: read_config(folder)):
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


# -- sweeps and other commands -------------------------------------------------------------------


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


def test_hydras_own_launcher_and_run_folder_are_hydras(command: Command, tmp_path: Path) -> None:
    sizes = (*TINY, "train.epochs=1")
    assert command("--multirun", "hydra/launcher=basic", *sizes, "seed=0,1") == (0, [])
    assert len(left_in(tmp_path)) == 2
    elsewhere = tmp_path / "elsewhere"
    moved = (f"hydra.run.dir={elsewhere}", "++hydra.job.chdir=True")
    assert command(*moved, *sizes, "seed=2") == (0, [])
    assert len(left_in(elsewhere)) == 1


def test_a_failed_run_of_a_sweep_is_named_and_what_it_held_is_released(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: list[weakref.ref[set[int]]] = []

    def fail(config: dict[str, Any], folder: Path, **_: Any) -> None:
        assert [one() for one in held] == [None] * len(held)
        store = {1}
        held.append(weakref.ref(store))
        try:
            raise ValueError(store)
        except ValueError:
            raise RunFailed("lost") from None

    monkeypatch.setattr(running, "execute", fail)
    code, lines = command("--multirun", *TINY, "seed=0,1")
    assert code == 1
    assert lines[-1] == "error: lost"
    assert [one() for one in held] == [None, None]


def test_results_that_cannot_be_written_are_found_out_before_any_training(
    command: Command, tmp_path: Path
) -> None:
    (tmp_path / "a file").write_text("")
    given = ("dynamic/table1", "scale=quick", "paths.reproduced='a file/below'")
    assert refused(command("reproduce", *given)).startswith("paths.reproduced: cannot write to ")
    assert left_in(tmp_path) == []


def test_a_full_disk_of_results_is_found_out_before_any_training(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(**_: Any) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("tempfile.TemporaryFile", full)
    line = refused(command("reproduce", "dynamic/table1", "scale=quick"))
    assert line.startswith("paths.reproduced: no space left on the disk of ")
    assert line.endswith("; free some, or give another folder")
    assert left_in(tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "scale"),
    [
        (["scale=small", "seed=7", "dataset.root=elsewhere"], "small"),
        (["scale=small", "seed=0", "train.epochs=2"], "custom"),
        (["seed=0", "model.width=4"], "custom"),
    ],
)
def test_runs_of_another_size_are_not_called_by_the_scales_name(
    given: Sequence[str], scale: str
) -> None:
    assert {config["scale"]["name"] for config, _ in runs_of("dynamic/table1", given)} == {scale}


@pytest.mark.parametrize(("kind", "started"), [("local", "3"), ("local", "0"), ("simulated", "2")])
def test_ranks_started_by_hand_must_be_as_many_as_the_folder_says(
    kind: str, started: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configured(*TINY, f"launch={kind}", "launch.workers=2")
    (tmp_path / "config.yaml").write_text(OmegaConf.to_yaml(OmegaConf.create(config)))
    monkeypatch.setenv("WORLD_SIZE", started)
    with pytest.raises(
        UserError, match=rf"^launch\.workers: .* started as {started} ranks; python"
    ):
        run_worker(tmp_path)


def test_a_folder_that_another_process_writes_to_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "dgc_repro.launch.ranks.Ranks", lambda *_: pytest.fail("ranks were started")
    )
    config = configured(*TINY)
    says = r"^paths.runs: .* is still being written by another process"
    with held(tmp_path) as here:
        here.log.write("of the other process")
        with pytest.raises(UserError, match=says):
            execute(config, tmp_path)
    assert (tmp_path / LOG_FILE).read_text() == "of the other process"


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


@pytest.mark.timeout(PATIENCE_SECONDS + 20)
@pytest.mark.parametrize(
    ("given", "begins"),
    [
        (["compressor=uniform", "compressor.bits=eight"], "compressor.bits: "),
        (["worker", "nowhere"], "paths.runs: no nowhere/config.yaml"),
        pytest.param(  # a mistake that only the ranks can see
            [*TINY, "launch=local", "launch.workers=2", "dataset.validation=5000"],
            "dataset.validation: ",
            marks=pytest.mark.slow,
        ),
    ],
    ids=["command", "worker", "ranks"],
)
def test_a_real_process_says_one_line_and_ends_with_2(
    given: Sequence[str], begins: str, tmp_path: Path
) -> None:
    done = python("dgc_repro", *given, folder=tmp_path)
    assert refused((done.returncode, done.stderr.splitlines())).startswith(begins)
    assert left_in(tmp_path) == []
