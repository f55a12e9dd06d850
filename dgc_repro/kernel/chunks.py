"""Tensors cut into chunks: the largest entries of each chunk, and their places within it in few bits.

The chunks of a batch lie in one buffer, as the rows of a matrix for each shape of chunk. A tensor's last
chunk may be shorter: its row is filled up with zeros. Places are packed like codes (kernel/codes.py), as
many bits each as the largest place in a chunk needs. Tensor operations do everything here, on every device,
for all tensors of a batch together. No size depends on values, so nothing waits for a GPU.

Letters: n = values of a tensor, k = entries sent of it, c = values of a chunk, b = bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor

from dgc_repro.kernel.batch import Batch, Numbers
from dgc_repro.kernel.cached import cached
from dgc_repro.kernel.codes import group, pack, unpack
from dgc_repro.kernel.layout import Layout
from dgc_repro.kernel.select import magnitude_bits

LARGEST_CHUNK = 1 << 16
_PLACE_BITS = 16
_AT_A_TIME = 1 << 22  # values whose keys (i64) are in memory at once
TABLE, VALUES, PLACES, CODES = range(4)
"""The parts of a tensor's payload: float32 levels that codes mean, float32 values, packed places, packed
codes. A payload has either levels and codes, or values."""


@dataclass(frozen=True)
class Cut:
    """How a tensor is cut: ``rows`` chunks of ``shape``, the last of which has ``last`` values; ``k``
    entries are sent of a whole chunk and ``last_k`` of the last one. ``across``: chunks side by side, where
    they are blocks of a matrix."""

    shape: tuple[int, int]
    rows: int
    last: int
    k: int
    last_k: int
    across: int = 1

    @property
    def length(self) -> int:
        """c."""
        return self.shape[0] * self.shape[1]

    @property
    def count(self) -> int:
        """Entries that are sent of the tensor."""
        return (self.rows - 1) * self.k + self.last_k if self.rows else 0

    @property
    def size(self) -> int:
        """Values of the tensor."""
        return (self.rows - 1) * self.length + self.last if self.rows else 0

    @property
    def place_bits(self) -> int:
        """Bits of a place within a chunk."""
        return max(1, (self.length - 1).bit_length())


@dataclass(frozen=True)
class Packing:
    """Codes of b bits of some tensors, and where they go. Every tensor begins with a whole group of codes."""

    bits: int
    entries: Tensor | None  # i64: which of all entries they are; None: all of them
    at: Tensor  # i64: where each stands among codes that are filled up to whole groups
    size: int  # of these
    bytes_at: Tensor  # i64: where each byte goes in the buffer that travels

    def write(self, codes: Tensor, buffer: Tensor) -> None:
        """codes: i64, of all entries."""
        own = codes if self.entries is None else codes[self.entries]
        filled = torch.zeros(self.size, dtype=torch.int32, device=buffer.device)
        filled[self.at] = own.to(torch.int32)
        together, _ = group(self.bits)
        packed = pack(list(filled.view(-1, together).unbind(1)), self.bits)
        buffer[self.bytes_at] = torch.stack(packed, 1).view(-1).to(torch.uint8)

    def read(self, buffer: Tensor, codes: Tensor) -> None:
        """The inverse."""
        _, size = group(self.bits)
        packed = buffer[self.bytes_at].view(-1, size).to(torch.int32)
        own = torch.stack(unpack(list(packed.unbind(1)), self.bits), 1).view(-1)[self.at].long()
        if self.entries is None:
            codes.copy_(own)
        else:
            codes[self.entries] = own


class ChunkLayout(Layout):
    """``cuts``: of each tensor. ``bits``: of a value's code; None sends float32 values.

    ``groups``: the tensors of each shape of chunk; ``work_size``: values of the buffer of rows."""

    def __init__(self, cuts: tuple[Cut, ...], bits: int | None) -> None:
        self.cuts, self.bits = cuts, bits
        self.counts = tuple([cut.count for cut in cuts])
        k: Numbers = np.array(self.counts, dtype=np.int64)
        self.place_bits = tuple([cut.place_bits for cut in cuts])
        places = [_num_bytes(n, b) for n, b in zip(self.counts, self.place_bits, strict=True)]
        table = values = codes = None
        if bits is None:
            values = k
        else:
            table, codes = 2**bits * (k > 0), [_num_bytes(n, bits) for n in self.counts]
        parts = [
            (table, torch.float32),
            (values, torch.float32),
            (places, torch.uint8),
            (codes, torch.uint8),
        ]
        super().__init__(tuple([cut.size for cut in cuts]), parts, k * (bits or 32) / 32)
        self.groups: dict[tuple[int, int], list[int]] = {}
        for i, cut in enumerate(cuts):
            if cut.rows:
                self.groups.setdefault(cut.shape, []).append(i)
        self.rows_of = {
            shape: [cuts[i].rows for i in members] for shape, members in self.groups.items()
        }
        ends = accumulate(
            (sum(rows) * shape[0] * shape[1] for shape, rows in self.rows_of.items()), initial=0
        )
        self.starts_of = dict(zip(self.groups, ends, strict=False))
        self.work_size = sum(cut.rows * cut.length for cut in cuts)
        self._on: dict[torch.device, _Constants] = {}

    def matrices(self, work: Tensor) -> dict[tuple[int, int], Tensor]:
        """The rows of each shape: f32[rows, c]. work: f32[work_size]."""
        found = {}
        for shape, start in self.starts_of.items():
            length, rows = shape[0] * shape[1], sum(self.rows_of[shape])
            found[shape] = work[start : start + rows * length].view(rows, length)
        return found

    def of_tensors(self, work: Tensor) -> list[Tensor]:
        """The rows of each tensor that is not empty, flat and without what fills them up, where chunks are
        stretches of the tensor."""
        found = [work[:0]] * len(self.cuts)
        for shape, members in self.groups.items():
            length, start = shape[0] * shape[1], self.starts_of[shape]
            for i in members:
                found[i] = work[start : start + self.sizes[i]]
                start += self.cuts[i].rows * length
        return found

    def choose(self, work: Tensor) -> tuple[Tensor, Tensor]:
        """Of the k largest entries of each chunk, place in the chunk and value: i64[entries], f32[entries],
        tensor after tensor."""
        found = []
        for shape, rows in self.matrices(work).items():
            k = max(max(self.cuts[i].k, self.cuts[i].last_k) for i in self.groups[shape])
            found.append(largest(rows, k).view(-1))
        constants = self.on(work.device)
        places = torch.cat(found)[constants.chosen] if found else constants.chosen
        return places, work[constants.first + places]

    def on(self, device: torch.device) -> _Constants:
        """What depends on sizes alone, as tensors of a device."""
        if device not in self._on:
            self._on[device] = _Constants(self, device)
        return self._on[device]

    @cached_property
    def first_rows(self) -> list[int]:
        """The first row of each tensor among those of its shape."""
        found = [0] * len(self.cuts)
        for shape, members in self.groups.items():
            for i, start in zip(members, accumulate(self.rows_of[shape], initial=0), strict=False):
                found[i] = start
        return found


class _Constants:
    """``tensor``: i64[entries], which tensor each is of; ``first``: where its chunk begins in the buffer of
    rows; ``chosen``: where it stands in what `largest` gives for all shapes. ``table``, ``values``: where
    levels and values lie in a float32 view of the buffer that travels; ``levels``: which of all tensors'
    levels are sent; ``level_of_zero``: i64[entries], where the level of code 0 lies."""

    def __init__(self, layout: ChunkLayout, device: torch.device) -> None:
        tensor, first, chosen = ([np.zeros(0, dtype=np.int64)] for _ in range(3))
        before = 0  # entries of `largest` of the shapes so far
        befores = {}
        for shape, members in layout.groups.items():
            k = max(max(layout.cuts[i].k, layout.cuts[i].last_k) for i in members)
            befores[shape] = (before, k)
            before += sum(layout.rows_of[shape]) * k
        for i, cut in enumerate(layout.cuts):
            if not cut.rows:
                continue
            start, k = befores[cut.shape]
            each = np.full(cut.rows, cut.k)
            each[-1] = cut.last_k
            rows = layout.first_rows[i] + np.repeat(np.arange(cut.rows), each)
            within = np.arange(cut.count) - np.repeat(np.cumsum(each) - each, each)
            tensor.append(np.full(cut.count, i))
            first.append(layout.starts_of[cut.shape] + rows * cut.length)
            chosen.append(start + rows * k + within)

        def here(parts: Sequence[Numbers]) -> Tensor:
            return torch.from_numpy(np.concatenate(parts)).to(device)

        self.tensor, self.first, self.chosen = here(tensor), here(first), here(chosen)
        self.table, self.values = here(_spans(layout, TABLE)), here(_spans(layout, VALUES))
        if layout.bits is not None:
            sent = np.repeat(np.array(layout.counts) > 0, 2**layout.bits)
            self.levels = here([np.flatnonzero(sent)])
            self.level_of_zero = here([layout.starts[TABLE] // 4])[self.tensor]
        # Means are taken over the entries of a tensor; one without entries divides by 1.
        self.counts = torch.tensor(layout.counts, dtype=torch.float64, device=device).clamp(min=1)
        self.places = [_packing(layout, PLACES, b, device) for b in sorted(set(layout.place_bits))]
        self.codes = None if layout.bits is None else _packing(layout, CODES, layout.bits, device)


def largest(rows: Tensor, k: int) -> Tensor:
    """The places of the k largest magnitudes of each row, the largest first; of equal ones the lower place.
    rows: f32[rows, c], c <= `LARGEST_CHUNK` -> i64[rows, k]. A NaN is above infinity."""
    height, width = rows.shape
    lower = (1 << _PLACE_BITS) - 1 - torch.arange(width, device=rows.device)
    found = torch.empty(height, k, dtype=torch.int64, device=rows.device)
    step = max(1, _AT_A_TIME // max(1, width))
    for some, to in zip(rows.split(step), found.split(step), strict=True):
        keys = (magnitude_bits(some).long() << _PLACE_BITS) + lower
        to.copy_(torch.topk(keys, k, dim=1).values)
    return (1 << _PLACE_BITS) - 1 - (found & (1 << _PLACE_BITS) - 1)


def copy_in(batch: Batch, work: Tensor, layout: ChunkLayout) -> None:
    """Chunks that are stretches of the tensors: work = the tensors, and zeros. work: f32[work_size]."""
    work.zero_()
    torch._foreach_copy_(layout.of_tensors(work), [tensor.view(-1) for tensor in batch.tensors])


def copy_out(work: Tensor, batch: Batch, layout: ChunkLayout, *, accumulate: bool) -> None:
    """The inverse: tensors = or += work."""
    flat = [tensor.view(-1) for tensor in batch.tensors]
    if accumulate:
        torch._foreach_add_(flat, layout.of_tensors(work))
    else:
        torch._foreach_copy_(flat, layout.of_tensors(work))


def _num_bytes(count: int, bits: int) -> int:
    """Bytes of packed codes, filled up to whole groups."""
    codes, size = group(bits)
    return -(-count // codes) * size


def _spans(layout: ChunkLayout, part: int) -> list[Numbers]:
    """The places of this part of all tensors, in elements of its type."""
    size = layout.dtypes[part].itemsize
    pairs = zip(layout.starts[part].tolist(), layout.lengths[part].tolist(), strict=True)
    return [np.zeros(0, dtype=np.int64), *(start // size + np.arange(n) for start, n in pairs)]


def _packing(layout: ChunkLayout, part: int, bits: int, device: torch.device) -> Packing:
    """Of the tensors whose codes have so many bits."""
    codes, _ = group(bits)
    spans = _spans(layout, part)[1:]
    entries, at, bytes_at = ([np.zeros(0, dtype=np.int64)] for _ in range(3))
    before, size = 0, 0
    alone = True
    for count, own, span in zip(layout.counts, layout.place_bits, spans, strict=True):
        if part == CODES or own == bits:
            entries.append(before + np.arange(count))
            at.append(size + np.arange(count))
            bytes_at.append(span)
            size += -(-count // codes) * codes
        else:
            alone = alone and not count
        before += count

    def here(parts: list[Numbers]) -> Tensor:
        return torch.from_numpy(np.concatenate(parts)).to(device)

    return Packing(bits, None if alone else here(entries), here(at), size, here(bytes_at))


chunk_layout = cached()(ChunkLayout)
