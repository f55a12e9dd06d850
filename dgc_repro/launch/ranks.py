"""Start the ranks of a run, wait for them and end them: signals, exit codes, and why a run has failed.

The ranks of ``launch=local`` are processes, those of ``launch=netlab`` in a network namespace each. A
simulated run has one rank, which works in this process. torchrun and Slurm start ranks by themselves. What a
rank does is in rank_process.py. Why torch's `elastic_launch` is not used: docs/architecture.md, "When a rank
is lost".

Each of our ranks has a session of its own. Ctrl-C, SIGTERM and SIGHUP reach the launcher alone, which passes
them on as SIGTERM: the ranks agree on a step, write a checkpoint and end.

Torch is imported inside functions, because it takes seconds.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import gc
import math
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from dgc_repro.errors import DiskFull, UserError
from dgc_repro.files import appended, begun, ending, text
from dgc_repro.launch.environment import threads, threads_of_worker

if TYPE_CHECKING:
    from dgc_repro.network.lab import Lab
    from dgc_repro.train.run import Run

FINISHED, FAILED, USER_ERROR, STOPPED, DISK_FULL = 0, 1, 2, 3, 4  # exit codes of a rank
ERROR_FILE, FAILURE_FILE = "error.txt", "failure.txt"  # the line of a user's error, of another one
LOG_FILE, LOCK_FILE = "launch.log", "lock"
OWN_TARGETS = "DGC_REPRO_TARGETS"
"""Environment variable with the components outside this package that a command line names. Ranks import no
others: the config in a run folder is data."""
LAUNCH = "DGC_REPRO_LAUNCH"
"""Environment variable with the id of this launch of a run, which stands in the folder's lock file too."""
STARTED_BY = "DGC_REPRO_STARTED_BY"  # process id of the launcher, for its ranks
SUBMITTED = "submitted"
"""``python -m dgc_repro submitted <run folder>``, as a rank, trains what the folder's config says."""
HAS_STORE = "TORCHELASTIC_USE_AGENT_STORE"  # "True" where torchrun or our launcher hosts the store
LAB_PORT = 29500  # of the store on worker 0: in a namespace of its own all ports are free
POLL_SECONDS = 0.05
STOP_SECONDS = 600  # for the last step and its checkpoint after a stop signal
KILL_AFTER_SECONDS = 15.0  # what the other ranks have to say why and to end, once a rank has failed
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
KILLING_SIGNAL = 3  # the third stop signal kills the ranks
LOG_BYTES = 2**16  # of the end of a log that are searched for a reason


class RunFailed(RuntimeError):
    """A rank died, did not come, or ended with a traceback; the message says which and where to read."""


class RankFailed(RuntimeError):
    """This rank ended with an error that is no user's; the message is the line for the whole run."""


class RunHeld(UserError):
    """Another process writes the run."""


class Superseded(Exception):
    """Another launch has begun in the run folder of this rank, which ends without writing there."""


class Held(NamedTuple):
    """A run folder that this process has locked: the log of this launch, the descriptor of the lock, and the
    id of the launch."""

    log: TextIO
    lock: int
    launch: str


class RunStopped(Exception):
    """The user stopped the run; ``signal_number`` says how. The same command continues it."""

    def __init__(self, signal_number: int, *, has_checkpoint: bool) -> None:
        super().__init__(
            "stopped after a checkpoint; the same command continues"
            if has_checkpoint
            else "stopped before the first checkpoint; the same command starts again"
        )
        self.signal_number = signal_number


class StopSignals:
    """From `on`, the first stop signal to this process calls ``ask``. The second one changes nothing: ranks
    may be writing their checkpoint. The third one calls ``end``, where the signals come from the user and
    not from a launcher. After a stop the handlers stay, and the caller is expected to end."""

    def __init__(self, end: Callable[[int], None] | None = None) -> None:
        self.number: int | None = None  # of the first signal
        self._end = end
        self._count = 0
        self._before: dict[int, Any] = {}

    def on(self, ask: Callable[[], None]) -> None:
        """Begin to answer signals. SIGHUP: torchrun passes on what it was sent, a closed terminal too."""

        def received(number: int, frame: object) -> None:
            self._count += 1
            if self._count == 1:
                self.number = number
                ask()
                if self._end is not None:
                    _say_stopping()
            elif self._count >= KILLING_SIGNAL and self._end is not None:
                self._end(number)

        self._before = {number: signal.signal(number, received) for number in STOP_SIGNALS}

    def off(self) -> None:
        """Restore the handlers of before, unless there was a stop."""
        if self.number is None:
            for number, handler in self._before.items():
                signal.signal(number, handler)


def _say_stopping() -> None:
    """Say that a stop signal was received. Not by print, which the signal may have interrupted."""
    with contextlib.suppress(OSError):
        os.write(
            sys.__stdout__.fileno() if sys.__stdout__ else 1,
            b"stopping after this step and a checkpoint; a third signal ends the run at once\n",
        )


