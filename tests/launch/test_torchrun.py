"""``torchrun -m dgc_repro``: each process is a rank, rank 0 reads the command line, there is one record."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import PATIENCE_SECONDS, Command, wait_for
from ranks import processes_of
from tiny_run import PLAIN

from dgc_repro.errors import UserError
from dgc_repro.launch import main, torchrun
from dgc_repro.launch.local import USER_ERROR, last_checkpoint
from dgc_repro.launch.main import COMMANDS
from dgc_repro.launch.rendezvous import Rendezvous
from dgc_repro.launch.torchrun import with_workers

A_FEW_SECONDS = 5.0
RUN = (
    *("launch.threads=1", "launch.device=cpu", "launch.timeout_seconds=120", "sink=none", *PLAIN),
    *("dataset=digits", "dataset.train_size=128", "dataset.validation=51", "dataset.test_size=53"),
    *("compressor=topk", "train.batch_size=16", "sink.every_steps=1"),
)  # 4 steps an epoch
TORCHRUN = ("torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "dgc_repro")
LAUNCHER = ("dgc_repro", "launch.workers=2")


@pytest.mark.parametrize(
    ("given", "becomes"),
    [
        ("", "launch.workers=2"),
        ("compressor=topk seed=1", "launch.workers=2 compressor=topk seed=1"),
        ("--cfg job", "launch.workers=2 --cfg job"),
        ("launch.workers=3 seed=1", "launch.workers=3 seed=1"),  # refused when it is composed
        ("reproduce dynamic/table1", "reproduce: starts ranks of its own"),
        ("--multirun seed=0,1", "--multirun: starts ranks of its own"),
        ("seed=0,1 -m", "-m: starts ranks of its own"),
    ],
)
def test_the_number_of_workers_is_torchruns_and_what_is_not_one_run_is_refused(
    given: str, becomes: str
) -> None:
    try:
        assert " ".join(with_workers(given.split(), 2, COMMANDS)) == becomes
    except UserError as error:
        assert str(error).startswith(becomes)  # noqa: PT017  # one table for both


def test_a_rank_that_refuses_ends_the_wait_of_the_others(pair: dict[str, Rendezvous]) -> None:
    pair["1"].refuse("dataset.root: not on this node")
    with pytest.raises(UserError, match=r"^dataset\.root: not on this node$"):
        pair["0"].gather("start")


@pytest.mark.timeout(PATIENCE_SECONDS + 20)
@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("compressor=topkk", "compressor: no 'topkk'"),
        ("launch.workers=3", "launch.workers: 3 given, torchrun started 2;"),
        ("launch=simulated", "launch.kind: simulated starts its own processes; leave torchrun out"),
        ("--cfg job", ""),
    ],
)
def test_a_mistake_is_one_line_of_rank_0_and_all_ranks_end_alike(
    given: str,
    says: str,
    pair: dict[str, Rendezvous],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As both ranks do it, but that they are threads and end with an exception."""

    def leave(code: int) -> None:
        ended[threading.current_thread().name] = code
        raise SystemExit(code)

    ended: dict[str, int] = {}

    def follow() -> None:
        with contextlib.suppress(SystemExit):
            torchrun.follow()

    thread = threading.Thread(target=follow, name="1", daemon=True)
    monkeypatch.setattr(
        torchrun, "_met", lambda: pair[threading.current_thread().name.replace("MainThread", "0")]
    )
    monkeypatch.setattr(torchrun, "leave", leave)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["dgc_repro", *given.split()])
    thread.start()
    with pytest.raises(SystemExit):
        main.main()
    thread.join(PATIENCE_SECONDS)
    assert ended == dict.fromkeys(("MainThread", "1"), USER_ERROR if says else 0)
    said = capsys.readouterr().err.splitlines()
    assert [line.startswith(f"error: {says}") for line in said] == [True] * bool(says)
    assert list(tmp_path.iterdir()) == []


# -- real processes ------------------------------------------------------------------------------


Commands = Callable[..., Command]


@pytest.mark.timeout(2 * PATIENCE_SECONDS)
def test_ranks_end_within_seconds_when_torchruns_agent_is_killed(commands: Commands) -> None:
    command = commands(*RUN, "train.epochs=5000", through=TORCHRUN)
    command.start()
    command.wait_for_step(41)
    ranks_of = command.ranks()
    assert sorted(ranks_of) == ["0", "1"]
    command.process.kill()  # the agent
    pids = set(ranks_of.values())
    wait_for(lambda: not processes_of(command.runs).keys() & pids, "the ranks", A_FEW_SECONDS)
    command.process.communicate(timeout=PATIENCE_SECONDS)
    assert (last_checkpoint(command.run_folder()) or 0) >= 20


@pytest.mark.slow
@pytest.mark.timeout(5 * PATIENCE_SECONDS)
def test_a_run_is_stopped_in_torchrun_goes_on_from_the_launcher_and_is_done_for_both(
    commands: Commands,
) -> None:
    given = (*RUN, "train.epochs=200")
    torchrun, launcher = (commands(*given, through=form) for form in (TORCHRUN, LAUNCHER))
    torchrun.start()
    torchrun.wait_for_step(6)
    torchrun.process.send_signal(signal.SIGINT)
    code, errors = torchrun.end()
    assert code != 0
    said = "\n".join(errors)
    assert said.count("error: stopped after a checkpoint; the same command continues") == 1
    folder = torchrun.run_folder()
    stopped_at = torchrun.summary()["steps"]
    assert stopped_at == last_checkpoint(folder) < 800

    launcher.start()
    assert launcher.end() == (0, [])
    assert launcher.summary()["status"] == "finished"
    assert f"continuing at step {stopped_at} " in (folder / "metrics.jsonl").read_text()

    for command in (torchrun, launcher):
        command.start()
        assert (command.end()[0], command.printed().count("already done: ")) == (0, 1)
    assert launcher.run_folder() == folder


@pytest.mark.slow
@pytest.mark.timeout(3 * PATIENCE_SECONDS)
def test_a_rank_that_is_killed_is_reported_or_restarted_from_the_last_checkpoint(
    commands: Commands,
) -> None:
    def kill_rank_1(*options: str) -> tuple[Command, int, list[str]]:
        through = (TORCHRUN[0], *options, *TORCHRUN[1:])
        command = commands(*RUN, "train.epochs=60", through=through)
        before = command.last_step()
        command.start()
        command.wait_for_step(before + 41)
        os.kill(command.ranks()["1"], signal.SIGKILL)
        return command, *command.end()

    command, code, errors = kill_rank_1()
    assert code == 1
    (line,) = [line for line in errors if line.startswith("error: ")]
    assert line.startswith("error: rank 1 did not come to the ")
    folder = command.run_folder()
    assert f"the checkpoint of step {last_checkpoint(folder)} is kept" in line

    command, code, errors = kill_rank_1("--max-restarts=1")
    assert code == 0, errors
    assert command.summary()["status"] == "finished"
    assert (folder / "metrics.jsonl").read_text().count("continuing at step") == 2
