"""Values and places of the chosen entries of each tensor as a payload.

Of each tensor: a header of 8 bytes that says how the rest is coded (from the highest byte down `MAGIC`,
coding of the places, 0, and 5 bytes of k), places (kernel/sparse.py), values in float32. The receiver checks
what arrives against its headers. Every rank finds a gathered payload broken; what is sent to one rank
(shards) only that rank checks. It raises, and the others wait for it in their next collective. A run then
ends on all ranks with that error (launch/rendezvous.py); a user's own loop ends when that rank's process
ends, or after the group's timeout.
"""

from __future__ import annotations

import copy
import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch

from dgc_repro.kernel import native
from dgc_repro.kernel import sparse as kernels
from dgc_repro.kernel.batch import Batch, Numbers, integers, on_gpu
from dgc_repro.kernel.cached import cached
from dgc_repro.kernel.chosen import Selections
from dgc_repro.kernel.layout import Layout
from dgc_repro.kernel.select import Scratch, Selection
from dgc_repro.payload.interface import ALONE, BatchPayload

AUTO = "auto"
PLAIN = "int32"
INDICES = {"delta16": kernels.DELTA16, "bitmap": kernels.BITMAP}
CODINGS = (AUTO, PLAIN, *INDICES)
"""What is sent is coded as `AUTO` says, which takes the fewest bytes. The others are for tables that compare
codings."""
MAGIC = 0x53  # 'S'; another number when the coding changes
_COUNT_BITS = 40
DAMAGED = "it was damaged on its way, or comes from another version of this package"


class _Table(ctypes.Structure):
    """`layout_t` of c/sparse.c."""

    _fields_ = tuple(
        (name, ctypes.c_void_p)
        for name in (
            "k", "header_at", "words_at", "values_at", "num_words", "headers", "coding",
        )
    )  # fmt: skip


_encode = native.Function("dgc_sparse_encode_all")
_decode = native.Function("dgc_sparse_decode_all")
_scatter = native.Function("dgc_scatter_all")
_zero_at = native.Function("dgc_zero_at_all")


