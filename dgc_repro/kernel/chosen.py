"""The entries that are chosen of each tensor of a batch: the k largest, or those that reach a limit."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from dgc_repro.kernel import batch as kernels
from dgc_repro.kernel import native, select
from dgc_repro.kernel.batch import Batch, Numbers, Stretches, narrow
from dgc_repro.kernel.cached import cached
from dgc_repro.kernel.select import Scratch, Selection, index_type, magnitude_bits
from dgc_repro.kernel.thresholds import Mask

if TYPE_CHECKING:
    from dgc_repro.kernel.gpu.launch import Unread

_topk = native.Function("dgc_topk_all")
_reach_scratch = native.Function("dgc_reach_scratch")
_reach = native.Function("dgc_reach_all")
_reach_write = native.Function("dgc_reach_write_all")
_HIGH = 48  # bits: no tensor has 2^48 values
PARALLEL_FROM = 65536  # values: as in c/common.h


class Selections(Sequence[Selection]):
    """Entries of each tensor of a batch, in two buffers. ``sizes``: values of each tensor; ``counts``:
    entries chosen of each; ``starts``: where they begin in the buffers."""

    def __init__(
        self,
        sizes: tuple[int, ...],
        counts: tuple[int, ...],
        values: Tensor,
        indices: Tensor,
        starts: Numbers | None = None,
    ) -> None:
        self.sizes = sizes
        self.counts = counts
        self.values = values  # f32
        self.indices = indices  # i32 or i64, as many
        self.starts = starts_of(counts) if starts is None else starts

    @classmethod
    def of(cls, chosen: Sequence[Selection]) -> Selections:
        """Selections that were made one by one, side by side."""
        if isinstance(chosen, Selections):
            return chosen
        counts = tuple([one.values.numel() for one in chosen])
        wide = any(one.indices.dtype == torch.int64 for one in chosen)
        kind = torch.int64 if wide else torch.int32
        values = torch.cat([one.values for one in chosen])
        indices = torch.cat([one.indices.to(kind) for one in chosen])
        return cls(tuple([one.n for one in chosen]), counts, values, indices)

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]  # int or slice, as a Sequence
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        start, n = int(self.starts[index]), self.sizes[index]
        here = slice(start, start + self.counts[index])
        return Selection(self.values[here], self.indices[here].to(index_type(n)), n)

    def values_of(self, batch: Batch) -> Batch:
        """The chosen values of each tensor of this batch, as tensors."""
        return Stretches(batch, self.values, self.starts, self.counts)

    def among(self, chosen: Selections) -> Selections:
        """Those of these entries that a selection from their values has chosen."""
        chosen = chosen.in_order
        first = torch.from_numpy(np.repeat(self.starts, chosen.counts)).to(self.values.device)
        indices = self.indices[chosen.indices + first]
        return Selections(self.sizes, chosen.counts, chosen.values, indices)

    @classmethod
    def joined(cls, parts: Sequence[tuple[Sequence[int], Selections]]) -> Selections:
        """The selections of a batch from those of its parts, by the places of their tensors."""
        parts = [(places, one) for places, one in parts if len(places)]
        if len(parts) == 1:  # all tensors, then
            return parts[0][1]
        every = [place for places, _ in parts for place in places]
        ends = np.cumsum([0, *(one.values.numel() for _, one in parts)])
        begins = [one.starts + end for (_, one), end in zip(parts, ends, strict=False)]
        order = np.argsort(every)
        sizes = [size for _, one in parts for size in one.sizes]
        counts = [count for _, one in parts for count in one.counts]
        wide = any(one.indices.dtype == torch.int64 for _, one in parts)
        kind = torch.int64 if wide else torch.int32
        return cls(
            tuple([sizes[i] for i in order]),
            tuple([counts[i] for i in order]),
            torch.cat([one.values for _, one in parts]),
            torch.cat([one.indices.to(kind) for _, one in parts]),
            np.concatenate(begins)[order],
        )

    def part(self, places: Sequence[int]) -> Selections:
        """Those of some tensors, in the same buffers."""
        return Selections(
            tuple([self.sizes[i] for i in places]),
            tuple([self.counts[i] for i in places]),
            self.values,
            self.indices,
            self.starts[list(places)],
        )

    @classmethod
    def at(cls, sizes: tuple[int, ...], values: Tensor, places: Tensor) -> Selections:
        """The entries at the `places` of all tensors, which ascend."""
        edges = torch.arange(len(sizes) + 1, device=places.device) << _HIGH
        counts = torch.searchsorted(places, edges).diff().tolist()
        kind = index_type(max(sizes, default=0))
        return cls(sizes, tuple(counts), values, (places & (1 << _HIGH) - 1).to(kind))

    @property
    def places(self) -> Tensor:
        """Where the entries stand, in order, if the tensors lay one after another, far apart: i64."""
        counts = torch.tensor(self.counts, device=self.indices.device)
        first = torch.arange(len(self), device=counts.device) << _HIGH
        return self.in_order.indices.long() + first.repeat_interleave(counts)

    def cut(self, stretches: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[Selections]:
        """The entries in each of several stretches of the tensors, at their places in the stretch. The
        stretches do not overlap."""
        order, device = self.in_order, self.indices.device
        edges = torch.tensor([bounds for pair in stretches for bounds in pair], device=device)
        edges += torch.arange(len(self), device=device) << _HIGH
        found = torch.searchsorted(self.places, edges).cpu().numpy()
        found = found.reshape(len(stretches), 2, len(self))
        shifted = order.indices.clone()
        parts = []
        for (starts, ends), (low, high) in zip(stretches, found, strict=True):
            sizes = tuple([end - start for start, end in zip(starts, ends, strict=True)])
            for start, a, b in zip(starts, low.tolist(), high.tolist(), strict=True):
                if start and b > a:
                    shifted[a:b] -= start
            counted = tuple((high - low).tolist())
            parts.append(
                Selections(sizes, counted, order.values, shifted, np.ascontiguousarray(low))
            )
        return parts

    @property
    def in_order(self) -> Selections:
        """The same, the entries of the tensors one after another without gaps."""
        if np.array_equal(self.starts - self.starts[:1], starts_of(self.counts)):
            start, end = int(self.starts[0]), int(self.starts[0]) + sum(self.counts)
            return Selections(
                self.sizes, self.counts, self.values[start:end], self.indices[start:end]
            )
        return Selections.of(list(self))

    def energies(self) -> Tensor:
        """The sum of squares of the entries of each tensor: f64[tensors]."""
        values = [
            self.values[start : start + count]
            for start, count in zip(self.starts.tolist(), self.counts, strict=True)
        ]
        return kernels.energies(Batch(("",) * len(values), values))


class Late(Selections):
    """Entries on a GPU whose number the host has not read yet: ``counts`` reads it (`Unread.read`), and all
    other attributes but ``sizes`` need it. ``write``: from the counts to values and indices."""

    def __init__(
        self,
        sizes: tuple[int, ...],
        unread: Unread,
        write: Callable[[tuple[int, ...]], tuple[Tensor, Tensor]],
    ) -> None:
        self.sizes = sizes
        self.unread = unread
        self._write = write

    @cached_property
    def counts(self) -> tuple[int, ...]:  # type: ignore[override]
        return self.unread.read()

    @cached_property
    def starts(self) -> Numbers:  # type: ignore[override]
        return starts_of(self.counts)

    @cached_property
    def _written(self) -> tuple[Tensor, Tensor]:
        found = self._write(self.counts)
        del self._write  # it holds the tensors
        return found

    @property
    def values(self) -> Tensor:  # type: ignore[override]
        return self._written[0]

    @property
    def indices(self) -> Tensor:  # type: ignore[override]
        return self._written[1]


def topk(
    batch: Batch, ks: Sequence[tuple[int, ...]], scratch: Scratch, label: str = "topk"
) -> list[Selections]:
    """The k entries of largest magnitude of each tensor; of those, with several ``ks``, which fall, the
    entries of the next k. ks: rungs, each a k for each tensor."""
    if narrow(batch) and batch.on_gpu:
        return [_topk_on_gpu(batch, k, scratch, f"{label}{i}") for i, k in enumerate(ks)]
    if not (narrow(batch) and batch.native):
        by_tensor = [
            select.ladder(x.view(-1), k)
            for x, k in zip(batch.tensors, zip(*ks, strict=True), strict=True)
        ]
        return [Selections.of(chosen) for chosen in zip(*by_tensor, strict=True)]
    threads = torch.get_num_threads()
    plan = _Plan.of(batch.sizes, tuple(ks), threads)
    values = scratch(f"{label}.values", plan.total, torch.float32, batch.device)
    indices = scratch(f"{label}.indices", plan.total, torch.int32, batch.device)
    work = scratch(f"{label}.work", plan.work_bytes, torch.uint8, batch.device)
    _topk(
        len(batch), batch.lengths, batch.pointers, len(ks), plan.ks, values.data_ptr(),
        indices.data_ptr(), plan.starts.ctypes.data, work.data_ptr(), plan.small_bytes,
    )  # fmt: skip
    return [
        Selections(batch.sizes, counts, values, indices, plan.by_rung[rung])
        for rung, counts in enumerate(plan.counts)
    ]


def reaching(
    x: Batch, limits: Any, wanted: Any, scratch: Scratch, label: str = "reaching", *,
    active: Mask | None = None, expected: Numbers | None = None, through: Selections | None = None,
) -> Selections:  # fmt: skip
    """The entries of each tensor whose magnitude's key is above a limit, and of those that are equal to it as
    many as there are until ``wanted`` are chosen, the lower indices first; a single equal one in any case.

    limits: i32[tensors]; wanted: i64[tensors]; on a GPU both may be tensors there.
    ``active``: the tensors that are read; nothing is chosen of others. ``expected``: about how many there
    will be; up to a quarter more are found in one pass, others in two. ``through``: what x holds the values
    of; its indices are given."""
    if x.on_gpu and narrow(x):
        found = _reaching_on_gpu(x, limits, wanted, expected)
        return found if through is None else through.among(found)
    if not x.native:
        every = np.ones(len(x), dtype=bool) if active is None else active
        found = Selections.of(
            [_reached(*one) for one in zip(x.tensors, limits, wanted, every, strict=True)]
        )
        return found if through is None else through.among(found)
    count = len(x)
    lengths = x.counts if active is None else np.where(active, x.counts, 0)
    room = wanted if expected is None else expected
    room = np.minimum(np.maximum(room + room // 4, 0), lengths) + 1024
    numbers = np.empty((4, count), dtype=np.int64)
    starts, above, equal, ties = numbers
    size = _reach_scratch(count, lengths.ctypes.data, room.ctypes.data, starts.ctypes.data)
    work = scratch(f"{label}.work", size, torch.uint8, x.device)
    _reach(
        count, lengths.ctypes.data, x.pointers, limits.ctypes.data, work.data_ptr(), starts.ctypes.data,
        room.ctypes.data, above.ctypes.data, equal.ctypes.data,
    )  # fmt: skip
    ties[:] = np.where(equal == 1, 1, np.clip(wanted - above, 0, equal))
    counts = tuple((above + ties).tolist())
    sizes = x.sizes if through is None else through.sizes
    wide = not narrow(x) if through is None else through.indices.dtype == torch.int64
    values = scratch(f"{label}.values", sum(counts), torch.float32, x.device)
    kind = torch.int64 if wide else torch.int32
    indices = scratch(f"{label}.indices", sum(counts), kind, x.device)
    chosen = Selections(sizes, counts, values, indices)
    _reach_write(
        count, lengths.ctypes.data, limits.ctypes.data, ties.ctypes.data, work.data_ptr(),
        starts.ctypes.data, None if through is None else through.indices.data_ptr(),
        None if through is None else through.starts.ctypes.data, wide, values.data_ptr(),
        indices.data_ptr(), chosen.starts.ctypes.data,
    )  # fmt: skip
    return chosen


def _reaching_on_gpu(x: Batch, limits: Any, wanted: Any, expected: Numbers | None) -> Selections:
    """limits, wanted: on the device, or arrays. ``expected``: the counts of fake tensors."""
    from dgc_repro.kernel.gpu import chosen as gpu

    expected = wanted if expected is None and isinstance(wanted, np.ndarray) else expected
    each = x.sizes if expected is None else tuple(np.minimum(expected, x.counts).tolist())
    if isinstance(limits, np.ndarray):
        limits = torch.from_numpy(limits).to(x.device, non_blocking=True)
    if isinstance(wanted, np.ndarray):
        wanted = tuple(wanted.tolist())
    return Late(x.sizes, *gpu.reaching(x, limits, wanted, each))


def _reached(tensor: Tensor, limit: int, wanted: int, active: bool) -> Selection:
    """`reaching` of one tensor, in tensor operations: the reference of the C kernel."""
    x = tensor.view(-1)
    if not active:
        return Selection(x[:0], torch.arange(0, dtype=torch.int32, device=x.device), x.numel())
    keys = magnitude_bits(x)
    above, equal = keys > int(limit), keys == int(limit)
    if int(equal.sum()) != 1:
        equal &= torch.cumsum(equal, 0) <= int(wanted) - int(above.sum())
    return select.at(x, torch.nonzero(above | equal).view(-1))


def _topk_on_gpu(batch: Batch, ks: tuple[int, ...], scratch: Scratch, label: str) -> Selections:
    from dgc_repro.kernel.gpu import chosen as gpu

    counts = tuple(map(min, batch.sizes, ks))
    values = scratch(f"{label}.values", sum(counts), torch.float32, batch.device)
    indices = scratch(f"{label}.indices", sum(counts), torch.int32, batch.device)
    gpu.topk(batch, counts, values, indices)
    return Selections(batch.sizes, counts, values, indices)


@dataclass(frozen=True)
class _Plan:
    """Where the results of `topk` stand, rung after rung, and what it needs to work."""

    counts: list[tuple[int, ...]]  # by rung
    starts: Numbers  # [tensors, rungs]
    by_rung: list[Numbers]
    ks: ctypes.Array[ctypes.c_int64]  # of each tensor, rung after rung
    total: int
    work_bytes: int
    small_bytes: int

    @classmethod
    @cached()
    def of(cls, sizes: tuple[int, ...], ks: tuple[tuple[int, ...], ...], threads: int) -> _Plan:
        counts = [tuple(min(n, k) for n, k in zip(sizes, of_rung, strict=True)) for of_rung in ks]
        totals = starts_of(tuple(sum(of_rung) for of_rung in counts))
        by_rung = [
            start + starts_of(of_rung) for start, of_rung in zip(totals, counts, strict=True)
        ]
        largest, small = 0, 0
        for i, n in enumerate(sizes):
            needed = max(select.topk_scratch_bytes(n, of_rung[i]) for of_rung in counts)
            largest = max(largest, needed)
            small = max(small, needed if n < PARALLEL_FROM else 0)
        small = -(-small // 64) * 64
        of_tensor = tuple(k for of_one in zip(*counts, strict=True) for k in of_one)
        return cls(
            counts,
            np.ascontiguousarray(np.stack(by_rung, 1)),
            by_rung,
            kernels.integers(of_tensor),
            sum(map(sum, counts)),
            max(largest, threads * small),
            small,
        )


@cached()
def starts_of(counts: tuple[int, ...]) -> Numbers:
    """Where each of so many stretches begins that lie side by side."""
    return np.cumsum((0, *counts), dtype=np.int64)[: len(counts)]
