"""A rank of a run, whoever has started it: it ends with its starter, trains, and says why it has failed.

A rank calls `end_with_starter` before it loads torch, which takes seconds: torch is imported inside `work`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TextIO

from dgc_repro.errors import UserError, full_disk, one_line
from dgc_repro.files import replace
from dgc_repro.launch.ranks import (
    DISK_FULL,
    ERROR_FILE,
    FAILED,
    FAILURE_FILE,
    STARTED_BY,
    USER_ERROR,
    RankFailed,
    StopSignals,
    Superseded,
    leave_line,
    refuse_superseded,
)

if TYPE_CHECKING:
    from dgc_repro.launch.rendezvous import Rendezvous

AUTOGROUP = Path("/proc/self/autogroup")
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_PRCTL = ctypes.CDLL(None).prctl if sys.platform == "linux" else None


def inside_torchrun() -> bool:
    """Whether this process is a rank that torchrun started, or a person with torchrun's variables."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def end_with_parent(number: int = signal.SIGTERM, parent: int | None = None) -> None:
    """Have the kernel (Linux) send this process ``number`` when its parent ends. ``parent``: the parent's
    process id, where it is known: a parent that ended before this call then counts too."""
    if _PRCTL is None:
        return
    _PRCTL(_PR_SET_PDEATHSIG, number)
    if parent is not None and os.getppid() != parent:
        os.kill(os.getpid(), number)


def end_with_starter() -> None:
    """Have a rank end with the process that started it. Our launcher's ranks get SIGTERM and write a
    checkpoint. A rank of torchrun is killed with its agent, which alone could stop or restart it: a rank that
    stayed could meet the next start of the same run in the same folder."""
    if starter := os.environ.pop(STARTED_BY, ""):  # a process that a rank starts is no rank
        end_with_parent(signal.SIGTERM, int(starter))
    elif "TORCHELASTIC_RUN_ID" in os.environ:
        end_with_parent(signal.SIGKILL)


def lower_session() -> None:
    """Give the session that a launcher has started for this rank the niceness of the rank. Where the kernel
    shares the cores among sessions first (``sched_autogroup``), a process is nice to those of its own session
    alone."""
    niceness = os.nice(0)
    if niceness > 0 and os.getsid(0) == os.getpid():
        with contextlib.suppress(OSError):  # another kernel, or no right to it
            AUTOGROUP.write_text(str(niceness), encoding="ascii")


def work(
    folder: Path,
    log: TextIO,
    rendezvous: Rendezvous | None = None,
    stop: StopSignals | None = None,
) -> tuple[int, bool]:
    """Train as a rank (`worker.run_worker`). Return the exit code, and whether this rank was the first to say
    why the run failed: errors are left in the folder and in the log."""
    try:
        from dgc_repro.launch.worker import run_worker  # torch, which takes seconds

        return run_worker(folder, rendezvous, stop, log), False
    except Superseded:
        return FAILED, False
    except UserError as error:
        with contextlib.suppress(OSError, Superseded):  # rank 0 may have removed a refused run
            refuse_superseded(folder)
            replace(folder / ERROR_FILE, f"{error}\n".encode())
        if rendezvous is not None:
            rendezvous.refuse(str(error))
        code, traced, is_first = USER_ERROR, f"error: {error}\n", False
    except Exception as error:
        cause = error.__cause__ if isinstance(error, RankFailed) else error
        traced = "".join(traceback.format_exception(cause))
        code = DISK_FULL if full_disk(cause, folder) else FAILED
        line = str(error) if isinstance(error, RankFailed) else one_line(error)
        is_first = False
        with contextlib.suppress(Superseded):
            refuse_superseded(folder)
            is_first = leave_line(folder / FAILURE_FILE, line)
    with contextlib.suppress(OSError):  # a full disk; a buffer would try again at the end
        os.write(log.fileno(), traced.encode())
    return code, is_first


def leave(code: int) -> NoReturn:
    """End this rank, not through the interpreter's end: a peer may hang in a collective, and gloo's threads
    now and then abort a process that destroys its group (plain DDP: 5 of 45 runs), finished or not."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # a full disk
            stream.flush()
    os._exit(code)
