"""Random rotations of the blocks of a batch, and where their quantized entries lie in a payload.

A tensor is cut into blocks of ``block`` values. The last block is shorter: it is filled up with zeros to a
power of two, 32 at least. A rotation flips the signs of a block's values at random and applies the
Walsh-Hadamard transform. Its signs are a hash of the tensor's key and of the place, so nothing is drawn or
stored. A transform is made of sums in a fixed order: all devices have the same bits. It is written here
without its factor d^-1/2, so that its square is d.

Letters: d = values of a block, b = bits of an entry.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dgc_repro.kernel import counter, native
from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.cached import cached
from dgc_repro.kernel.layout import Layout

SHORTEST = 32  # values of a block: a hash has 32 signs
KEYS, SCALES, CODES = range(3)
"""The parts of a tensor's payload: i32[1] where keys travel, f32[blocks], u8[d b / 8 of all blocks]."""
_TURN = 28  # bits of the number of a hash, below the number of the rotation
_SIGN = -(1 << 31)

_hadamard = native.Function("dgc_hadamard")
_nearest_levels = native.Function("dgc_nearest_levels")


class Segment(NamedTuple):
    """Blocks of equal length of one tensor. ``start``, ``length``: which of its values; ``block``: the
    number of the first of its blocks; ``code``: the byte where its codes begin among those of the tensor."""

    tensor: int
    start: int
    length: int
    rows: int
    block: int
    code: int


