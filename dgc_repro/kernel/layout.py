"""Where the parts of the tensors of a batch lie in the buffer in which they travel.

Tensor after tensor, part after part, each at a multiple of its element size; the buffer is filled up to
a multiple of 8 bytes. A part is a stretch of one element type, such as the scales of a tensor, or its codes.
"""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from dgc_repro.kernel.batch import Batch, integers

Kind = tuple[int, torch.dtype]  # length and type of a part
FILL = 8  # bytes


class Layout(ABC):
    """``sizes``: values of each tensor; ``bits``: of a coded value, without scales and levels; ``kinds``: of
    the parts of each tensor, wider types first; ``starts``: where these begin, in bytes; ``end``: where the
    last one ends; ``size``: of the buffer. Layouts repeat in each step: make them in a function with a
    cache."""

    def __init__(
        self, sizes: tuple[int, ...], bits: int, kinds: Sequence[tuple[Kind, ...]]
    ) -> None:
        self.sizes = sizes
        self.bits = bits
        self.kinds = tuple(kinds)
        starts: list[tuple[int, ...]] = []
        end = 0
        for parts in self.kinds:
            here = []
            for length, dtype in parts:
                here.append(-(-end // dtype.itemsize) * dtype.itemsize)
                end = here[-1] + length * dtype.itemsize
            starts.append(tuple(here))
        self.starts = tuple(starts)
        self._at = [integers(of_part) for of_part in zip(*starts, strict=True)]
        self.end = end
        self.size = -(-end // FILL) * FILL

    def of(self, part: int) -> ctypes.Array[ctypes.c_int64]:
        """Where this part of each tensor begins, in bytes, as an argument of a C function."""
        return self._at[part]

    def bytes_of(self, tensor: int) -> int:
        """What the parts of a tensor take, without filling."""
        return sum(length * dtype.itemsize for length, dtype in self.kinds[tensor])

    def views(self, buffer: Tensor, tensor: int) -> list[Tensor]:
        """The parts of a tensor. buffer: u8[size]."""
        return [
            buffer[start : start + length * dtype.itemsize].view(dtype)
            for start, (length, dtype) in zip(self.starts[tensor], self.kinds[tensor], strict=True)
        ]

    @abstractmethod
    def decode(
        self, x: Batch, buffers: Sequence[Tensor], weight: float, *, accumulate: bool
    ) -> None:
        """x = or += the sum of weight * decoded over buffers of this layout, in their order."""

    def put(self, buffer: Tensor, values: Tensor) -> None:
        """Write the first parts of all tensors, which are float32. buffer: u8[size]; values: f32, one part
        after another."""
        buffer.view(torch.float32).index_copy_(0, _elements(self, buffer.device), values)


@lru_cache(maxsize=64)
def _elements(layout: Layout, device: torch.device) -> Tensor:
    """The places of the first parts in a float32 view of the buffer: i64[their lengths together]."""
    return torch.tensor(
        [
            starts[0] // 4 + i
            for starts, kinds in zip(layout.starts, layout.kinds, strict=True)
            for i in range(kinds[0][0])
        ],
        dtype=torch.int64,
        device=device,
    )
