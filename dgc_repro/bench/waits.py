"""Count how often the host waits for what a GPU still has to do: for events, streams and devices.

torch itself reports the other waits, reads of values and copies that block
(`torch.cuda.set_sync_debug_mode`). `Counting` (bench/counting.py) counts both kinds on fake tensors, where
there is no GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch


@contextmanager
def event_waits() -> Iterator[list[str]]:
    """Inside, each wait of any thread of this process joins the list: ``event``, ``stream`` or ``device``.
    A wait for an event or a stream that is over already is none."""
    found: list[str] = []

    def counted(name: str, wait: Callable[..., Any]) -> Callable[..., Any]:
        def waits(*given: Any, **named: Any) -> Any:
            if name == "device" or not given[0].query():
                found.append(name)
            return wait(*given, **named)

        return waits

    with ExitStack() as inside:
        for owner, name in (
            (torch.cuda.Event, "event"),
            (torch.cuda.Stream, "stream"),
            (torch.cuda, "device"),
        ):
            wait = counted(name, owner.synchronize)
            inside.enter_context(patch.object(owner, "synchronize", wait))
        yield found