def ask_to_stop(run: Run) -> None:
    """Have a run stop after its step. The system ends the process if the step does not end."""
    run.stop_requested = True
    signal.alarm(STOP_SECONDS)


def end_by(number: int) -> None:
    """End this process by a signal."""
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)


# -- the launcher ----------------------------------------------------------------------------------


class Ranks:
    """The processes of a run. ``failed``: the rank that failed first, and its exit code."""

    def __init__(
        self,
        folder: Path,
        log: TextIO,
        workers: int,
        store: Any = None,
        lab: Lab | None = None,
        lock: int | None = None,
    ) -> None:
        """``store``: a TCPStore for the rendezvous; ``lab``: where the ranks are, and rank 0 hosts the store.
        Neither: a single process. ``lock``: the descriptor of a lock that lasts until the last rank has
        ended, however this launcher ends."""
        self.folder = folder
        self._inherited = [] if lock is None else [lock]
        self.log = log
        self.workers = workers
        self.store = store
        self.lab = lab
        self.processes: list[subprocess.Popen[bytes]] = []
        self.failed: tuple[int, int] | None = None
        self._kill_at = math.inf
        self._stop = StopSignals(self._kill)

    @property
    def stopped_by(self) -> int | None:
        """The first stop signal."""
        return self._stop.number

    def run(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start all ranks and wait until all have ended. A stop signal goes to all of them."""
        self._stop.on(self._ask)
        try:
            for rank in range(self.workers):
                if self.stopped_by is None:
                    self._start(rank, command, environment)
            if self.stopped_by is not None:  # perhaps between a start and its entry in the list
                self._signal(signal.SIGTERM)
            self._wait()
        finally:
            self._signal(signal.SIGKILL)
            for process in self.processes:
                process.wait()
            self._stop.off()

    def ended(self) -> str:
        """How the rank that failed first ended, in words; empty where none failed."""
        if self.failed is None:
            return ""
        rank, code = self.failed
        who = f"rank {rank}" if self.workers > 1 else "the process"
        if code >= 0:
            return f"{who} ended with exit code {code}"
        known = -code in set(signal.Signals)
        name = signal.Signals(-code).name if known else f"signal {-code}"
        why = " (by hand, or by the system for lack of memory)" if name == "SIGKILL" else ""
        return f"{who} was killed by {name}{why}"

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
                pass_fds=self._inherited,
                start_new_session=True,
            )
        )

    def _wait(self) -> None:
        """Until all have ended. Once one has failed the others get SIGTERM, and SIGKILL where they hang."""
        is_ending = False
        while any(process.poll() is None for process in self.processes):
            time.sleep(POLL_SECONDS)
            can_go_on = self._links_are_whole()
            self.failed = self.failed or (self._failure() if can_go_on else None)
            if not is_ending and (self.failed or not can_go_on):
                is_ending = True
                self._kill_at = min(self._kill_at, time.monotonic() + KILL_AFTER_SECONDS)
                self._signal(signal.SIGTERM)
            if time.monotonic() > self._kill_at:
                self._signal(signal.SIGKILL)
        if not is_ending:
            self.failed = self._failure()

    def _links_are_whole(self) -> bool:
        """Whether no namespace of the lab is lost; `FAILURE_FILE` says which."""
        if self.lab is None or (lost := self.lab.lost()) is None:
            return True
        reason = f"the process that held the namespace of {lost} was ended"
        leave_line(self.folder / FAILURE_FILE, f"the lab has lost links: {reason}")
        return False

    def _failure(self) -> tuple[int, int] | None:
        """A rank that has failed and its exit code: one that was killed before those that miss it."""
        codes = [(rank, process.poll()) for rank, process in enumerate(self.processes)]
        failed = [(r, code) for r, code in codes if code not in (None, FINISHED, STOPPED)]
        return min(failed, key=lambda found: (found[1] >= 0, found[0]), default=None)

    def _ask(self) -> None:
        self._kill_at = time.monotonic() + STOP_SECONDS
        self._signal(signal.SIGTERM)

    def _kill(self, number: int) -> None:
        self._kill_at = 0.0

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
        here = stack.enter_context(held(folder))
        if kind == "simulated":
            started = Ranks(folder, here.log, 1, lock=here.lock)
        elif kind == "netlab":
            from dgc_repro.launch.networks import lab_of

            lab = stack.enter_context(lab_of(config))
            started = Ranks(folder, here.log, workers, lab=lab, lock=here.lock)
        else:  # the store is in this process: when rank 0 is killed, the others can still report
            from dgc_repro.launch.rendezvous import hosted_store

            started = Ranks(folder, here.log, workers, hosted_store(), lock=here.lock)
        started.run([sys.executable, "-m", "dgc_repro", "worker", str(folder)], os.environ | own)
    codes = [process.returncode for process in started.processes]
    raise_unless_finished(folder, codes, started.stopped_by, started.ended(), here.launch)


def _simulate(config: Mapping[str, Any], folder: Path) -> None:
    """A simulated run, in this process: one after another costs no start of Python and torch. What it would
    leave to the next one is undone: threads, compiled code, memory, and signal handlers. Seeds are set by
    each run."""
    from dgc_repro.launch.rank_process import work

    stop = StopSignals(end_by)
    number = threads_of_worker(config["launch"])
    with held(folder) as here, _errors_into(here.log), threads(number):
        code, _ = work(folder, here.log, stop=stop)
    if config["train"]["compile"]:
        import torch

        torch._dynamo.reset()
    gc.collect()
    stop.off()
    raise_unless_finished(folder, [code], stop.number, launch=here.launch)


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
def held(folder: Path) -> Iterator[Held]:
    """Hold the lock of a run folder, and begin a launch: it gets an id, and the errors of the last one are
    removed. Raises RunHeld where another process writes the run.

    A child that inherits the descriptor keeps the lock until it has ended too (flock(2)): ranks whose
    launcher was killed still hold the folder.
    """
    path = folder / LOCK_FILE
    with appended(path) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            numbers = ", ".join(map(str, _holding(path)))
            raise RunHeld(
                f"paths.runs: {folder} is still being written by another process"
                + (f" (process id {numbers})" if numbers else "")
                + "; wait for it, end it, or give another paths.runs"
            ) from error
        launch = uuid.uuid4().hex
        lock.truncate(0)
        lock.write(launch)
        lock.flush()
        os.fsync(lock.fileno())  # other nodes look at it
        with _variable(LAUNCH, launch), begun(folder / LOG_FILE) as log:
            for name in (ERROR_FILE, FAILURE_FILE):
                (folder / name).unlink(missing_ok=True)
            yield Held(log, lock.fileno(), launch)


@contextlib.contextmanager
def _variable(name: str, value: str) -> Iterator[None]:
    """Set an environment variable, and put back what it was."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before


def _holding(path: Path) -> list[int]:
    """The processes of this user that have a file open (Linux); none where the system does not say."""
    file, found = str(path.resolve()), []
    for process in sorted(Path("/proc").glob("[0-9]*"), key=lambda one: int(one.name)):
        with contextlib.suppress(OSError):  # another user's, or it has ended
            if any(os.readlink(link) == file for link in (process / "fd").iterdir()):
                found.append(int(process.name))
    return [one for one in found if one != os.getpid()]


def launch_in(folder: Path) -> str:
    """Return the id of the newest launch in a run folder; empty where there was none."""
    with contextlib.suppress(OSError, ValueError):
        return text(folder / LOCK_FILE)
    return ""


def refuse_superseded(folder: Path) -> None:
    """Raise Superseded where another launch has begun in the folder. A rank calls it before it writes there:
    a lock does not reach ranks on other nodes, nor those that torchrun has started."""
    own, newest = os.environ.get(LAUNCH), launch_in(folder)
    if own and newest and own != newest:
        raise Superseded(f"another launch has begun in {folder}")


def raise_unless_finished(
    folder: Path,
    codes: Collection[int],
    stopped_by: int | None = None,
    ended: str = "",
    launch: str = "",
) -> None:
    """Raise UserError, RunStopped or RunFailed unless the run has finished. ``codes``: exit codes of its
    ranks; ``stopped_by``: the signal, where it is known; ``ended``: how the first rank ended, in words;
    ``launch``: its id, for a folder in which another launch may have begun since."""
    if launch and launch_in(folder) not in ("", launch):
        raise RunFailed(
            f"another launch has begun in {folder}; this one has ended without writing there"
        )
    if (folder / ERROR_FILE).is_file():
        raise UserError(text(folder / ERROR_FILE).strip())
    if STOPPED in codes and {*codes} <= {FINISHED, STOPPED}:
        stopped_by = stopped_by or signal.SIGTERM  # sent to one rank; all have agreed to stop
    if stopped_by is not None:
        raise RunStopped(stopped_by, has_checkpoint=last_checkpoint(folder) is not None)
    if {*codes} != {FINISHED}:
        raise RunFailed(what_failed(folder, str(DiskFull(folder)) if DISK_FULL in codes else ended))


def leave_line(path: Path, line: str) -> bool:
    """Write the file unless another rank has: the first reason is the cause. Whether this rank wrote it."""
    with contextlib.suppress(OSError), path.open("x", encoding="utf-8") as file:
        file.write(f"{line}\n")
        return True
    return False


def what_failed(folder: Path, ended: str = "") -> str:
    """One line: the reason, how the first rank ``ended`` (in words), how to continue, and where to read."""
    log = folder / LOG_FILE
    killed = ended if "was killed" in ended else ""  # an exit code says less than a traceback
    reason = ""
    with contextlib.suppress(OSError):
        reason = text(folder / FAILURE_FILE).strip()
    if not reason and not killed:  # no rank could write it: the last line of a traceback
        lines = ending(log, LOG_BYTES).decode("utf-8", errors="replace").split("\n")
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


def last_checkpoint(folder: Path) -> int | None:
    """The step of the newest checkpoint in a run folder."""
    from dgc_repro.train.checkpoint import steps_saved

    return max(steps_saved(folder), default=None)
