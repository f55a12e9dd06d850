"""Start the ranks of a run on this machine and see them through.

torchrun starts one process a worker; a simulated run is one process. Ctrl-C and SIGTERM reach this
process alone (the ranks live in a session of their own) and are passed on as SIGTERM: the ranks
agree on a step, write a checkpoint and end.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from filelock import FileLock, Timeout

from dgc_repro.errors import UserError
from dgc_repro.launch.environment import cores_at_hand
from dgc_repro.launch.worker import ERROR_FILE

LOG_FILE, LOCK_FILE = "launch.log", "lock"
SHUTDOWN_TIMEOUT_S = 600
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_PRCTL = ctypes.CDLL(None).prctl if sys.platform == "linux" else None


class RunFailed(RuntimeError):
    """A rank ended with a traceback; the message says where it lies."""


class RunStopped(Exception):
    """The user stopped the run; ``signal_number`` says how. The same command continues it."""

    def __init__(self, signal_number: int, *, has_checkpoint: bool) -> None:
        super().__init__(
            "stopped after a checkpoint; the same command continues"
            if has_checkpoint
            else "stopped before the first checkpoint; the same command starts again"
        )
        self.signal_number = signal_number


def execute(config: Mapping[str, Any], folder: Path) -> None:
    """Run to the end. Raises UserError, RunFailed or RunStopped."""
    launch = config["launch"]
    workers = launch["workers"]
    simulated = launch["kind"] == "simulated"
    processes = 1 if simulated else workers
    threads = launch["threads"] or max(1, cores_at_hand() // processes)
    command = [sys.executable]
    if not simulated:
        # A rank hears of a stop between two steps, and an evaluation lies between some of them.
        command += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={workers}"]
        command += [f"--shutdown-timeout={SHUTDOWN_TIMEOUT_S}"]
    command += ["-m", "dgc_repro.launch.worker", str(folder)]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1"}
    (folder / ERROR_FILE).unlink(missing_ok=True)
    lock = FileLock(folder / LOCK_FILE, timeout=0)
    try:
        with lock, (folder / LOG_FILE).open("wb") as log:
            stopped_by, code = _see_through(command, log, environment)
    except Timeout as error:
        raise UserError(
            f"paths.runs: {folder} is being written by another process; wait for it, or give another "
            "paths.runs"
        ) from error
    if (folder / ERROR_FILE).is_file():
        raise UserError((folder / ERROR_FILE).read_text(encoding="utf-8").strip())
    if stopped_by is not None:
        has_checkpoint = any((folder / "checkpoints").glob("step-*"))
        raise RunStopped(stopped_by, has_checkpoint=has_checkpoint)
    if code != 0:
        raise RunFailed(
            f"{_reason(folder / LOG_FILE)} (exit code {code}; "
            f"the whole story is in {folder / LOG_FILE})"
        )


def _see_through(
    command: list[str], log: IO[bytes], environment: Mapping[str, str]
) -> tuple[int | None, int]:
    """Start the ranks and wait for them. The signal that stopped them, or None; the exit code."""
    caught: list[int] = []
    started: list[subprocess.Popen[bytes]] = []

    def pass_on(number: int, frame: object) -> None:
        caught.append(number)
        # Once: a second signal would interrupt torchrun while it sees its ranks to their end.
        if len(caught) == 1 and started:
            started[0].send_signal(signal.SIGTERM)

    before = {number: signal.signal(number, pass_on) for number in PASSED_ON}
    try:
        process = subprocess.Popen(
            command,
            stderr=log,
            env=environment,
            start_new_session=True,
            preexec_fn=_end_with_parent,  # noqa: PLW1509  # one system call, nothing that locks
        )
        started.append(process)
        if caught:  # between the two lines above
            process.send_signal(signal.SIGTERM)
        process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return (caught[0] if caught else None), process.returncode


def _end_with_parent() -> None:
    """In the new process: be told to stop when the one that started it is gone, however it ended."""
    if _PRCTL is not None:
        _PRCTL(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _reason(log: Path) -> str:
    """The line of the first traceback that says what went wrong."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    inside = False
    for line in lines:
        text = line.split("]: ", 1)[-1]
        if "Traceback (most recent call last)" in text:
            inside = True
        elif inside and text and not text.startswith((" ", "\t")):
            return text
    return lines[-1] if lines else "a rank ended without a word"
