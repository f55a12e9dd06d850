"""Values and places of a batch as a payload.

Of each tensor: a header of 8 bytes that says how the rest is coded (from the highest byte down `MAGIC`,
coding of the places, type of the values, and 5 bytes of k), places, scales, values (kernel/sparse.py). What
arrives is checked against its headers, by whoever has received it.
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
from dgc_repro.exchange.payload.sparse import AUTO, DAMAGED, INDICES, MAGIC, PLAIN, announced
from dgc_repro.exchange.payload.values import DTYPES, VALUES, code_values
from dgc_repro.kernel import native
from dgc_repro.kernel import sparse as kernels
from dgc_repro.kernel.batch import Batch, integers, on_gpu
from dgc_repro.kernel.chosen import Selections, starts_of
from dgc_repro.kernel.select import Scratch, Selection

Numbers = npt.NDArray[np.int64]
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
    @lru_cache(maxsize=256)
    def of(
        cls, sizes: tuple[int, ...], counts: tuple[int, ...], indices: str, kind: int
    ) -> SparseLayouts:
        """For so many entries of each tensor. ``indices``: of `CODINGS`."""
        n, k = np.array(sizes, dtype=np.int64), np.array(counts, dtype=np.int64)
        plain = np.where(n <= 2**31 - 1, kernels.INT32, kernels.INT64)
        codings = [plain, np.full_like(n, kernels.DELTA16), np.full_like(n, kernels.BITMAP)]
        if indices == AUTO:  # the fewest bytes; of equal ones the one that is quickest to read
            words = np.stack([_num_words(n, k, coding) for coding in codings])
            coding = np.stack(codings)[words.argmin(0), np.arange(len(n))]
        else:
            coding = codings[0] if indices == PLAIN else np.full_like(n, INDICES[indices])
        return cls(
            sizes,
            indices,
            k,
            coding.astype(np.int32),
            kind,
            _num_words(n, k, coding),
            _num_scales(k, kind),
            np.ones_like(k) if kind == SHARED else k,
        )

    def announced(self, lengths: Sequence[int]) -> SparseLayouts:
        """The layouts of a worker from the `lengths` that it sent."""
        told = np.array(lengths, dtype=np.int64).reshape(len(self.sizes), -1)
        counts = told[:, -1]
        if (counts < 0).any() or (counts > np.array(self.sizes)).any():
            i = int(np.argmax((counts < 0) | (counts > np.array(self.sizes))))
            raise ValueError(f"sparse payload: {counts[i]} entries of {self.sizes[i]}: {DAMAGED}")
        own = SparseLayouts.of(self.sizes, tuple(counts.tolist()), self.indices, self.kind)
        if not np.array_equal(own.lengths, told):
            i = int(np.argmax((own.lengths != told).any(1)))
            raise ValueError(
                f"sparse payload: parts of {told[i].tolist()} came, and {own.lengths[i].tolist()} are "
                f"expected of {counts[i]} entries of {self.sizes[i]}: {DAMAGED}"
            )
        return own

    @cached_property
    def lengths(self) -> Numbers:
        """What travels first where k differs between workers: how long the header, the places and the scales
        of each tensor are, and k. i64[tensors, 3 or 4]."""
        columns = [np.ones_like(self.k), self.num_words, self.k]
        if self.kind == kernels.INT8:
            columns.insert(2, self.num_scales)
        return np.stack(columns, 1)

    @cached_property
    def _placed(self) -> tuple[Numbers, int]:
        """Where the four parts of each tensor begin, [4, tensors], and the bytes of all."""
        value = _type_of(self.kind).itemsize
        words, scales = 8 + 4 * self.num_words, 4 * self.num_scales
        sizes = words + scales + value * self.num_coded
        starts = starts_of(tuple((-(-sizes // 8) * 8).tolist()))
        at = np.stack([starts, starts + 8, starts + words, starts + words + scales])
        end = int(starts[-1] + sizes[-1]) if len(starts) else 0
        return np.ascontiguousarray(at), -(-end // 8) * 8

    @property
    def starts(self) -> Numbers:
        """Where header, places, scales and values of each tensor begin, in bytes: i64[4, tensors]."""
        return self._placed[0]

    @property
    def num_bytes(self) -> int:
        """Bytes that travel: a multiple of 8."""
        return self._placed[1]

    @cached_property
    def headers(self) -> Numbers:
        kind = kernels.FP32 if self.kind == SHARED else self.kind
        return (
            np.int64(MAGIC) << 56
            | self.coding.astype(np.int64) << 48
            | np.int64(kind) << 40
            | self.k
        )

    @cached_property
    def table(self) -> _Table:
        """For the C kernels."""
        arrays = (
            self.k, *self.starts, self.num_words, self.headers, self.coding,
        )  # fmt: skip
        return _Table(*(array.ctypes.data for array in arrays))

    @cached_property
    def numbers(self) -> Numbers:
        """For the kernels of kernel/gpu/sparse.py: i64[9, tensors]."""
        sizes = np.array(self.sizes, dtype=np.int64)
        coding = self.coding.astype(np.int64)
        return np.stack([sizes, self.k, *self.starts, self.num_words, self.headers, coding])

    def check(self, headers: Sequence[int]) -> None:
        """Raise ValueError for the first header that is another than that of its tensor."""
        kind = kernels.FP32 if self.kind == SHARED else self.kind
        for i, header in enumerate(headers):
            if header == self.headers[i]:
                continue
            layout = announced(header, self.sizes[i], kind)
            coded = layout.k if self.kind == SHARED else int(self.num_coded[i])
            layout.check(int(self.num_words[i]), int(self.num_scales[i]), coded)
            raise ValueError(
                f"sparse payload: its places have the coding {layout.coding}, this worker's "
                f"{self.coding[i]}: all workers need one setting `indices`"
            )


def _num_words(n: Numbers, k: Numbers, coding: Numbers) -> Numbers:
    """`kernels.num_words` of many."""
    return np.select(
        [coding == kernels.DELTA16, coding == kernels.BITMAP, coding == kernels.INT64],
        [(k + (n - k) // kernels.ESCAPE + 1) // 2, (n + 31) // 32, 2 * k],
        k,
    )


def _type_of(kind: int) -> torch.dtype:
    return DTYPES.get(kind, torch.float32)


def _num_scales(k: Numbers, kind: int) -> Numbers:
    return -(-k // kernels.SCALE_WIDTH) if kind == kernels.INT8 else np.zeros_like(k)


@dataclass(frozen=True, slots=True)
class SparseBatch(BatchPayload):
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
    ) -> SparseBatch:
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

    @property
    def num_bytes(self) -> int:
        return self.layouts.num_bytes

    @property
    def num_floats(self) -> float:
        if self.layouts.kind == SHARED:
            return float(len(self.names))
        return int(self.layouts.num_coded.sum()) * _type_of(self.layouts.kind).itemsize / 4

    def by_tensor(self) -> list[tuple[int, float]]:
        layouts = self.layouts
        coded = _type_of(layouts.kind).itemsize * layouts.num_coded
        sizes = 8 + 4 * layouts.num_words + 4 * layouts.num_scales + coded
        return [(int(size), float(value) / 4) for size, value in zip(sizes, coded, strict=True)]

    @property
    def lengths(self) -> list[int]:
        numbers: list[int] = self.layouts.lengths.reshape(-1).tolist()
        return numbers

    def kinds(self, lengths: Sequence[int]) -> list[tuple[int, torch.dtype]]:
        return [(self.layouts.announced(lengths).num_bytes // 8, torch.int64)]

    def like_ragged(self, parts: Sequence[Tensor], lengths: Sequence[int]) -> SparseBatch:
        layouts = self.layouts.announced(lengths)
        return replace(self, layouts=layouts, buffer=parts[0].view(torch.uint8))

    def like(self, parts: Sequence[Tensor]) -> SparseBatch:
        return replace(self, buffer=parts[0].view(torch.uint8))

    def add_sum_to_(
        self, others: Sequence[SparseBatch], batch: Batch, weight: float, *, accumulate: bool
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

    def selections(self) -> list[Selection]:
        """The entries of every tensor, as they are decoded. Raises ValueError where one is broken."""
        self.layouts.check([int(self._part(i, 0)) for i in range(len(self.names))])
        return [self.selection(i) for i in range(len(self.names))]

    def selection(self, i: int) -> Selection:
        """The entries of one tensor, as they are decoded."""
        layouts, n = self.layouts, self.layouts.sizes[i]
        k, coding = int(layouts.k[i]), int(layouts.coding[i])
        places = kernels.decode_places(self._part(i, 1), n, k, coding)
        coded = self._part(i, 3)
        if layouts.kind == SHARED:
            return Selection(coded.expand(k), places, n)
        return Selection(kernels.decode_values(coded, self._part(i, 2), layouts.kind), places, n)

    def dense(self) -> list[Tensor]:
        found = []
        for own in self.selections():
            found.append(torch.zeros(own.n, device=own.values.device))
            found[-1][own.indices.long()] = own.values
        return found

    def _part(self, i: int, which: int) -> Tensor:
        """Header, words, scales or values of one tensor, as a view."""
        layouts = self.layouts
        value = _type_of(layouts.kind)
        dtype = (torch.int64, torch.int32, torch.float32, value)[which]
        count = (1, layouts.num_words[i], layouts.num_scales[i], layouts.num_coded[i])[which]
        start = int(layouts.starts[which][i])
        return self.buffer[start : start + int(count) * dtype.itemsize].view(dtype)

    def _write(self, i: int, own: Selection) -> None:
        """With tensor operations: the reference of the C kernel."""
        layouts = self.layouts
        self._part(i, 0).fill_(int(layouts.headers[i]))
        words, coding = self._part(i, 1), int(layouts.coding[i])
        indices = own.indices.contiguous()
        if coding in INDICES.values():
            kernels.encode_places(indices, own.n, coding, words)
        else:
            words.copy_(indices.view(torch.int32))
        if layouts.kind == SHARED:
            self._part(i, 3).fill_(own.values[0] if own.values.numel() else 0.0)
            return
        coded, scales = code_values(own.values, layouts.kind)
        self._part(i, 3).copy_(coded)
        if scales is not None:
            self._part(i, 2).copy_(scales)
