"""Payloads of a batch whose tensors were not all compressed together: one by one, in parts, in stretches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from dgc_repro.exchange.payload.interface import Own
from dgc_repro.kernel.batch import Batch


@dataclass(frozen=True, slots=True)
class Parted(Own):
    """What was sent of a batch, in several payloads. It is never sent as such: its payloads have been.
    ``cut``: from a batch to what each payload is of, a tensor or a batch."""

    payloads: tuple[Any, ...]
    cut: Callable[[Batch], Sequence[Batch | Tensor]]

    @property
    def parts(self) -> tuple[Tensor, ...]:
        return tuple(part for payload in self.payloads for part in payload.parts)

    def like(self, parts: Sequence[Tensor]) -> Parted:
        given = iter(parts)
        payloads = [p.like([next(given) for _ in p.parts]) for p in self.payloads]
        return replace(self, payloads=tuple(payloads))

    def _subtract_from(self, batch: Batch) -> None:
        for payload, view in zip(self.payloads, self.cut(batch), strict=True):
            payload.subtract_from_(view)

    def _zero_at(self, batch: Batch) -> None:
        for payload, view in zip(self.payloads, self.cut(batch), strict=True):
            if hasattr(payload, "zero_at_"):  # a payload of one tensor need not have it
                payload.zero_at_(view)
