"""Whether this process is a rank, when it ends with the process that started it, and its priority (Linux).

Imports the standard library alone, so that it can be called before torch is loaded, which takes seconds.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from pathlib import Path

OWN_TARGETS = "DGC_REPRO_TARGETS"
"""Environment variable with the components outside this package that a command line names. Ranks import no
others: the config in a run folder is data."""
SUBMITTED = "submitted"
"""``python -m dgc_repro submitted <run folder>``, as a rank, trains what the folder's config says."""
STARTED_BY = "DGC_REPRO_STARTED_BY"  # process id of the launcher, for its ranks
AUTOGROUP = Path("/proc/self/autogroup")
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_PRCTL = ctypes.CDLL(None).prctl if sys.platform == "linux" else None


def end_with_parent(number: int = signal.SIGTERM, parent: int | None = None) -> None:
    """Have the kernel send this process ``number`` when its parent ends. ``parent``: the parent's process
    id, where it is known: a parent that ended before this call then counts too."""
    if _PRCTL is None:
        return
    _PRCTL(_PR_SET_PDEATHSIG, number)
    if parent is not None and os.getppid() != parent:
        os.kill(os.getpid(), number)


def inside_torchrun() -> bool:
    """Whether this process is a rank that torchrun started, or a person with torchrun's variables."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


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
