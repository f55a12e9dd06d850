"""Values and places of the chosen entries of each tensor as a payload.

Of each tensor: a header of 8 bytes that says how the rest is coded (from the highest byte down `MAGIC`,
coding of the places, type of the values, and 5 bytes of k), places, scales, values (kernel/sparse.py). What
arrives is checked against its headers, by whoever has received it: what is gathered is found broken by every
rank alike, what goes to one rank (`AllToAll`: shards, trees) by that rank alone. It raises, and the others
wait for it in their next collective; a run then ends on all ranks with what it raised
(launch/hang_report.py), an own loop when that rank's process ends or its group's timeout is over.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dgc_repro.exchange.payload.interface import BatchPayload
from dgc_repro.exchange.payload.separate import Alone
from dgc_repro.exchange.payload.values import DTYPES, VALUES, code_values, num_scales
from dgc_repro.kernel import native
from dgc_repro.kernel import sparse as kernels
from dgc_repro.kernel.batch import Batch, Numbers, integers, on_gpu
from dgc_repro.kernel.chosen import Selections, starts_of
from dgc_repro.kernel.layout import Kind
from dgc_repro.kernel.select import Scratch, Selection

AUTO = "auto"
PLAIN = "int32"
INDICES = {"delta16": kernels.DELTA16, "bitmap": kernels.BITMAP}
CODINGS = (AUTO, PLAIN, *INDICES)
MAGIC = 0x53  # 'S'; another number when the coding changes
_COUNT_BITS = 40
DAMAGED = "it was damaged on its way, or comes from another version of this package"
SHARED = kernels.SHARED


class _Table(ctypes.Structure):
    """`layout_t` of c/sparse.c."""

    _fields_ = tuple(
        (name, ctypes.c_void_p)
        for name in (
            "k", "header_at", "words_at", "scales_at", "coded_at", "num_words", "headers", "coding",
        )
    )  # fmt: skip


_encode = native.Function(
    "dgc_sparse_encode_all", None, native.INT64, native.POINTER, native.POINTER, native.INTEGER,
    native.POINTER, native.POINTER, native.INTEGER, native.POINTER, native.POINTER, native.INTEGER,
)  # fmt: skip
_scatter = native.Function(
    "dgc_scatter_all", native.INTEGER, native.INT64, native.POINTER, native.POINTER, native.INT64,
    native.POINTER, native.POINTER, native.INTEGER, native.FLOAT, native.INTEGER, native.INTEGER,
)  # fmt: skip
_zero_at = native.Function(
    "dgc_zero_at_all", None, native.INT64, native.POINTER, native.POINTER, native.POINTER,
    native.POINTER, native.INTEGER,
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class SparseLayouts:
    """Where header, places, scales and values of each tensor lie in the buffer."""

    sizes: tuple[int, ...]  # values of each tensor
    indices: str  # of `CODINGS`
    k: Numbers
    coding: npt.NDArray[np.int32]
    kind: int
    num_words: Numbers
    num_scales: Numbers
    num_coded: Numbers  # k, or 1 of a shared value

    @classmethod
    @lru_cache(maxsize=64)
    def of(
        cls, sizes: tuple[int, ...], counts: tuple[int, ...], indices: str, kind: int
    ) -> SparseLayouts:
        """For so many entries of each tensor. ``indices``: of `CODINGS`; ``kind``: of `DTYPES`."""
        n, k = np.array(sizes, dtype=np.int64), np.array(counts, dtype=np.int64)
        codings = [kernels.plain(n), *(np.full_like(n, coding) for coding in INDICES.values())]
        if indices == AUTO:  # the fewest bytes; of equal ones the one that is quickest to read
            words = np.stack([kernels.num_words(n, k, coding) for coding in codings])
            coding = np.stack(codings)[words.argmin(0), np.arange(len(n))]
        else:
            coding = codings[0] if indices == PLAIN else np.full_like(n, INDICES[indices])
        return cls(
            sizes,
            indices,
            k,
            coding.astype(np.int32),
            kind,
            kernels.num_words(n, k, coding),
            num_scales(k, kind),
            np.ones_like(k) if kind == SHARED else k,
        )

    def announced(self, lengths: Sequence[int]) -> SparseLayouts:
        """The layouts of a worker from the `lengths` that it sent. Raises ValueError."""
        told = np.array(lengths, dtype=np.int64).reshape(len(self.sizes), -1)
        counts = told[:, -1]
        wrong = (counts < 0) | (counts > np.array(self.sizes))
        if wrong.any():
            i = int(wrong.argmax())
            raise ValueError(f"sparse payload: {counts[i]} entries of {self.sizes[i]}: {DAMAGED}")
        theirs = SparseLayouts.of(self.sizes, tuple(counts.tolist()), self.indices, self.kind)
        wrong = (theirs.lengths != told).any(1)
        if wrong.any():
            i = int(wrong.argmax())
            raise ValueError(
                f"sparse payload: parts of {told[i].tolist()} elements came, and this worker would code "
                f"{counts[i]} entries of {self.sizes[i]} as {theirs.lengths[i].tolist()}: all workers need "
                f"one setting `indices`, or {DAMAGED}"
            )
        return theirs

    @cached_property
    def lengths(self) -> Numbers:
        """What travels first where k differs between workers: how long the header, the places and the scales
        of each tensor are, and k. i64[tensors, 3 or 4]."""
        columns = [np.ones_like(self.k), self.num_words, self.k]
        if self.kind == kernels.INT8:
            columns.insert(2, self.num_scales)
        return np.stack(columns, 1)

    @property
    def value_type(self) -> torch.dtype:
        """Of the values as they travel."""
        return DTYPES[self.kind]

    @cached_property
    def tensor_bytes(self) -> Numbers:
        """Bytes of header, places, scales and values of each tensor."""
        coded: Numbers = self.value_type.itemsize * self.num_coded
        return 8 + 4 * self.num_words + 4 * self.num_scales + coded

    @cached_property
    def starts(self) -> Numbers:
        """Where header, places, scales and values of each tensor begin, in bytes: i64[4, tensors]."""
        headers = starts_of(tuple(_filled(self.tensor_bytes).tolist()))
        words = headers + 8
        scales = words + 4 * self.num_words
        return np.ascontiguousarray([headers, words, scales, scales + 4 * self.num_scales])

    @cached_property
    def num_bytes(self) -> int:
        """Bytes that travel."""
        return int(_filled(self.tensor_bytes).sum())

    @cached_property
    def headers(self) -> Numbers:
        coding = self.coding.astype(np.int64) << 48
        return np.int64(MAGIC) << 56 | coding | np.int64(self._told_kind) << 40 | self.k

    @cached_property
    def table(self) -> _Table:
        """For the C kernels."""
        arrays = (self.k, *self.starts, self.num_words, self.headers, self.coding)
        return _Table(*(array.ctypes.data for array in arrays))

    @cached_property
    def numbers(self) -> Numbers:
        """For the kernels of kernel/gpu/sparse.py: i64[9, tensors]."""
        sizes = np.array(self.sizes, dtype=np.int64)
        coding = self.coding.astype(np.int64)
        return np.stack([sizes, self.k, *self.starts, self.num_words, self.headers, coding])

    def check(self, headers: Sequence[int]) -> None:
        """Raise ValueError for the first header that is another than that of its tensor."""
        for i, header in enumerate(headers):
            if header != self.headers[i]:
                raise ValueError(f"sparse payload: {self._wrong(i, header)}")

    def _wrong(self, i: int, header: int) -> str:
        """What is wrong with the header that arrived for a tensor."""
        n, coding, kind = self.sizes[i], header >> 48 & 0xFF, header >> 40 & 0xFF
        count = header & (1 << _COUNT_BITS) - 1
        if header >> 56 != MAGIC:
            return f"{header:#x} is not a header of one: {DAMAGED}"
        each = [SparseLayouts.of((n,), (count,), name, self.kind) for name in CODINGS[1:]]
        known = {int(one.coding[0]): one.announces(0) for one in each}
        if coding not in known:
            return f"its places have the unknown coding {coding}: {DAMAGED}"
        if kind != self._told_kind:
            return (
                f"its values are of type {kind}, this worker's of type {self._told_kind} (of "
                f"{', '.join(VALUES)}): all workers need one setting `values`"
            )
        if count > n:
            return f"{count} entries of {n}: {DAMAGED}"
        if known[coding] != self.announces(i):
            return (
                f"{self.announces(i)} words of places, scales and values came with a header that announces "
                f"{known[coding]}: {DAMAGED}"
            )
        return (
            f"its places have the coding {coding}, this worker's {self.coding[i]}: all workers need one "
            "setting `indices`"
        )

    def announces(self, i: int) -> tuple[int, int, int]:
        """Words of places, scales, and values of a tensor."""
        return int(self.num_words[i]), int(self.num_scales[i]), int(self.k[i])

    @property
    def _told_kind(self) -> int:
        """What headers call the type of the values."""
        return kernels.FP32 if self.kind == SHARED else self.kind


def _filled(num_bytes: Numbers) -> Numbers:
    """Up to a multiple of 8: where a header may follow."""
    return -(-num_bytes // 8) * 8


@dataclass(frozen=True, slots=True)
class Sparse(BatchPayload):
    """k entries of each tensor."""

    names: tuple[str, ...]
    layouts: SparseLayouts
    buffer: Tensor  # u8[layouts.num_bytes]
    ragged: ClassVar[bool] = True

    @classmethod
    def of(
        cls,
        names: tuple[str, ...],
        chosen: Selections,
        indices: str = PLAIN,
        values: str = "fp32",
        scratch: Scratch | None = None,
        *,
        shared: bool = False,
    ) -> Sparse:
        """The payload that sends selections. ``shared``: all values of a tensor are its first one."""
        kind = SHARED if shared else VALUES[values]
        layouts = SparseLayouts.of(chosen.sizes, chosen.counts, indices, kind)
        device = chosen.values.device
        size = layouts.num_bytes
        buffer = (
            torch.empty(size, dtype=torch.uint8, device=device)
            if scratch is None
            else scratch("sparse", size, torch.uint8, device)
        )
        payload = cls(names, layouts, buffer)
        if native.usable(chosen.values):
            _encode(
                len(names), integers(chosen.sizes), ctypes.byref(layouts.table), kind,
                chosen.values.data_ptr(), chosen.indices.data_ptr(),
                chosen.indices.dtype == torch.int64, chosen.starts.ctypes.data, buffer.data_ptr(),
                torch.get_num_threads(),
            )  # fmt: skip
            return payload
        if on_gpu([chosen.values]):
            from dgc_repro.kernel.gpu import sparse as gpu

            gpu.encode(layouts.numbers, kind, chosen.values, chosen.indices, chosen.starts, buffer)
            return payload
        for i, own in enumerate(chosen):
            payload._write(i, own)
        return payload

    @classmethod
    def one(
        cls,
        selection: Selection,
        indices: str = PLAIN,
        values: str = "fp32",
        scratch: Scratch | None = None,
        *,
        shared: bool = False,
    ) -> Alone:
        """The same for one selection, as the payload of its tensor."""
        chosen = Selections.of([selection])
        return Alone(cls.of(("alone",), chosen, indices, values, scratch, shared=shared))

    @property
    def num_bytes(self) -> int:
        return self.layouts.num_bytes

    @property
    def num_floats(self) -> float:
        layouts = self.layouts
        return int(layouts.num_coded.sum()) * layouts.value_type.itemsize / 4

    @property
    def tensor_kinds(self) -> list[tuple[Kind, ...]]:
        layouts = self.layouts
        scaled = layouts.kind == kernels.INT8
        columns = (layouts.num_words, layouts.num_scales, layouts.num_coded)
        return [
            (
                (1, torch.int64),
                (words, torch.int32),
                *([(scales, torch.float32)] if scaled else ()),
                (coded, layouts.value_type),
            )
            for words, scales, coded in np.stack(columns, 1).tolist()
        ]

    def by_tensor(self) -> list[tuple[int, float]]:
        layouts = self.layouts
        floats = layouts.num_coded * layouts.value_type.itemsize / 4
        return list(zip(layouts.tensor_bytes.tolist(), floats.tolist(), strict=True))

    @property
    def lengths(self) -> list[int]:
        numbers: list[int] = self.layouts.lengths.reshape(-1).tolist()
        return numbers

    def kinds(self, lengths: Sequence[int]) -> list[Kind]:
        return [(self.layouts.announced(lengths).num_bytes // 8, torch.int64)]

    def like_ragged(self, parts: Sequence[Tensor], lengths: Sequence[int]) -> Sparse:
        layouts = self.layouts.announced(lengths)
        return replace(self, layouts=layouts, buffer=parts[0].view(torch.uint8))

    def like(self, parts: Sequence[Tensor]) -> Sparse:
        return replace(self, buffer=parts[0].view(torch.uint8))

    def add_sum_to_(
        self, others: Sequence[Sparse], batch: Batch, weight: float, *, accumulate: bool
    ) -> None:
        every = (self, *others)
        if batch.native:
            tables = (_Table * len(every))(*(one.layouts.table for one in every))
            if _scatter(
                len(self.names), batch.lengths, batch.pointers, len(every), tables,
                native.pointers([one.buffer for one in every]), self.layouts.kind, weight,
                not accumulate, torch.get_num_threads(),
            ):  # fmt: skip
                for one in every:
                    one.selections()
                raise AssertionError("a broken payload was not found again")
            return
        if batch.on_gpu:
            from dgc_repro.kernel.gpu import sparse as gpu

            sources = [(one.layouts.numbers, one.buffer) for one in every]
            gpu.add_up(batch, sources, self.layouts.kind, weight, accumulate=accumulate)
            return
        for one in every:
            one.check()
        for i, tensor in enumerate(batch.tensors):
            flat = tensor.view(-1)
            if not accumulate:
                flat.zero_()
            for one in every:
                # Not index_add_(alpha=weight): the product is rounded before the sum, as in C.
                entries = one.selection(i)
                flat.index_add_(0, entries.indices, entries.values * weight)

    def zero_at_(self, batch: Batch) -> None:
        if batch.native:
            _zero_at(
                len(self.names), batch.lengths, batch.pointers, ctypes.byref(self.layouts.table),
                self.buffer.data_ptr(), torch.get_num_threads(),
            )  # fmt: skip
            return
        if batch.on_gpu:
            from dgc_repro.kernel.gpu import sparse as gpu

            gpu.zero_at(batch, self.layouts.numbers, self.buffer)
            return
        for i, tensor in enumerate(batch.tensors):
            tensor.view(-1).index_fill_(0, self.selection(i).indices.long(), 0.0)

    def check(self) -> None:
        """Raise ValueError where a header is broken. On a GPU none is read: that would be a transfer."""
        if self.buffer.device.type == "cpu":
            headers = self.buffer.numpy().view(np.int64)[self.layouts.starts[0] // 8]
            self.layouts.check(headers.tolist())

    def selections(self) -> list[Selection]:
        """The entries of every tensor, as they are decoded. Raises ValueError where one is broken."""
        self.check()
        return [self.selection(i) for i in range(len(self.names))]

    def selection(self, i: int) -> Selection:
        """The entries of one tensor, as they are decoded."""
        layouts, n = self.layouts, self.layouts.sizes[i]
        k, coding = int(layouts.k[i]), int(layouts.coding[i])
        places = kernels.decode_places(self.part(i, 1), n, k, coding)
        coded = self.part(i, 3)
        if layouts.kind == SHARED:
            return Selection(coded.expand(k), places, n)
        return Selection(kernels.decode_values(coded, self.part(i, 2), layouts.kind), places, n)

    def dense(self) -> list[Tensor]:
        found = []
        for own in self.selections():
            found.append(torch.zeros(own.n, device=own.values.device))
            found[-1][own.indices.long()] = own.values
        return found

    def part(self, i: int, which: int) -> Tensor:
        """Header, words, scales or values of one tensor, as a view."""
        layouts = self.layouts
        dtype = (torch.int64, torch.int32, torch.float32, layouts.value_type)[which]
        count = (1, layouts.num_words[i], layouts.num_scales[i], layouts.num_coded[i])[which]
        start = int(layouts.starts[which][i])
        return self.buffer[start : start + int(count) * dtype.itemsize].view(dtype)

    def _write(self, i: int, own: Selection) -> None:
        """With tensor operations: the reference of the C kernel."""
        layouts = self.layouts
        self.part(i, 0).fill_(int(layouts.headers[i]))
        words, coding = self.part(i, 1), int(layouts.coding[i])
        indices = own.indices.contiguous()
        if coding in INDICES.values():
            kernels.encode_places(indices, own.n, coding, words)
        else:
            words.copy_(indices.view(torch.int32))
        if layouts.kind == SHARED:
            self.part(i, 3).fill_(own.values[0] if own.values.numel() else 0.0)
            return
        coded, scales = code_values(own.values, layouts.kind)
        self.part(i, 3).copy_(coded)
        if scales is not None:
            self.part(i, 2).copy_(scales)
