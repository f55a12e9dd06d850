"""Values at places that a key determines, of each tensor of a batch, as a payload.

Of each tensor: a header of 8 bytes where keys travel, and the values, float32. The header is the key, a
signed number of 32 bits.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from dgc_repro.kernel import native, permute
from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.cached import cached
from dgc_repro.kernel.layout import Layout
from dgc_repro.kernel.native import INT32, POINTER, Function
from dgc_repro.payload.interface import BatchPayload

_gather = Function("dgc_keyed_gather_all")
_scatter = Function("dgc_keyed_scatter_all")
_zero = Function("dgc_keyed_zero_all")


class _Table(ctypes.Structure):
    """`keyed_t` of c/permute.c."""

    _fields_ = (
        *((name, POINTER) for name in ("k", "header_at", "values_at")),
        ("travels", INT32),
    )


class KeyedLayout(Layout):
    """Header and values of each tensor. ``sizes``: values of each tensor; ``counts``: how many are sent;
    ``travels``: whether keys do."""

    def __init__(
        self, sizes: tuple[int, ...], counts: tuple[int, ...], travels: bool = False
    ) -> None:
        self.counts = counts
        self.travels = travels
        k = np.array(counts, dtype=np.int64)
        headers = np.ones_like(k) if travels else None
        super().__init__(sizes, [(headers, torch.int64), (k, torch.float32)], k.astype(np.float64))
        self.table = _Table(self.lengths[1].ctypes.data, self.of(0), self.of(1), int(travels))


@dataclass(frozen=True, slots=True)
class Keyed(BatchPayload):
    """k entries of each tensor, at the first places of the permutation that its key draws
    (kernel/permute.py). Keys travel where workers have keys of their own, else all know them."""

    layout: KeyedLayout
    keys: Tensor  # i32[tensors]

    @classmethod
    def of(
        cls,
        batch: Batch,
        layout: KeyedLayout,
        keys: Tensor,
        buffer: Tensor,
        *,
        scaled: bool = False,
    ) -> Keyed:
        """The payload that sends entries of a batch, in a buffer. ``scaled``: n / k times as large."""
        payload = cls(batch.names, layout, buffer, keys)
        if batch.native:
            _gather(
                len(batch), batch.lengths, batch.pointers, keys.data_ptr(), ctypes.byref(layout.table),
                scaled, buffer.data_ptr(),
            )  # fmt: skip
            return payload
        if batch.on_gpu:
            from dgc_repro.kernel.gpu import keyed as gpu

            gpu.gather(batch, layout, keys, buffer, scaled=scaled)
            return payload
        for i, tensor in enumerate(batch.tensors):
            if layout.travels:
                layout.view(buffer, i, 0).fill_(keys[i].long())
            n, k = layout.sizes[i], layout.counts[i]
            drawn = tensor.view(-1)[payload._places(i)] * (n / k if scaled and k else 1.0)
            layout.view(buffer, i, 1).copy_(drawn)
        return payload

    @property
    def values(self) -> Tensor:
        """The values of all tensors, one after another, where nothing else is sent: f32."""
        return self.buffer[: self.layout.end].view(torch.float32)

    def like(self, row: Tensor) -> Keyed:
        other = BatchPayload.like(self, row)
        if not self.layout.travels:
            return other
        headers = row.view(torch.int64)[_words(self.layout, row.device)]
        if row.device.type == "cpu":
            self._check(headers)
        return replace(other, keys=headers.to(torch.int32))  # the lower 32 bits

    def add_sum_to_(
        self, others: Sequence[Keyed], batch: Batch, weight: float, *, accumulate: bool
    ) -> None:
        every = (self, *others)
        if batch.native:
            _scatter(
                len(batch), batch.lengths, batch.pointers, len(every),
                native.pointers([one.keys for one in every]), ctypes.byref(self.layout.table),
                native.pointers([one.buffer for one in every]), weight, not accumulate,
            )  # fmt: skip
            return
        if batch.on_gpu:
            from dgc_repro.kernel.gpu import keyed as gpu

            sources = [(one.keys, one.buffer) for one in every]
            gpu.add_up(batch, self.layout, sources, weight, accumulate=accumulate)
            return
        layout = self.layout
        for i, tensor in enumerate(batch.tensors):
            flat = tensor.view(-1)
            if not accumulate:
                flat.zero_()
            for one in every:
                flat[one._places(i)] += layout.view(one.buffer, i, 1) * weight

    def _zero_at(self, batch: Batch) -> None:
        if batch.native:
            _zero(
                len(batch), batch.lengths, batch.pointers, self.keys.data_ptr(),
                ctypes.byref(self.layout.table),
            )  # fmt: skip
            return
        if batch.on_gpu:
            from dgc_repro.kernel.gpu import keyed as gpu

            gpu.zero_at(batch, self.layout, self.keys)
            return
        for i, tensor in enumerate(batch.tensors):
            tensor.view(-1).index_fill_(0, self._places(i), 0.0)

    def _places(self, i: int) -> Tensor:
        """i64[k], in the order of the permutation."""
        layout = self.layout
        return permute.places(layout.sizes[i], self.keys[i], layout.counts[i], self.buffer.device)

    def _check(self, headers: Tensor) -> None:
        """Raise ValueError for the first header that holds no key."""
        wrong = (headers + 2**31 >> 32).nonzero()
        if wrong.numel():
            number = int(headers[wrong[0]])
            raise ValueError(
                f"keyed payload: its header holds {number}, which is no key of 32 bits"
            )


@cached()
def _words(layout: KeyedLayout, device: torch.device) -> Tensor:
    """Where headers lie, counted in words of 8 bytes."""
    return torch.from_numpy(layout.starts[0] // 8).to(device)