class SparseLayout(Layout):
    """Header, places and values of each tensor. ``sizes``: values of each tensor; ``counts``: how many are
    sent; ``indices``: of `CODINGS`; ``shared``: all entries of a tensor have one value.

    Those of many workers are computed together: ``counts`` is then i64[workers, tensors], all arrays have an
    axis of workers before that of tensors, and `of_worker` gives the layout of one."""

    def __init__(
        self,
        sizes: tuple[int, ...],
        counts: tuple[int, ...] | Numbers,
        indices: str = AUTO,
        shared: bool = False,
    ) -> None:
        self.indices, self.shared = indices, shared
        n = np.array(sizes, dtype=np.int64)
        self.k: Numbers = np.array(counts, dtype=np.int64)
        codings = [kernels.plain(n), *(np.full_like(n, coding) for coding in INDICES.values())]
        if indices == AUTO:  # the fewest bytes; of equal ones the one that is quickest to read
            every = np.stack([kernels.num_words(n, self.k, coding) for coding in codings])
            coding = np.stack(codings)[every.argmin(0), np.arange(len(n))]
        else:
            coding = codings[0] if indices == PLAIN else np.full_like(n, INDICES[indices])
            coding = np.broadcast_to(coding, self.k.shape)
        self.coding = coding.astype(np.int32, order="C")  # for C
        one = np.ones_like(self.k)
        values = one if shared else self.k
        words = kernels.num_words(n, self.k, coding)
        parts = [(one, torch.int64), (words, torch.int32), (values, torch.float32)]
        super().__init__(sizes, parts, values.astype(np.float64))

    def announced(self, lengths: Sequence[int] | Numbers) -> list[SparseLayout]:
        """The layouts of workers from the `lengths` that they sent, one worker after another. Raises
        ValueError."""
        told = np.asarray(lengths, dtype=np.int64)
        told = told.reshape(-1, len(self.sizes), self.sent_lengths.shape[-1])
        counts = told[..., -1]
        wrong = (counts < 0) | (counts > self.numbers[0])
        if wrong.any():
            worker, i = np.argwhere(wrong)[0]
            raise ValueError(
                f"sparse payload: {counts[worker, i]} entries of {self.sizes[i]}: {DAMAGED}"
            )
        theirs = SparseLayout(self.sizes, counts, self.indices, self.shared)
        wrong = (theirs.sent_lengths != told).any(-1)
        if wrong.any():
            worker, i = np.argwhere(wrong)[0]
            own = theirs.sent_lengths[worker, i].tolist()
            raise ValueError(
                f"sparse payload: parts of {told[worker, i].tolist()} elements came, and this worker would "
                f"code {counts[worker, i]} entries of {self.sizes[i]} as {own}: {DAMAGED}"
            )
        return [theirs.of_worker(worker) for worker in range(len(told))]

    def of_worker(self, worker: int) -> SparseLayout:
        """The layout of one worker, if this is that of many."""
        one = copy.copy(self)
        one.k, one.coding, one.floats = self.k[worker], self.coding[worker], self.floats[worker]
        one.tensor_bytes = self.tensor_bytes[worker]
        one.end, one.size = self.end[worker], self.size[worker]  # type: ignore[index]  # lists
        one.lengths, one.starts = self.lengths[:, worker], self.starts[:, worker]
        one.headers, one.numbers = self.headers[worker], self.numbers[:, worker]
        one.sent_lengths = self.sent_lengths[worker]
        return one

    @cached_property
    def sent_lengths(self) -> Numbers:
        """What travels first where k differs between workers: how long the header and the places of each
        tensor are, and k. i64[tensors, 3]."""
        columns: Numbers = np.stack([*self.lengths[:2], self.k], -1)
        return columns

    @cached_property
    def headers(self) -> Numbers:
        coding = self.coding.astype(np.int64) << 48
        found: Numbers = np.int64(MAGIC) << 56 | coding | self.k
        return found

    @cached_property
    def table(self) -> _Table:
        """For the C kernels."""
        arrays = (self.k, *self.starts, self.lengths[1], self.headers, self.coding)
        return _Table(*(array.ctypes.data for array in arrays))

    @cached_property
    def numbers(self) -> Numbers:
        """For the kernels of kernel/gpu/sparse.py: i64[8, tensors]."""
        sizes = np.broadcast_to(np.array(self.sizes, dtype=np.int64), self.k.shape)
        coding = self.coding.astype(np.int64)
        found: Numbers = np.stack(
            [sizes, self.k, *self.starts, self.lengths[1], self.headers, coding]
        )
        found.setflags(write=False)  # kernel/gpu/launch.py recognizes it
        return found

    def check(self, headers: Sequence[int]) -> None:
        """Raise ValueError for the first header that is another than that of its tensor."""
        for i, header in enumerate(headers):
            if header != self.headers[i]:
                raise ValueError(f"sparse payload: {self._wrong(i, header)}")

    def _wrong(self, i: int, header: int) -> str:
        """What is wrong with the header that arrived for a tensor."""
        n, coding = self.sizes[i], header >> 48 & 0xFF
        count = header & (1 << _COUNT_BITS) - 1
        if header >> 56 != MAGIC or header >> 40 & 0xFF:
            return f"{header:#x} is not a header of one: {DAMAGED}"
        each = [sparse_layout((n,), (count,), name, self.shared) for name in CODINGS[1:]]
        known = {int(one.coding[0]): one.announces(0) for one in each}
        if coding not in known:
            return f"its places have the unknown coding {coding}: {DAMAGED}"
        if count > n:
            return f"{count} entries of {n}: {DAMAGED}"
        if known[coding] != self.announces(i):
            return (
                f"{self.announces(i)} words of places and values came with a header that announces "
                f"{known[coding]}: {DAMAGED}"
            )
        return f"its places have the coding {coding}, this worker's {self.coding[i]}: {DAMAGED}"

    def announces(self, i: int) -> tuple[int, int]:
        """Words of places, and values of a tensor."""
        return int(self.lengths[1, i]), int(self.k[i])


sparse_layout = cached()(SparseLayout)


