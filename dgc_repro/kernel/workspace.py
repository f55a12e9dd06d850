"""Buffers that are made once and used again each step.

A fresh large tensor costs 3.5 to 6.5 times a copy: page faults. A workspace holds no state: it
can be thrown away between steps, and no checkpoint contains it.
"""

from __future__ import annotations

from collections.abc import Hashable

import torch
from torch import Tensor


def at_a_time(device: torch.device) -> int:
    """How many values to work on at once: on a CPU so few that their copies (i32, f64) stay in its cache, on
    a GPU so many that launches take little of the time."""
    return 1 << 24 if device.type == "cuda" else 1 << 18


class Workspace:
    """The buffers of one worker, by name."""

    def __init__(self) -> None:
        self._scratch: dict[Hashable, Tensor] = {}

    def scratch(self, key: Hashable, size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """A 1-d buffer of ``size`` elements whose content is undefined. One of bytes holds zeros, or what an
        earlier step has left in it: bytes travel with gaps that nobody writes, and what
        lay in the process's memory must not be sent in them."""
        buffer = self._scratch.get(key)
        if (
            buffer is None
            or buffer.numel() < size
            or buffer.dtype != dtype
            or buffer.device != device
        ):
            make = torch.zeros if dtype == torch.uint8 else torch.empty
            buffer = self._scratch[key] = make(size, dtype=dtype, device=device)
        return buffer if buffer.numel() == size else buffer[:size]
