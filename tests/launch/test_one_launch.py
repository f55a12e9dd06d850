"""One launch at a time writes a run folder, however the launcher of another one has ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import PATIENCE_SECONDS, Command, assert_ends_as_simulated, wait_for
from ranks import processes_of
from tiny_run import PLAIN, TINY, UNIFORM4_EF, tiny

from dgc_repro.errors import UserError
from dgc_repro.launch import worker
from dgc_repro.launch.rank_process import work
from dgc_repro.launch.ranks import (
    ERROR_FILE,
    FAILED,
    FAILURE_FILE,
    LAUNCH,
    LOCK_FILE,
    LOG_FILE,
    RunFailed,
    RunHeld,
    Superseded,
    execute,
    held,
    launch_in,
    refuse_superseded,
)
from dgc_repro.launch.run import prepare

RUN = (
    *(*TINY, *PLAIN, *UNIFORM4_EF, "launch=local", "launch.timeout_seconds=600"),
    *("sink.every_steps=1", "dataset.train_size=640", "train.batch_size=8", "train.epochs=4"),
)  # 40 steps an epoch


@pytest.mark.slow
@pytest.mark.timeout(4 * PATIENCE_SECONDS)
def test_a_killed_launchers_ranks_hold_the_folder_until_the_last_has_ended(
    commands: Callable[..., Command],
) -> None:
    command = commands(*RUN)
    command.start()
    command.wait_for_step(50)
    found = command.ranks()
    os.kill(found["1"], signal.SIGSTOP)
    os.kill(command.process.pid, signal.SIGKILL)
    command.process.communicate(timeout=PATIENCE_SECONDS)
    steps = command.last_step()
    command.start()
    errors = command.process.communicate(timeout=PATIENCE_SECONDS)[1]
    assert command.process.returncode == 2
    numbers = ", ".join(map(str, sorted(found.values())))
    assert errors == (
        f"error: paths.runs: {command.run_folder()} is still being written by another process "
        f"(process id {numbers}); wait for it, end it, or give another paths.runs\n"
    )
    assert command.last_step() <= steps + 1  # the rank that waits for the stopped one
    os.kill(found["1"], signal.SIGCONT)  # both write a checkpoint, and end
    wait_for(lambda: processes_of(command.runs) == {}, "the ranks to end")
    command.start()
    assert command.end() == (0, [])
    assert_ends_as_simulated(command.run_folder(), *RUN)


def test_a_child_that_inherits_the_lock_keeps_it(tmp_path: Path) -> None:
    """flock(2) belongs to the open file; a lock by fcntl(2) would end with the launcher."""
    script = "import time; print('here', flush=True); time.sleep(600)"
    with held(tmp_path) as here:
        child = subprocess.Popen(
            [sys.executable, "-c", script], pass_fds=[here.lock], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        child.stdout.readline()
        assert not os.get_inheritable(here.lock)  # but through pass_fds
        ours = launch_in(tmp_path)
    try:
        with pytest.raises(RunHeld, match=rf"\(process id {child.pid}\); wait for it, end it"):
            held(tmp_path).__enter__()
        assert launch_in(tmp_path) == ours  # a look at the lock changes nothing
    finally:
        child.kill()
        child.communicate()
    with held(tmp_path):
        assert launch_in(tmp_path) not in ("", ours)


def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    other = tmp_path / "of somebody else"
    other.write_text("theirs")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / LOCK_FILE).symlink_to(other)
    with pytest.raises(UserError, match=r"lock: is a symbolic link, which is not followed"):
        held(tmp_path / "run").__enter__()
    assert other.read_text() == "theirs"


def test_each_launch_has_an_id_that_its_ranks_inherit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LAUNCH, "of a launch around this one")
    with held(tmp_path):
        assert os.environ[LAUNCH] == launch_in(tmp_path)
        refuse_superseded(tmp_path)
        (tmp_path / LOCK_FILE).write_text("of another launch")
        with pytest.raises(Superseded):
            refuse_superseded(tmp_path)
    assert os.environ[LAUNCH] == "of a launch around this one"
    monkeypatch.delenv(LAUNCH)
    refuse_superseded(tmp_path)  # a rank that was started by hand


@pytest.mark.parametrize("error", [UserError("theirs"), ValueError("ours"), Superseded("over")])
def test_a_superseded_rank_leaves_no_word_in_the_folder(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: Any) -> int:
        raise error

    monkeypatch.setattr(worker, "run_worker", failing)
    for is_newest in (True, False):
        with held(tmp_path) as here:
            if not is_newest:
                (tmp_path / LOCK_FILE).write_text("of another launch")
            code, is_first = work(tmp_path, here.log)
            found = {path.name for path in tmp_path.iterdir()} - {LOCK_FILE, LOG_FILE}
        if not is_newest or isinstance(error, Superseded):
            assert found == set()
            assert not is_first
            assert code == (2 if isinstance(error, UserError) else FAILED)
        else:
            assert found == {ERROR_FILE if isinstance(error, UserError) else FAILURE_FILE}


@pytest.mark.parametrize("at", [0, 1, 6])
def test_a_rank_stops_writing_where_another_launch_has_begun(
    at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At its first step, in its first epoch, or after its first checkpoint (4 steps an epoch)."""
    config = tiny(*UNIFORM4_EF, "sink.every_steps=1")
    folder = tmp_path / "run"
    prepare(folder, config)
    written: dict[str, Any] = {}
    really = worker.train

    def state() -> dict[str, Any]:
        kept = folder.rglob("*")
        return {p.name: p.read_bytes() for p in kept if p.is_file() and p.name != LOG_FILE}

    def train(run: Any, on_step: Any, *rest: Any) -> bool:
        def supersede(metrics: Any) -> None:
            if metrics["step"] == at + 1:
                (folder / LOCK_FILE).write_text("of another launch")
                written.update(state())
            on_step(metrics)

        return really(run, supersede, *rest)

    monkeypatch.setattr(worker, "train", train)
    with pytest.raises(RunFailed, match="^another launch has begun in .*run; this one has ended"):
        execute(config, folder)
    assert state() == written
    assert ("shared.pt" in written) == (at >= 4)
    assert "summary.json" not in written


def test_the_id_of_a_launch_is_on_the_disk_before_others_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a network file system another node sees what was synced, while this file stays open."""
    synced: list[str] = []
    really = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (really(fd), synced.append(launch_in(tmp_path)))[0])
    with held(tmp_path) as here:
        assert synced == [here.launch]
