"""Start the ranks of a run on this machine and wait for them: a process for each worker, of ``launch=netlab``
in a network namespace of its own. A simulated run takes place in this process.

Ctrl-C, SIGTERM and SIGHUP reach this process alone (each rank has a session of its own) and are passed on as
SIGTERM: the ranks agree on a step, write a checkpoint and end. Why torch's `elastic_launch` is not used:
docs/architecture.md, "When a rank is lost".
"""

from __future__ import annotations

import contextlib
import functools
import gc
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from filelock import FileLock, Timeout

from dgc_repro.errors import DiskFull, UserError
from dgc_repro.launch.environment import threads, threads_of_worker
from dgc_repro.launch.parent import STARTED_BY

if TYPE_CHECKING:
    from dgc_repro.network.lab import Lab

FINISHED, FAILED, USER_ERROR, STOPPED, DISK_FULL = 0, 1, 2, 3, 4  # exit codes of a rank
ERROR_FILE, FAILURE_FILE = "error.txt", "failure.txt"  # the line of a user's error, of another one
LOG_FILE, LOCK_FILE = "launch.log", "lock"
HAS_STORE = "TORCHELASTIC_USE_AGENT_STORE"  # "True" where torchrun or our launcher hosts the store
LAB_PORT = 29500  # of the store on worker 0: in a namespace of its own all ports are free
POLL_SECONDS = 0.05
STOP_SECONDS = 600  # for the last step and its checkpoint after a stop signal
KILL_AFTER_SECONDS = 15.0  # what the other ranks have to say why and to end, once a rank has failed
KILLING_SIGNAL = 3  # the third stop signal kills the ranks
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class RunFailed(RuntimeError):
    """A rank died, did not come, or ended with a traceback; the message says which and where to read."""


class RunHeld(UserError):
    """Another process writes the run."""


class RunStopped(Exception):
    """The user stopped the run; ``signal_number`` says how. The same command continues it."""

    def __init__(self, signal_number: int, *, has_checkpoint: bool) -> None:
        super().__init__(
            "stopped after a checkpoint; the same command continues"
            if has_checkpoint
            else "stopped before the first checkpoint; the same command starts again"
        )
        self.signal_number = signal_number


def say_stopping() -> None:
    """Say that a stop signal was received. Not by print, which the signal may have interrupted."""
    with contextlib.suppress(OSError):
        os.write(
            sys.__stdout__.fileno() if sys.__stdout__ else 1,
            b"stopping after this step and a checkpoint; a third signal ends the run at once\n",
        )


