"""Start the ranks of a run on this machine and see them through.

torchrun starts one process a worker; a simulated run is one process. Ctrl-C and SIGTERM reach this
process alone (the ranks live in a session of their own) and are passed on as SIGTERM: the ranks
agree on a step, write a checkpoint and end.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from filelock import FileLock, Timeout

from dgc_repro.errors import UserError
from dgc_repro.launch.environment import threads_of_worker
from dgc_repro.launch.hang_report import NO_ANSWER
from dgc_repro.launch.parent import end_with_parent
from dgc_repro.launch.worker import ERROR_FILE, FAILURE_FILE
from dgc_repro.train.checkpoint import steps_saved

LOG_FILE, LOCK_FILE = "launch.log", "lock"
SHUTDOWN_TIMEOUT_S = 600
LOOK_EVERY_SECONDS = 0.2
LEFT_BEHIND_SECONDS = (
    5.0  # that ranks have to end by themselves when one has said why the run failed
)
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class RunFailed(RuntimeError):
    """A rank died, did not come, or ended with a traceback; the message says which and where to read."""


class RunStopped(Exception):
    """The user stopped the run; ``signal_number`` says how. The same command continues it."""

    def __init__(self, signal_number: int, *, has_checkpoint: bool) -> None:
        super().__init__(
            "stopped after a checkpoint; the same command continues"
            if has_checkpoint
            else "stopped before the first checkpoint; the same command starts again"
        )
        self.signal_number = signal_number


SeeThrough = Callable[[list[str], IO[bytes], Mapping[str, str], Path], tuple[int | None, int]]


def execute(config: Mapping[str, Any], folder: Path, see_through: SeeThrough | None = None) -> None:
    """Run to the end. Raises UserError, RunFailed or RunStopped.

    ``see_through``: starts the ranks in a way of its own and waits for them, in the place of torchrun
    (launch/netlab.py); given the command of a rank.
    """
    launch = config["launch"]
    command = [sys.executable]
    if launch["kind"] != "simulated" and see_through is None:
        # A rank hears of a stop between two steps, and an evaluation lies between some of them.
        command += ["-m", "torch.distributed.run", "--standalone"]
        command += [f"--nproc-per-node={launch['workers']}"]
        command += [f"--shutdown-timeout={SHUTDOWN_TIMEOUT_S}"]
    command += ["-m", "dgc_repro", "worker", str(folder)]
    threads = {"OMP_NUM_THREADS": str(threads_of_worker(launch))}
    environment = os.environ | threads | {"PYTHONUNBUFFERED": "1"}
    with held(folder) as log:
        stopped_by, code = (see_through or _see_through)(command, log, environment, folder)
    raise_unless_finished(folder, stopped_by, code)


@contextlib.contextmanager
def held(folder: Path) -> Iterator[IO[bytes]]:
    """Hold the lock of a run folder, and remove what the last start said of its failure; gives the log.
    Raises UserError where another process writes the run."""
    lock = FileLock(folder / LOCK_FILE, timeout=0)
    try:
        lock.acquire()
    except Timeout as error:
        raise UserError(
            f"paths.runs: {folder} is being written by another process; wait for it, or give another "
            "paths.runs"
        ) from error
    try:
        with (folder / LOG_FILE).open("wb") as log:
            for name in (ERROR_FILE, FAILURE_FILE):
                (folder / name).unlink(missing_ok=True)
            yield log
    finally:
        lock.release()


def raise_unless_finished(folder: Path, stopped_by: int | None, code: int) -> None:
    """Raise what a run that did not finish ends with: UserError, RunStopped or RunFailed."""
    if (folder / ERROR_FILE).is_file():
        raise UserError((folder / ERROR_FILE).read_text(encoding="utf-8").strip())
    if stopped_by is not None:
        raise RunStopped(stopped_by, has_checkpoint=last_checkpoint(folder) is not None)
    if code != 0:
        raise RunFailed(what_failed(folder, code))


def _see_through(
    command: list[str], log: IO[bytes], environment: Mapping[str, str], folder: Path
) -> tuple[int | None, int]:
    """Start the ranks and wait for them. The signal that stopped them, or None; the exit code."""
    started: list[subprocess.Popen[bytes]] = []
    with passed_on(started) as caught:
        process = subprocess.Popen(
            command,
            stderr=log,
            env=environment,
            start_new_session=True,
            # Two system calls, nothing that locks.
            preexec_fn=functools.partial(end_with_parent, parent=os.getpid()),  # noqa: PLW1509
        )
        started.append(process)
        if caught:  # between the two lines above
            process.send_signal(signal.SIGTERM)
        _wait(process, folder)
    return (caught[0] if caught else None), process.returncode


@contextlib.contextmanager
def passed_on(started: Sequence[subprocess.Popen[bytes]]) -> Iterator[list[int]]:
    """While inside, what would stop this process reaches those that it has started, as SIGTERM. Gives
    the signals that came."""
    caught: list[int] = []

    def pass_on(number: int, frame: object) -> None:
        caught.append(number)
        # Once: a second signal would interrupt torchrun while it sees its ranks to their end.
        if len(caught) == 1:
            for process in started:
                process.send_signal(signal.SIGTERM)

    before = {number: signal.signal(number, pass_on) for number in PASSED_ON}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait(process: subprocess.Popen[bytes], folder: Path) -> None:
    """Until it has ended. Once a rank has said why the run failed, ranks that hang or are stopped, and
    do not hear torchrun's SIGTERM, are killed."""
    failed_at: float | None = None
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(LOOK_EVERY_SECONDS)
            return
        if failed_at is None and (folder / FAILURE_FILE).is_file():
            failed_at = time.monotonic()
        if failed_at is not None and time.monotonic() > failed_at + LEFT_BEHIND_SECONDS:
            for child in _children(process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)


