"""What tests of the command line share: runs that are trained in this process, and commands."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import PATIENCE_SECONDS, Command
from hydra._internal.hydra import Hydra
from ranks import processes_of
from tiny_run import configured

from dgc_repro.launch import main
from dgc_repro.launch import run as running
from dgc_repro.launch.ranks import LAUNCH, LOCK_FILE, OWN_TARGETS, STOP_SIGNALS
from dgc_repro.launch.rendezvous import Rendezvous
from dgc_repro.launch.worker import run_worker


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The working folder is the test's own."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Path]]:
    """The run folders that have been trained, in this process."""
    folders: list[Path] = []

    def rank_here(config: dict[str, Any], folder: Path, **_: Any) -> None:
        assert config["launch"]["kind"] == "simulated", "would start processes"
        folders.append(folder)
        run_worker(folder)

    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    monkeypatch.setattr(running, "execute", rank_here)
    yield folders
    for number, handler in before.items():  # a rank replaces them
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """The folder of a finished run of these overrides, which is trained once a session."""

    @functools.cache
    def folder(*overrides: str) -> Path:
        with contextlib.chdir(place := tmp_path_factory.mktemp("kept")):
            return place / running.run_config(configured(*overrides), overrides)

    return folder


@pytest.fixture
def finished(kept: Callable[..., Path]) -> Callable[..., Path]:
    """Puts a copy of such a run into runs/ of the working folder."""

    def copied(*overrides: str) -> Path:
        folder = kept(*overrides)
        return Path(shutil.copytree(folder, Path("runs", folder.name)))

    return copied


@pytest.fixture
def command(
    whole_command: Callable[..., tuple[int, list[str]]], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, list[str]]]:
    """Run the command line as `whole_command` does, in half the time: Hydra composes once."""

    def mode(hydra: Hydra, **composed: Any) -> Any:
        """Hydra composes all once more to know this. Here no config but those of searches sets it."""
        words = re.findall(r"\w+", " ".join(composed["overrides"]))
        return get_mode(hydra, **composed) if {"hydra", "hparams_search"} & {*words} else None

    get_mode = Hydra.get_mode
    monkeypatch.setattr(Hydra, "get_mode", mode)
    return whole_command


@pytest.fixture
def ended(
    trained: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Run the command line with these arguments here: exit code, stdout and stderr."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["dgc_repro", *arguments])
        try:
            code = main.answer(main.dispatch)
        except SystemExit as end:  # from inside Hydra
            code = int(end.code or 0)
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def whole_command(
    ended: Callable[..., tuple[int, str, str]],
) -> Callable[..., tuple[int, list[str]]]:
    """Run the command line with these arguments here: exit code and the lines on stderr."""

    def run(*arguments: str) -> tuple[int, list[str]]:
        code, _, errors = ended(*arguments)
        return code, errors.splitlines()

    return run


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The lines that are printed in this process, `command` included."""
    lines: list[str] = []
    line = lambda *words, **_: lines.append(" ".join(map(str, words)))  # noqa: E731
    monkeypatch.setattr("builtins.print", line)
    return lines


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[Callable[..., Command]]:
    """Makes a `Command` of real processes on one folder of runs; ends what a failed test has left."""
    yield lambda *overrides, **how: Command(tmp_path, *overrides, **how)
    for pid in processes_of(tmp_path / "runs"):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


@pytest.fixture
def free() -> int:
    """A port that no program listens at."""
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        port: int = trial.getsockname()[1]
        return port


@pytest.fixture
def pair(free: int, by_hand: Callable[..., None]) -> dict[str, Rendezvous]:
    """Two ranks in this process, by the name of their thread."""
    met = {}
    for rank in (0, 1):
        by_hand(rank, 2, free)
        met[str(rank)] = Rendezvous(PATIENCE_SECONDS)
    by_hand(0, 2, free)
    return met


@pytest.fixture
def instructions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What rank 0 sends the others: the folder of launch 1234, which has taken its lock."""
    for name in (LAUNCH, OWN_TARGETS):
        monkeypatch.setenv(name, "")  # `join` sets them
    (tmp_path / LOCK_FILE).write_text("1234")
    return {"folder": str(tmp_path), LAUNCH: "1234", "node": "node0", OWN_TARGETS: ""}


@pytest.fixture
def by_hand(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets what torchrun would set, for a rank that is started by hand."""
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)

    def place(rank: int, size: int, port: int | str) -> None:
        pairs = {"RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        for name, value in pairs.items():
            monkeypatch.setenv(name, str(value))

    return place
