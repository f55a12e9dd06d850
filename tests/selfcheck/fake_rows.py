"""Rows that go wrong in every way, for test_command.py."""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Callable

from dgc_repro.selfcheck.rows import Checks, Mismatch, Skip


def checks(device: str) -> Checks:
    """Every case by its name; ``device`` lists them."""
    for name in device.split(","):
        yield name, CASES[name]
    return "all of them"


def good() -> str:
    print("a word of a case that passes")
    return "fine"


def skips() -> str:
    raise Skip("not on this machine")


def raises() -> str:
    raise ValueError("a value\nof two lines")


def differs() -> str:
    raise Mismatch("3 of 9 values differ")


def aborts() -> str:
    os.abort()


def faults() -> str:
    return str(ctypes.string_at(0))


def hangs() -> str:
    print("about to hang")
    time.sleep(1000)
    return ""


def leaves() -> str:
    sys.stdout.flush()
    os._exit(3)


def floods() -> str:
    for _ in range(3000):
        print("x" * 1000)
    raise Mismatch("after three megabytes")


def never_ends() -> str:
    while True:
        print("x" * 100_000)


def adds_up() -> str:
    """All ranks have met."""
    import torch.distributed as dist  # here: the other cases start without torch

    from dgc_repro.selfcheck.exchanges import joined

    with joined("gloo"):
        every: list[int] = [0] * dist.get_world_size()
        dist.all_gather_object(every, dist.get_rank())
    return f"ranks {every}"


def one_rank_aborts() -> str:
    import torch.distributed as dist

    from dgc_repro.selfcheck.exchanges import joined

    with joined("gloo"):
        if dist.get_rank() == 1:
            os.abort()
        dist.barrier()
    return ""


CASES: dict[str, Callable[[], str]] = {
    name: found
    for name, found in list(globals().items())
    if callable(found) and getattr(found, "__module__", "") == __name__ and name != "checks"
}
