"""Later simulated runs of one command are forks: the same numbers, their own log, and they can be stopped."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
from tiny_run import tiny

from dgc_repro.launch import forks
from dgc_repro.launch.local import LOG_FILE
from dgc_repro.launch.single import run_config


def run(folder: Path, *settings: str) -> Path:
    return run_config(tiny(f"paths.runs={folder}", "train.epochs=1", *settings))


def losses(folder: Path) -> list[float]:
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [line["train/loss"] for line in lines if line["kind"] == "epoch"]


@pytest.mark.slow
def test_a_forked_run_has_the_numbers_of_a_process_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forks, "_servers", {})
    first = run(tmp_path / "first")
    assert set(forks._servers.values()) == {None}
    second = run(tmp_path / "second")
    (server,) = forks._servers.values()
    assert server is not None
    assert losses(first) == losses(second)
    assert (second / LOG_FILE).is_file()

    assert losses(run(tmp_path / "third", "seed=1")) != losses(first)

    os.kill(server.process.pid, signal.SIGKILL)
    server.process.wait()
    assert losses(run(tmp_path / "fourth")) == losses(first)  # by a process of its own


@pytest.mark.slow
def test_a_fork_ends_with_its_signal_and_with_its_server(tmp_path: Path) -> None:
    server = forks.Server(os.environ)
    forked = server.start(tmp_path, tmp_path / "log")
    assert forked is not None
    assert forked.wait() == 2  # there is no config in the folder
    assert "no " in (tmp_path / "log").read_text()
    server.process.kill()
    server.process.wait()
    time.sleep(0.1)
    assert server.start(tmp_path, tmp_path / "log") is None
