"""Where the parts of the tensors of a batch lie in the buffer in which they travel.

Tensor after tensor, part after part, each at a multiple of its element size; the buffer is filled up to
a multiple of 8 bytes. A part is a stretch of one element type, such as the scales of a tensor, or its codes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dgc_repro.kernel.cached import few

Kind = tuple[int, torch.dtype]  # length and type of a part
Numbers = npt.NDArray[np.int64]
FILL = 8  # bytes


class Layout:
    """``sizes``: values of each tensor; ``parts``: of each part its length in every tensor (None: this part
    is left out) and its type, wider types first; ``floats``: size of each tensor in the papers' unit (bits of
    its values / 32).

    ``lengths`` and ``starts``: i64[parts, tensors], the latter in bytes; ``tensor_bytes``: of the parts of
    each tensor; ``end``: where the last part ends; ``size``: of the buffer. Layouts repeat in each step:
    make them in a function with a cache. Lengths may have an axis of workers before that of tensors: then
    this is the layout of each worker (`end` and `size` are lists)."""

    def __init__(
        self,
        sizes: tuple[int, ...],
        parts: Sequence[tuple[Numbers | Sequence[int] | None, torch.dtype]],
        floats: npt.NDArray[np.float64],
    ) -> None:
        self.sizes = sizes
        self.floats = floats
        self.present = [i for i, (length, _) in enumerate(parts) if length is not None]
        self.dtypes = [dtype for _, dtype in parts]
        none = np.zeros_like(parts[self.present[0]][0])
        self.lengths = np.array([none if n is None else n for n, _ in parts], dtype=np.int64)
        widths = np.array([dtype.itemsize for dtype in self.dtypes])
        taken = (self.lengths.T * widths).T
        self.tensor_bytes: Numbers = taken.sum(0)
        filled = _up_to(self.tensor_bytes, self.dtypes[self.present[0]].itemsize)
        first = np.cumsum(filled, -1) - filled
        self.starts: Numbers = first + np.cumsum(taken, 0) - taken
        end = (first + self.tensor_bytes).max(-1, initial=0)
        self.end: int = end.tolist()
        self.size: int = _up_to(end, FILL).tolist()

    @cached_property
    def kinds(self) -> list[tuple[Kind, ...]]:
        """Lengths and types of the parts of each tensor."""
        columns = [[(n, self.dtypes[i]) for n in self.lengths[i].tolist()] for i in self.present]
        return list(zip(*columns, strict=True))

    def of(self, part: int) -> int:
        """Where this part of each tensor begins, in bytes, as an argument of a C function."""
        address: int = self.starts[part].ctypes.data
        return address

    def view(self, buffer: Tensor, tensor: int, part: int) -> Tensor:
        """One part of a tensor. buffer: u8[size]."""
        dtype = self.dtypes[part]
        size = int(self.lengths[part, tensor]) * dtype.itemsize
        start = (
            int(self.starts[part, tensor]) if size else 0
        )  # of an empty part it may be unaligned
        return buffer[start : start + size].view(dtype)

    def views(self, buffer: Tensor, tensor: int) -> list[Tensor]:
        """The parts of a tensor that are not left out. buffer: u8[size]."""
        return [self.view(buffer, tensor, part) for part in self.present]

    def put(self, buffer: Tensor, values: Tensor) -> None:
        """Write the first parts of all tensors, which are float32. buffer: u8[size]; values: f32, one part
        after another."""
        buffer.view(torch.float32).index_copy_(0, _elements(self, buffer.device), values)


def _up_to(numbers: Numbers, multiple: int) -> Numbers:
    return -(-numbers // multiple) * multiple


@few
def _elements(layout: Layout, device: torch.device) -> Tensor:
    """The places of the first parts in a float32 view of the buffer: i64[their lengths together]."""
    lengths = layout.lengths[0]
    before = np.cumsum(lengths) - lengths
    places = np.repeat(layout.starts[0] // 4 - before, lengths) + np.arange(lengths.sum())
    return torch.from_numpy(places).to(device)