class Ranks:
    """The processes of a run."""

    def __init__(
        self, folder: Path, log: TextIO, workers: int, store: Any = None, lab: Lab | None = None
    ) -> None:
        """``store``: a TCPStore for the rendezvous; ``lab``: where the ranks are, and rank 0 hosts the store.
        Neither: a single process."""
        self.folder = folder
        self.log = log
        self.workers = workers
        self.store = store
        self.lab = lab
        self.processes: list[subprocess.Popen[bytes]] = []
        self.stopped_by: int | None = None
        self.num_stops = 0
        self.kill_at = math.inf
        self.failed: tuple[int, int] | None = None  # the rank that failed first, its exit code

    def _start(self, rank: int, command: Sequence[str], environment: Mapping[str, str]) -> None:
        place = {STARTED_BY: str(os.getpid())}
        popen: Callable[..., subprocess.Popen[bytes]] = subprocess.Popen
        if self.lab is not None:
            popen = functools.partial(self.lab.popen, rank)
        if self.lab is not None or self.store is not None:  # as torchrun does for one machine
            place |= dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank))
            place |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(self.workers))
            place["MASTER_ADDR"] = self.lab.address(0) if self.lab else "127.0.0.1"
            place["MASTER_PORT"] = str(LAB_PORT if self.lab else self.store.port)
            place[HAS_STORE] = str(self.lab is None)
        self.processes.append(
            popen(
                command,
                env={**environment, **place},
                stdin=subprocess.DEVNULL,
                stderr=self.log,
                start_new_session=True,
            )
        )

    def _links_are_whole(self) -> bool:
        """Whether no namespace of the lab is lost; `FAILURE_FILE` says which."""
        if self.lab is None or (lost := self.lab.lost()) is None:
            return True
        reason = f"the process that held the namespace of {lost} was ended"
        leave_line(self.folder / FAILURE_FILE, f"the lab has lost links: {reason}")
        return False

    def run(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start all ranks and wait until all have ended. A stop signal goes to all of them; after it our
        handlers stay in place, and the caller is expected to end."""
        before = {number: signal.signal(number, self._stop) for number in STOP_SIGNALS}
        try:
            for rank in range(self.workers):
                if not self.num_stops:
                    self._start(rank, command, environment)
            if self.num_stops:  # perhaps between a start and its entry in the list
                self._signal(signal.SIGTERM)
            self._wait()
        finally:
            self._signal(signal.SIGKILL)
            for process in self.processes:
                process.wait()
            if not self.num_stops:  # another one must not end this process before it reports a stop
                for number, handler in before.items():
                    signal.signal(number, handler)

    def ended(self) -> str:
        """How the rank that failed first ended, in words; empty where none failed."""
        if self.failed is None:
            return ""
        if any(process.poll() == DISK_FULL for process in self.processes):
            return str(DiskFull(self.folder))
        rank, code = self.failed
        who = f"rank {rank}" if self.workers > 1 else "the process"
        if code >= 0:
            return f"{who} ended with exit code {code}"
        known = -code in set(signal.Signals)
        name = signal.Signals(-code).name if known else f"signal {-code}"
        why = " (by hand, or by the system for lack of memory)" if name == "SIGKILL" else ""
        return f"{who} was killed by {name}{why}"

    def _stop(self, number: int, frame: object) -> None:
        """Ask the ranks to stop, once: at a second signal they may be writing their checkpoint. A third one
        kills them."""
        self.num_stops += 1
        if self.num_stops == 1:
            self.stopped_by = number
            self.kill_at = time.monotonic() + STOP_SECONDS
            self._signal(signal.SIGTERM)
            say_stopping()
        elif self.num_stops >= KILLING_SIGNAL:
            self.kill_at = 0.0

    def _wait(self) -> None:
        """Until all have ended. Once one has failed the others get SIGTERM, and SIGKILL where they hang."""
        is_ending = False
        while any(process.poll() is None for process in self.processes):
            time.sleep(POLL_SECONDS)
            can_go_on = self._links_are_whole()
            self.failed = self.failed or (self._failure() if can_go_on else None)
            if not is_ending and (self.failed or not can_go_on):
                is_ending = True
                self.kill_at = min(self.kill_at, time.monotonic() + KILL_AFTER_SECONDS)
                self._signal(signal.SIGTERM)
            if time.monotonic() > self.kill_at:
                self._signal(signal.SIGKILL)
        if not is_ending:
            self.failed = self._failure()

    def _failure(self) -> tuple[int, int] | None:
        """A rank that has failed and its exit code: one that was killed before those that miss it."""
        codes = [(rank, process.poll()) for rank, process in enumerate(self.processes)]
        failed = [(r, code) for r, code in codes if code not in (None, FINISHED, STOPPED)]
        return min(failed, key=lambda found: (found[1] >= 0, found[0]), default=None)

    def _signal(self, number: int) -> None:
        for process in self.processes:
            process.send_signal(number)  # which does nothing where it has ended


def execute(config: Mapping[str, Any], folder: Path, *, apart: bool = False) -> None:
    """Run to the end. ``apart``: a simulated run gets a process of its own.

    Raises UserError, RunFailed or RunStopped."""
    launch = config["launch"]
    kind, workers = launch["kind"], launch["workers"]
    if kind == "simulated" and not apart:
        _simulate(config, folder)
        return
    number = str(threads_of_worker(launch))  # joblib sets MKL's, which torch prefers
    own = {"OMP_NUM_THREADS": number, "MKL_NUM_THREADS": number, "PYTHONUNBUFFERED": "1"}
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(held(folder))
        if kind == "simulated":
            started = Ranks(folder, log, 1)
        elif kind == "netlab":
            from dgc_repro.launch.netlab import lab_of

            started = Ranks(folder, log, workers, lab=stack.enter_context(lab_of(config)))
        else:  # the store is in this process: when rank 0 is killed, the others can still report
            from dgc_repro.launch.rendezvous import hosted_store

            started = Ranks(folder, log, workers, hosted_store())
        started.run([sys.executable, "-m", "dgc_repro", "worker", str(folder)], os.environ | own)
    codes = {process.returncode for process in started.processes}
    stopped_by = started.stopped_by
    if STOPPED in codes and codes <= {FINISHED, STOPPED}:
        stopped_by = stopped_by or signal.SIGTERM  # sent to a rank; all have agreed to stop
    raise_unless_finished(folder, stopped_by, failed=codes != {FINISHED}, ended=started.ended())


def _simulate(config: Mapping[str, Any], folder: Path) -> None:
    """A simulated run, in this process: one after another costs no start of Python and torch. What it would
    leave to the next one is undone: threads, compiled code, memory, and signal handlers unless it was
    stopped. Seeds are set by each run."""
    import torch

    from dgc_repro.launch.worker import StopSignals, work

    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    stop = StopSignals(ends_at=KILLING_SIGNAL)
    with held(folder) as log, _errors_into(log), threads(threads_of_worker(config["launch"])):
        code, _ = work(folder, log, stop=stop)
    if config["train"]["compile"]:
        torch._dynamo.reset()
    gc.collect()
    if stop.number is None:
        for number, handler in before.items():
            signal.signal(number, handler)
    ended = str(DiskFull(folder)) if code == DISK_FULL else ""
    raise_unless_finished(folder, stop.number, failed=code != FINISHED, ended=ended)


@contextlib.contextmanager
def _errors_into(log: TextIO) -> Iterator[None]:
    """What this process, libraries in C included, writes to stderr goes to the log."""
    sys.stderr.flush()
    kept = os.dup(2)
    os.dup2(log.fileno(), 2)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # a full disk
            sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)


@contextlib.contextmanager
def held(folder: Path) -> Iterator[TextIO]:
    """Hold the lock of a run folder, and remove the errors of the last start; gives the log. Raises RunHeld
    where another process writes the run."""
    try:
        lock = FileLock(folder / LOCK_FILE).acquire(timeout=0)
    except Timeout as error:
        raise RunHeld(
            f"paths.runs: {folder} is being written by another process; wait for it, or give another "
            "paths.runs"
        ) from error
    with lock, (folder / LOG_FILE).open("w", encoding="utf-8") as log:
        for name in (ERROR_FILE, FAILURE_FILE):
            (folder / name).unlink(missing_ok=True)
        yield log


def raise_unless_finished(
    folder: Path, stopped_by: int | None, *, failed: bool, ended: str = ""
) -> None:
    """Raise UserError, RunStopped or RunFailed unless the run has finished."""
    if (folder / ERROR_FILE).is_file():
        raise UserError((folder / ERROR_FILE).read_text(encoding="utf-8").strip())
    if stopped_by is not None:
        raise RunStopped(stopped_by, has_checkpoint=last_checkpoint(folder) is not None)
    if failed:
        raise RunFailed(what_failed(folder, ended))


def what_failed(folder: Path, ended: str = "") -> str:
    """One line: the reason, how the first rank ``ended`` (in words), how to continue, and where to read."""
    log = folder / LOG_FILE
    killed = ended if "was killed" in ended else ""  # an exit code says less than a traceback
    reason = ""
    with contextlib.suppress(OSError):
        reason = (folder / FAILURE_FILE).read_text(encoding="utf-8").strip()
    if not reason and not killed:  # no rank could write it: the last line of a traceback
        lines = log.read_text(encoding="utf-8", errors="replace").split("\n")
        reason = next((line for line in reversed(lines) if line.strip()), ended)
    reason = "; ".join(filter(None, (reason, killed))) or "a rank ended without an error message"
    step = last_checkpoint(folder)
    next_start = (
        "no checkpoint yet, the same command starts again"
        if step is None
        else f"the checkpoint of step {step} is kept, the same command continues from it"
    )
    where = f" (tracebacks: {log})" if log.stat().st_size else ""
    return f"{reason}; {next_start}{where}"


def leave_line(path: Path, line: str) -> bool:
    """Write the file unless another rank has: the first reason is the cause. Whether this rank wrote it."""
    with contextlib.suppress(OSError), path.open("x", encoding="utf-8") as file:
        file.write(f"{line}\n")
        return True
    return False


def last_checkpoint(folder: Path) -> int | None:
    """The step of the newest checkpoint in a run folder."""
    from dgc_repro.train.checkpoint import steps_saved

    return max(steps_saved(folder), default=None)