@dataclass(frozen=True, slots=True)
class Sparse(BatchPayload):
    """k entries of each tensor."""

    layout: SparseLayout
    ragged: ClassVar[bool] = True

    @classmethod
    def of(
        cls,
        names: tuple[str, ...],
        chosen: Selections,
        scratch: Scratch | None = None,
        *,
        indices: str = AUTO,
        shared: bool = False,
    ) -> Sparse:
        """The payload that sends selections. ``shared``: all values of a tensor are its first one."""
        layout = sparse_layout(chosen.sizes, chosen.counts, indices, shared)
        device, size = chosen.values.device, layout.size
        buffer = (
            torch.zeros(size, dtype=torch.uint8, device=device)
            if scratch is None
            else scratch("sparse", size, torch.uint8, device)
        )
        payload = cls(names, layout, buffer)
        if native.usable(chosen.values):
            _encode(
                len(names), integers(chosen.sizes), ctypes.byref(layout.table), shared,
                chosen.values.data_ptr(), chosen.indices.data_ptr(),
                chosen.indices.dtype == torch.int64, chosen.starts.ctypes.data, buffer.data_ptr(),
            )  # fmt: skip
            return payload
        if on_gpu([chosen.values]):
            from dgc_repro.kernel.gpu import sparse as gpu

            gpu.encode(layout.numbers, shared, chosen.values, chosen.indices, chosen.starts, buffer)
            return payload
        for i, own in enumerate(chosen):
            payload._write(i, own)
        return payload

    @classmethod
    def one(
        cls,
        selection: Selection,
        scratch: Scratch | None = None,
        *,
        indices: str = AUTO,
        shared: bool = False,
    ) -> Sparse:
        """The same for one selection, as the payload of its tensor."""
        chosen = Selections.of([selection])
        return cls.of((ALONE,), chosen, scratch, indices=indices, shared=shared)

    @property
    def lengths(self) -> list[int]:
        numbers: list[int] = self.layout.sent_lengths.reshape(-1).tolist()
        return numbers

    def announced(self, lengths: Sequence[int] | Numbers) -> list[Sparse]:
        return [replace(self, layout=layout) for layout in self.layout.announced(lengths)]

    def add_sum_to_(
        self, others: Sequence[Sparse], batch: Batch, weight: float, *, accumulate: bool
    ) -> None:
        every = (self, *others)
        if batch.native:
            tables = (_Table * len(every))(*(one.layout.table for one in every))
            if _scatter(
                len(self.names), batch.lengths, batch.pointers, len(every), tables,
                native.pointers([one.buffer for one in every]), self.layout.shared, weight,
                not accumulate,
            ):  # fmt: skip
                for one in every:
                    one.selections()
                raise AssertionError("a broken payload was not found again")
            return
        if batch.on_gpu:
            from dgc_repro.kernel.gpu import sparse as gpu

            sources = [(one.layout.numbers, one.buffer) for one in every]
            gpu.add_up(batch, sources, self.layout.shared, weight, accumulate=accumulate)
            return
        for one in every:
            one.check()
        for i, tensor in enumerate(batch.tensors):
            flat = tensor.view(-1)
            if not accumulate:
                flat.zero_()
            for one in every:
                # Not index_add_(alpha=weight): the product is rounded before the sum, as in C.
                entries = one._selection(i)
                flat.index_add_(0, entries.indices, entries.values * weight)

    def _zero_at(self, batch: Batch) -> None:
        if batch.native:
            _zero_at(
                len(self.names), batch.lengths, batch.pointers, ctypes.byref(self.layout.table),
                self.buffer.data_ptr(),
            )  # fmt: skip
            return
        if batch.on_gpu:
            from dgc_repro.kernel.gpu import sparse as gpu

            gpu.zero_at(batch, self.layout.numbers, self.buffer)
            return
        for i, tensor in enumerate(batch.tensors):
            tensor.view(-1).index_fill_(0, self._selection(i).indices.long(), 0.0)

    def check(self) -> None:
        """Raise ValueError where a header is broken. On a GPU none is read: that would be a transfer."""
        if self.buffer.device.type == "cpu":
            headers = self.buffer.numpy().view(np.int64)[self.layout.starts[0] // 8]
            self.layout.check(headers.tolist())

    def selections(self) -> Sequence[Selection]:
        """The entries of every tensor, as they are decoded. Raises ValueError where one is broken."""
        self.check()
        layout, device = self.layout, self.buffer.device
        counts, wide = tuple(layout.k.tolist()), any(n > 2**31 - 1 for n in layout.sizes)
        values = torch.empty(sum(counts), device=device)
        kind = torch.int64 if wide else torch.int32
        indices = torch.empty(sum(counts), dtype=kind, device=device)
        found = Selections(layout.sizes, counts, values, indices)
        if on_gpu([values]):
            from dgc_repro.kernel.gpu import sparse as gpu

            gpu.decode(layout.numbers, layout.shared, self.buffer, values, indices, found.starts)
            return found
        if not native.usable(values):
            return [self._selection(i) for i in range(len(self.names))]
        if _decode(
            len(counts), integers(layout.sizes), ctypes.byref(layout.table), layout.shared,
            self.buffer.data_ptr(), found.starts.ctypes.data, wide, indices.data_ptr(),
            values.data_ptr(),
        ):  # fmt: skip
            for i in range(len(counts)):
                self._selection(i)
            raise AssertionError("broken places were not found again")
        return found

    def _selection(self, i: int) -> Selection:
        """The entries of one tensor, by tensor operations."""
        layout, n = self.layout, self.layout.sizes[i]
        k = int(layout.k[i])
        _, words, values = layout.views(self.buffer, i)
        places = kernels.decode_places(words, n, k, int(layout.coding[i]))
        return Selection(values.repeat(k) if layout.shared else values, places, n)

    def _write(self, i: int, own: Selection) -> None:
        """With tensor operations: the reference of the C kernel."""
        layout = self.layout
        header, words, values = layout.views(self.buffer, i)
        header.fill_(int(layout.headers[i]))
        coding, indices = int(layout.coding[i]), own.indices.contiguous()
        if coding in INDICES.values():
            kernels.encode_places(indices, own.n, coding, words)
        else:
            words.copy_(indices.view(torch.int32))
        if layout.shared:
            values.fill_(own.values[0] if own.values.numel() else 0.0)
        else:
            values.copy_(own.values)
