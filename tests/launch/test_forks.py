"""Later simulated runs of one command are forks: the same numbers, and they stop with their command."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from commands import PATIENCE_SECONDS, Command, wait_for
from tiny_run import TINY, tiny

from dgc_repro.launch import forks
from dgc_repro.launch.local import Ranks
from dgc_repro.launch.single import run_config

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3 * PATIENCE_SECONDS)]
SWEEP = (
    *(
        "--multirun",
        *TINY,
        "launch=simulated",
        "launch.device=cpu",
        "seed=0,1",
        "sink.every_steps=1",
    ),
    *("dataset.train_size=640", "train.epochs=8"),
)


def run(folder: Path, *settings: str) -> Path:
    return run_config(tiny(f"paths.runs={folder}", "train.epochs=1", *settings))


def losses(folder: Path) -> list[float]:
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [line["train/loss"] for line in lines if line["kind"] == "epoch"]


def test_a_forked_run_has_the_numbers_of_a_process_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forks, "_servers", {})
    started = []
    of_its_own = Ranks.popen

    def popen(self: Ranks, *arguments: object) -> object:
        started.append(self.folder)
        return of_its_own(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Ranks, "popen", popen)
    first = run(tmp_path / "first")
    assert set(forks._servers.values()) == {None}
    assert losses(first) == losses(run(tmp_path / "second"))
    assert losses(run(tmp_path / "third", "seed=1")) != losses(first)
    assert started == [first], "the later runs are forks"

    (server,) = forks._servers.values()
    assert server is not None
    os.kill(server.process.pid, signal.SIGKILL)
    server.process.wait()
    fourth = run(tmp_path / "fourth")
    assert losses(fourth) == losses(first)
    assert started == [first, fourth]


def test_code_that_has_changed_is_not_forked_from_an_older_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(forks, "_servers", {})
    assert forks.server(os.environ) is None
    older = forks.server(os.environ)
    assert older is not None
    assert forks.server(os.environ) is older
    monkeypatch.setattr("dgc_repro.launch.agreement.code_hash", lambda: "changed")
    assert forks.server(os.environ) is None
    newer = forks.server(os.environ)
    assert newer is not None
    assert newer is not older
    assert older.process.poll() is not None, "there is one server"
    newer.close()


def test_a_stop_while_the_server_imports_does_not_wait(tmp_path: Path) -> None:
    server = forks.Server(os.environ)
    assert server.start(tmp_path, tmp_path / "log", lambda: True) is None
    assert server.process.wait(PATIENCE_SECONDS) == -signal.SIGKILL


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_fork_ends_with_its_command_and_continues(tmp_path: Path, number: int) -> None:
    command = Command(tmp_path, *SWEEP)
    command.start()
    wait_for(lambda: len(list(command.runs.glob("*-s1-*/steps.jsonl"))) == 1, "the second run")
    (server,) = children_of(command.process.pid)
    (fork,) = children_of(server)
    command.process.send_signal(number)
    command.process.communicate(timeout=PATIENCE_SECONDS)
    assert command.process.returncode == (-number if number == signal.SIGKILL else 128 + number)
    wait_for(lambda: not is_alive(fork) and not is_alive(server), "the fork and the server to end")

    command.start()
    assert command.end() == (0, [])
    summaries = [json.loads(path.read_text()) for path in command.runs.glob("*/summary.json")]
    assert [summary["status"] for summary in summaries] == ["finished", "finished"]


def children_of(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in found]


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that nobody has waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
