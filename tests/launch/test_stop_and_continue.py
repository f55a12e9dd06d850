"""A real run that is stopped goes on by the same command, and ends with the record of a run that was never
stopped, number for number.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import PATIENCE_SECONDS, Command
from processes import World
from tiny_run import TINY, UNIFORM4_EF, configured, without_times
from told import told_here

from dgc_repro.launch import local
from dgc_repro.launch.local import RunStopped
from dgc_repro.launch.main import answer

NUM_EPOCHS, STEPS_PER_EPOCH = 4, 20
RUN = (
    *(*TINY, "launch=local", "launch.threads=1", "launch.timeout_seconds=120", "launch.device=cpu"),
    *("dataset.train_size=640", f"train.epochs={NUM_EPOCHS}", "sink.every_steps=1", *UNIFORM4_EF),
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(5 * PATIENCE_SECONDS)]


ENDLESS = """
from types import SimpleNamespace
from dgc_repro.launch import worker
worker.STOP_SECONDS = {seconds}
worker.StopSignals(ends_at={ends_at}).on(SimpleNamespace(stop_requested=False))
print("begun", flush=True)
while True:
    pass
"""


@pytest.mark.parametrize(
    ("ends_at", "presses", "ends_with"),
    [(None, 1, signal.SIGALRM), (3, 3, signal.SIGINT)],
    ids=["by the system", "by the third signal"],
)
def test_a_step_that_never_ends_is_ended_after_a_stop(
    ends_at: int | None, presses: int, ends_with: int
) -> None:
    command = [
        sys.executable,
        "-c",
        ENDLESS.format(ends_at=ends_at, seconds=1 if ends_at is None else 99),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        for _ in range(presses):
            process.send_signal(signal.SIGINT)
            time.sleep(0.1)
        try:
            assert process.wait(PATIENCE_SECONDS) == -ends_with
        finally:
            process.kill()


@pytest.fixture
def uninterrupted(two_workers: World, tmp_path: Path) -> dict[str, Any]:
    """The last record of the run, made by two ranks that nobody disturbed."""
    record: dict[str, Any] = two_workers(told_here, configured(*RUN), tmp_path / "whole")[0][
        "records"
    ][-1]
    return record


def finish(command: Command, record: dict[str, Any]) -> None:
    """Run to the end, and compare with the record of the run that was not stopped."""
    command.start()
    assert command.end() == (0, [])
    summary = command.summary()
    assert summary["status"] == "finished"
    assert {key: summary[key] for key in record} == record
    assert set(without_times(summary)) - record.keys() == {
        "status", "results_version", "steps", "epochs", "state_bytes", "parameters",
        "classes", "collectives", "files", "sha256",
    }  # fmt: skip
    epochs = [line["epoch"] for line in command.lines("metrics.jsonl") if line["kind"] == "epoch"]
    assert epochs == [1, 2, 3, 4]
    steps = [line["step"] for line in command.lines("steps.jsonl")]
    assert steps == list(range(1, NUM_EPOCHS * STEPS_PER_EPOCH + 1))


def stop(command: Command, at_step: int, number: int) -> None:
    """Send the parent a signal in the middle; it must end with a checkpoint of that very step."""
    command.start()
    command.wait_for_step(at_step)
    for _ in range(2):  # an impatient user: the second signal changes nothing
        command.process.send_signal(number)
        time.sleep(0.1)
    code, errors = command.end()
    assert errors == ["error: stopped after a checkpoint; the same command continues"]
    assert code == 128 + number
    last = command.steps_saved()[-1]
    assert at_step < last < NUM_EPOCHS * STEPS_PER_EPOCH
    assert (command.summary()["status"], command.summary()["steps"]) == ("stopped", last)


def test_a_run_survives_every_signal_that_stops_it(
    commands: Callable[..., Command], uninterrupted: dict[str, Any]
) -> None:
    """Ctrl-C, a closed terminal, a batch system; tests/launch/test_many_kills.py has the kills."""
    command = commands(*RUN)
    stop(command, 5, signal.SIGINT)
    before = command.steps_saved()[-1]
    for number in (signal.SIGHUP, signal.SIGTERM):
        stop(command, command.steps_saved()[-1] + 5, number)
    command.start()
    command.wait_for_step(command.steps_saved()[-1] + 5)
    os.kill(command.ranks()["0"], signal.SIGTERM)  # one rank alone: all agree to stop
    assert command.end() == (143, ["error: stopped after a checkpoint; the same command continues"])
    finish(command, uninterrupted)
    notes = (command.run_folder() / "metrics.jsonl").read_text()
    assert notes.count("continuing at step") == 4
    assert f"continuing at step {before} " in notes


def stopped() -> None:
    raise RunStopped(signal.SIGTERM, has_checkpoint=False)


def interrupted() -> None:
    raise KeyboardInterrupt


def test_a_run_stopped_before_its_first_checkpoint_does_not_claim_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert answer(stopped) == 143
    assert "before the first checkpoint" in capsys.readouterr().err


def test_ctrl_c_before_the_ranks_are_started_is_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert answer(interrupted) == 130
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_the_reason_of_a_failure_without_a_file_is_the_last_line_of_the_log(tmp_path: Path) -> None:
    log = tmp_path / local.LOG_FILE
    log.write_text("Traceback (most recent call last):\n  ...\nImportError: libcudart.so\n")
    ending = f"; no checkpoint yet, the same command starts again (tracebacks: {log})"
    assert local.what_failed(tmp_path) == f"ImportError: libcudart.so{ending}"
    assert local.what_failed(tmp_path, "rank 1 was killed") == f"rank 1 was killed{ending}"
    log.write_text("")
    without = ending.partition(" (")[0]  # an empty log is not worth reading
    assert local.what_failed(tmp_path) == f"a rank ended without an error message{without}"


DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(99)"


def test_a_third_signal_ends_ranks_that_do_not_stop(tmp_path: Path) -> None:
    def press_three_times() -> None:
        for _ in range(3):
            time.sleep(1)
            os.kill(os.getpid(), signal.SIGINT)

    presses = threading.Thread(target=press_three_times)
    before = {number: signal.getsignal(number) for number in local.STOP_SIGNALS}
    try:
        with (tmp_path / "log").open("wb") as log:
            ranks = local.Ranks(tmp_path, log, 2)
            presses.start()
            ranks.run([sys.executable, "-c", DEAF], os.environ)
            presses.join()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert [process.returncode for process in ranks.processes] == [-signal.SIGKILL] * 2
    assert ranks.stopped_by == signal.SIGINT
