"""Labs for tests: whether this machine can have one, and what may be left of one."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dgc_repro.errors import UserError
from dgc_repro.network.lab import MARK, Lab


@functools.cache
def _refusal() -> str | None:
    try:
        with Lab([1e9]):
            return None
    except UserError as error:
        return str(error)


def need_a_lab() -> None:
    """Skip, with the reason, where a lab cannot be made."""
    if (reason := _refusal()) is not None:
        pytest.skip(reason)


def processes_of(lab: str) -> list[int]:
    """What carries a lab's id and is not dead."""
    return [pid for pid, found in _marked() if found == lab]


def namespaces_of(owner: int) -> set[str]:
    """The network namespaces of all labs that a process has made, by what still runs in them. (Of all
    there are on the machine some may be other people's.)"""
    found = set()
    for pid, lab in _marked():
        if lab.split("-")[2] == str(owner):
            with contextlib.suppress(OSError):
                found.add(os.readlink(f"/proc/{pid}/ns/net"))
    return found


def _marked() -> Iterator[tuple[int, str]]:
    start = f"{MARK}=".encode()
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            pairs = path.read_bytes().split(b"\0")
        except OSError:
            continue
        for pair in pairs:
            if pair.startswith(start):
                yield int(path.parent.name), pair[len(start) :].decode()
