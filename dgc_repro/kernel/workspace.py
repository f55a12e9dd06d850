"""Buffers that are made once and used again each step.

A fresh large tensor costs 3.5 to 6.5 times a copy: page faults. A workspace holds no state: it
can be thrown away between steps, and no checkpoint contains it.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

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
        self._spares: dict[tuple[str, ...], tuple[Tensor, Tensor]] = {}
        self.shaped: dict[tuple[str, ...], Any] = {}  # views of buffers (exchange/drive.py)
        self._lists: dict[tuple[str, ...], list[tuple[Tensor, Tensor]]] = {}

    def scratch(self, key: Hashable, size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """A 1-d buffer of ``size`` elements whose content is undefined. One of bytes holds zeros, or what an
        earlier step has left in it: bytes travel with gaps that nobody writes (exchange/packing.py), and what
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

    def storages(self) -> set[int]:
        """Where the 1-d buffers lie: the addresses of their storages."""
        return {buffer.untyped_storage().data_ptr() for buffer in self._scratch.values()}

    def spare(self, key: tuple[str, ...], current: Tensor) -> Tensor:
        """The other buffer of a pair: shaped as ``current``, never ``current`` itself."""
        pair = self._spares.get(key)
        if pair is None or all(current is not one for one in pair):
            pair = self._spares[key] = (current, torch.empty_like(current))
        return pair[1] if current is pair[0] else pair[0]

    def spares(self, key: tuple[str, ...], current: Sequence[Tensor]) -> list[Tensor]:
        """The same for a list of tensors."""
        pairs = self._lists.setdefault(key, [])
        pairs += [(tensor, torch.empty_like(tensor)) for tensor in current[len(pairs) :]]
        found = []
        for i, tensor in enumerate(current):
            one, other = pairs[i]
            if tensor is not one and tensor is not other:
                one, other = pairs[i] = (tensor, torch.empty_like(tensor))
            found.append(other if tensor is one else one)
        return found