def _children(parent: int) -> Iterator[int]:
    """Process ids of what a process has started and not yet heard the end of (Linux)."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            # "pid (name) state ppid ...": a name may hold spaces and brackets
            if int(path.read_text().rpartition(")")[2].split()[1]) == parent:
                yield int(path.parent.name)


def what_failed(folder: Path, code: int) -> str:
    """One line: what a rank said, or torchrun; which rank was killed; how to go on; where to read."""
    log = folder / LOG_FILE
    killed = _killed(log)
    try:
        line = (folder / FAILURE_FILE).read_text(encoding="utf-8").strip()
    except OSError:  # nobody was left to say anything
        line = _reason(log)
        if code < 0:
            line = f"the process was killed by {_signal_name(-code)}"
        elif killed:
            line = "no rank is left"
    if killed:
        line = line.replace(NO_ANSWER, "")
        line += f"; {', '.join(f'rank {r} was killed by {name}' for r, name in killed.items())}"
        if "SIGKILL" in killed.values():
            line += " (by hand, or by the system for want of memory)"
    last = last_checkpoint(folder)
    kept = "no checkpoint yet" if last is None else f"the checkpoint of step {last} is kept"
    goes_on = "starts again" if last is None else "continues from it"
    return (
        f"{line}; {kept}, the same command {goes_on} "
        f"(exit code {abs(code)}; the whole story is in {log})"
    )


def last_checkpoint(folder: Path) -> int | None:
    """The step of the newest checkpoint in a run folder."""
    return max(steps_saved(folder), default=None)


def _killed(log: Path) -> dict[int, str]:
    """The rank that a signal ended, and its name, from torchrun's report."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    # Its root cause alone: what ends behind that one may have been killed for it.
    cause = text.rpartition("Root Cause (first observed failure):")[2]
    found = re.findall(r"rank\s*: (\d+) \(local_rank: \d+\)\s*exitcode\s*: -(\d+) ", cause)
    return {int(rank): _signal_name(int(number)) for rank, number in found}


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


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