class RotatedLayout(Layout):
    """Of a batch: key, scales and codes of each tensor. ``block``: a power of two, 32 at least; ``travels``:
    whether keys do. ``groups``: the segments of each length of block."""

    def __init__(self, sizes: tuple[int, ...], block: int, bits: int, travels: bool) -> None:
        self.bits, self.travels = bits, travels
        n = np.array(sizes, dtype=np.int64)
        whole, rest = n // block, n % block
        last = np.array([_filled_up(int(left)) for left in rest], dtype=np.int64)
        entries = whole * block + last
        keys = np.minimum(n, 1) if travels else None
        parts = [
            (keys, torch.int32),
            (whole + (last > 0), torch.float32),
            (entries * bits // 8, torch.uint8),
        ]
        super().__init__(sizes, parts, entries * bits / 32)
        self.groups: dict[int, list[Segment]] = {}
        for i, rows in enumerate(whole.tolist()):
            body, left, filled = rows * block, int(rest[i]), int(last[i])
            if rows:
                self.groups.setdefault(block, []).append(Segment(i, 0, body, rows, 0, 0))
            if left:
                tail = Segment(i, body, left, 1, rows, body * bits // 8)
                self.groups.setdefault(filled, []).append(tail)
        self.rows = {d: sum(one.rows for one in some) for d, some in self.groups.items()}
        self.work_size = sum(d * rows for d, rows in self.rows.items())

    def matrices(self, work: Tensor) -> Iterator[tuple[int, list[Segment], Tensor]]:
        """Each length of block d, its segments, and their rows in a buffer: f32[rows, d].
        work: f32[work_size]."""
        sizes = [d * rows for d, rows in self.rows.items()]
        for (d, some), rows in zip(self.groups.items(), work.split(sizes), strict=True):
            yield d, some, rows.view(-1, d)

    def scales(self, buffer: Tensor, d: int) -> list[Tensor]:
        """Those of each segment of blocks of d values: f32[rows]."""
        return [
            self.view(buffer, one.tensor, SCALES)[one.block : one.block + one.rows]
            for one in self.groups[d]
        ]

    def codes(self, buffer: Tensor, d: int) -> list[Tensor]:
        """The packed codes of each segment of blocks of d values: u8[rows, d b / 8]."""
        width = d * self.bits // 8
        return [
            self.view(buffer, one.tensor, CODES)[one.code : one.code + one.rows * width].view(
                -1, width
            )
            for one in self.groups[d]
        ]


def _filled_up(n: int) -> int:
    """The least power of two that is no smaller, 32 at least; none of nothing."""
    return max(SHORTEST, 1 << (n - 1).bit_length()) if n else 0


def flat(rows: Tensor, segments: list[Segment]) -> list[Tensor]:
    """The values of each segment, without what fills its block up. rows: f32[rows, d]."""
    parts = rows.split([one.rows for one in segments])
    return [part.view(-1)[: one.length] for part, one in zip(parts, segments, strict=True)]


def copy_in(batch: Batch, work: Tensor, layout: RotatedLayout) -> None:
    """work = the tensors, and zeros. work: f32[work_size]."""
    work.zero_()
    for _, segments, rows in layout.matrices(work):
        torch._foreach_copy_(flat(rows, segments), _stretches(batch, segments))


def copy_out(work: Tensor, batch: Batch, layout: RotatedLayout, *, accumulate: bool) -> None:
    """The inverse: tensors = or += work."""
    for _, segments, rows in layout.matrices(work):
        to, values = _stretches(batch, segments), flat(rows, segments)
        torch._foreach_add_(to, values) if accumulate else torch._foreach_copy_(to, values)


def _stretches(batch: Batch, segments: list[Segment]) -> list[Tensor]:
    return [
        batch.tensors[one.tensor].view(-1)[one.start : one.start + one.length] for one in segments
    ]


@cached()
def places(layout: RotatedLayout, d: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Of each block of d values: its tensor (i64[rows]), and the number of its first hash (i32[rows])."""
    tensor, first = [], []
    for one in layout.groups[d]:
        tensor.append(np.full(one.rows, one.tensor))
        first.append((one.start + np.arange(one.rows) * d) // SHORTEST)
    numbers = torch.from_numpy(np.concatenate(first)).to(device, torch.int32)
    return torch.from_numpy(np.concatenate(tensor)).to(device), numbers


def rotate(rows: Tensor, keys: Tensor, first: Tensor, times: int) -> None:
    """Rotate each row, without the factor d^(-times / 2). rows: f32[rows, d]; keys: i32[rows]; first:
    i32[rows], the number of a row's first hash."""
    for turn in range(times):
        _flip(rows, keys, first, turn)
        hadamard(rows)


def rotate_back(rows: Tensor, keys: Tensor, first: Tensor, times: int) -> None:
    """The inverse but for the factor d^(-times / 2)."""
    for turn in reversed(range(times)):
        hadamard(rows)
        _flip(rows, keys, first, turn)


def _flip(rows: Tensor, keys: Tensor, first: Tensor, turn: int) -> None:
    """Flip the signs of values at random."""
    each = torch.arange(rows.shape[1] // SHORTEST, dtype=torch.int32, device=rows.device)
    hashes = counter.bits((first[:, None] + each) ^ (turn << _TURN), keys[:, None])
    shifts = torch.arange(SHORTEST, dtype=torch.int32, device=rows.device)
    flips = (hashes[:, :, None] << shifts) & _SIGN
    rows.view(torch.int32).bitwise_xor_(flips.view(rows.shape))


def hadamard(rows: Tensor) -> None:
    """Multiply each row by the Hadamard matrix of entries 1 and -1, in place. rows: f32[rows, d],
    contiguous; d is a power of two."""
    count, d = rows.shape
    if native.usable(rows):
        _hadamard(rows.data_ptr(), count, d)
        return
    half = 1
    while half < d:
        low, high = rows.view(count, -1, 2, half).unbind(2)
        difference = low - high
        low.add_(high)
        high.copy_(difference)
        half *= 2


def nearest_levels(rows: Tensor, ratios: Tensor, edges: Tensor) -> Tensor:
    """How many edges lie below each value times its row's ratio (none below a NaN): i32[rows, d].
    rows: f32[rows, d], contiguous; ratios: f32[rows]; edges: f32, ascending."""
    if not native.usable(rows):
        y = rows * ratios[:, None]
        return torch.bucketize(y, edges, out_int32=True).masked_fill_(y.isnan(), 0)
    found = torch.empty(rows.shape, dtype=torch.int32)
    _nearest_levels(
        rows.data_ptr(), *rows.shape, ratios.data_ptr(), edges.data_ptr(), edges.numel(), found.data_ptr()
    )  # fmt: skip
    return found
