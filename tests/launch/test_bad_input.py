"""A mistake is one line that names the key, exit code 2, and leaves nothing behind.

Most are made in this process, by the fixture `command`. A few real processes at the end show that it is the
same.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import subprocess
import sys
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest
import yaml
from commands import PATIENCE_SECONDS, refused
from omegaconf import OmegaConf
from tiny_run import PLAIN, TEXT, TINY, UNIFORM4_EF, configured

from dgc_repro.errors import LONG_MESSAGE, UserError
from dgc_repro.launch import environment, main
from dgc_repro.launch import run as running
from dgc_repro.launch.ranks import LOG_FILE, RunFailed, execute, held
from dgc_repro.launch.rules import PROCESS_BYTES, validate
from dgc_repro.launch.worker import read_config, run_worker

Command = Callable[..., tuple[int, list[str]]]


def left_in(folder: str | Path = ".") -> list[str]:
    """What is in the runs/ of a folder, which is the working folder unless it is named."""
    return sorted(path.name for path in Path(folder, "runs").glob("*"))


WORDS = {
    "LONG": "x" * 300,
    "DIGITS": "9" * 5000,
    "LETTERS": "a" * 5000,
    "LEVELS": "[" * 200 + "]" * 200,
    "SPACED": f"'{'a ' * 2500}'",
    "ESC": "\x1b",
    "BELL": "\x07",
}
"""What words of the table stand for."""
OVERRIDES = {
    "GRAVAC": ("compressor=topk", "policy=gravac"), "TEXT": TEXT, "BARE": (),
    "GPT": ("experiment=recipe/gpt", "scale=recipe/text/small", "dataset.train_size=100000"),
}  # fmt: skip
TABLE = Path(__file__).with_name("mistakes.txt").read_text(encoding="utf-8").partition("# Slow.\n")
MISTAKES = [
    pytest.param(*(part.strip() for part in line.split(" |")), id=line.split(" |")[0], marks=marks)
    for lines, marks in ((TABLE[0], ()), (TABLE[2], pytest.mark.slow))
    for line in lines.splitlines()
    if not line.startswith("#")
]


@pytest.mark.parametrize(("overrides", "begins", "says"), MISTAKES)
def test_a_mistake_is_one_line_and_nothing_is_left(
    overrides: str, begins: str, says: str, command: Command
) -> None:
    is_command = overrides.partition(" ")[0] in {"BARE", "GPT", "predict", "queue", *main.COMMANDS}
    given = [part for word in overrides.split(" ") for part in OVERRIDES.get(word, [word])]
    for word, text in WORDS.items():
        given = [one.replace(word, text) for one in given]
    line = refused(command(*(() if is_command else TINY), *given))
    assert line.startswith(begins)
    assert says in line
    assert line.isprintable()
    assert len(line) < LONG_MESSAGE
    assert left_in() == []
    assert not Path("elsewhere").exists()


@pytest.mark.parametrize("overrides", ["train.epoch=3", "seed=[1", "--multirun train.epoch=1,2"])
def test_mistakes_are_the_same_where_hydra_composes_to_know_its_mode(
    overrides: str, request: pytest.FixtureRequest
) -> None:
    """`command` leaves this composition out."""
    whole: Command = request.getfixturevalue("whole_command")
    line = refused(whole(*TINY, *overrides.split()))
    quick: Command = request.getfixturevalue("command")
    assert refused(quick(*TINY, *overrides.split())) == line
    assert left_in() == []


def test_more_processes_than_the_machine_has_memory_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "available_bytes", lambda: 4 * PROCESS_BYTES)
    validate(configured(*TINY, "launch=local", "launch.workers=4"))
    with pytest.raises(UserError, match=r"^launch.workers: 5 processes take 1.75 GB.*simulated"):
        validate(configured(*TINY, "launch=local", "launch.workers=5"))


@pytest.mark.parametrize(
    ("text", "says"), [("[", "is no YAML ("), ("- 1gbit", "holds no profile; write one as conf/")]
)
def test_a_file_that_holds_no_network(text: str, says: str, command: Command) -> None:
    Path("mine.yaml").write_text(text)
    line = refused(command(*TINY, "network=mine.yaml"))
    assert line.startswith(f"network: mine.yaml {says}")


# -- folders -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ((*TINY, "paths.runs='a file/below'"), "paths.runs"),
        ((*TINY, "paths.runs=/proc/dgc_repro"), "paths.runs"),
        (
            ("reproduce", "dynamic/table1", "scale=quick", "paths.reproduced='a file/below'"),
            "paths.reproduced",
        ),
    ],
    ids=["below a file", "proc", "results below a file"],
)
def test_a_place_that_cannot_be_written_to(
    given: Sequence[str], key: str, command: Command
) -> None:
    Path("a file").write_text("")
    assert refused(command(*given)).startswith(f"{key}: cannot write to ")
    assert left_in() == []


def run_folder() -> Path:
    (name,) = left_in()
    return Path("runs", name)


def test_a_malformed_file_of_a_run_is_one_line_and_nothing_is_lost(command: Command) -> None:
    mine = (*TINY, *PLAIN, "train.epochs=1")
    command(*mine)
    folder = run_folder()
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

    other = (b"{launch: 3, scale: [], experiment: null}", whole[: len(whole) // 2])
    malformed = (b"", b"[]", b"null", b"3", b'"x"', b"\xff\xfe", b"{" * 2000, b"&a [*a]", b"a: [")
    for content in (*malformed, *other):
        path.write_bytes(content)
        assert "delete" in refusal()
    path.write_bytes(b"[]")
    _, named, why = refused(command(*mine)).partition("config.yaml")
    assert f"{named}{why}" in refusal()
    assert named

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


def test_another_world_goes_on_from_a_folder_that_is_named(command: Command) -> None:
    assert command(*TINY, *UNIFORM4_EF, "train.epochs=1")[0] == 0
    old = run_folder()
    given = ("launch.workers=4", f"train.resume_from={old}", "train.reshard=mean")
    assert command(*TINY, *UNIFORM4_EF, *given) == (0, [])
    (new,) = set(left_in()) - {old.name}
    told = Path("runs", new, "metrics.jsonl").read_text()
    assert re.findall(r"continuing at step \d+ \(epoch (\d)\)", told) == ["2"]


# -- sweeps and other commands -------------------------------------------------------------------


def test_a_sweep_over_compressors_gives_each_its_own_defaults(command: Command) -> None:
    assert command("--multirun", *TINY, "train.epochs=1", "compressor=dgc,topk") == (0, [])
    made = {}
    for name in left_in():
        config = OmegaConf.load(Path("runs") / name / "config.yaml")
        made[str(config.policy["_target_"].rpartition(".")[2])] = (
            list(config.wrap),
            config.optimizer.momentum,
        )
    assert made == {
        "Warmup": (["momentum_correction", "per_layer", "error_feedback"], 0),
        "Fixed": (["per_layer", "error_feedback"], 0.9),
    }


def test_hydras_own_launcher_and_run_folder_are_hydras(command: Command) -> None:
    sizes = (*TINY, "train.epochs=1")
    assert command("--multirun", "hydra/launcher=basic", *sizes, "seed=0,1") == (0, [])
    assert len(left_in()) == 2
    elsewhere = Path("elsewhere").absolute()
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


def test_a_full_disk_of_results_is_found_out_before_any_training(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(**_: Any) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("tempfile.TemporaryFile", full)
    line = refused(command("reproduce", "dynamic/table1", "scale=quick"))
    assert line.startswith("paths.reproduced: no space left on the disk of ")
    assert line.endswith("; free some, or give another folder")
    assert left_in() == []


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


@pytest.mark.timeout(PATIENCE_SECONDS + 20)
@pytest.mark.parametrize("flag", [pytest.param("--info", marks=pytest.mark.slow), "--help"])
def test_a_closed_pipe_ends_the_output_quietly(flag: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    ended = subprocess.run(
        [sys.executable, "-m", "dgc_repro", flag],
        stdout=writer, stderr=subprocess.PIPE, timeout=PATIENCE_SECONDS, check=False,
    )  # fmt: skip
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
def test_a_real_process_says_one_line_and_ends_with_2(given: Sequence[str], begins: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "dgc_repro", *given],
        stderr=subprocess.PIPE, text=True, timeout=PATIENCE_SECONDS, check=False,
    )  # fmt: skip
    assert refused((done.returncode, done.stderr.splitlines())).startswith(begins)
    assert left_in() == []
