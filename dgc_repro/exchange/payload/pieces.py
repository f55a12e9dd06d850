"""The tensors of a batch in stretches, each with those of the others in a payload of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dgc_repro.exchange.payload.interface import BatchPayload
from dgc_repro.kernel.batch import Batch


@dataclass(frozen=True, slots=True)
class Pieces:
    """``stretches``: where those of each payload begin and end; together they cover the tensors, of these
    ``sizes``."""

    payloads: tuple[BatchPayload, ...]
    stretches: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    sizes: tuple[int, ...]

    @property
    def parts(self) -> tuple[Tensor, ...]:
        return tuple(part for payload in self.payloads for part in payload.parts)

    @property
    def num_floats(self) -> float:
        return sum(payload.num_floats for payload in self.payloads)

    def by_tensor(self) -> list[tuple[int, float]]:
        """Bytes and floats of each tensor."""
        each = zip(*(payload.by_tensor() for payload in self.payloads), strict=True)
        return [(sum(size for size, _ in own), sum(floats for _, floats in own)) for own in each]

    def like(self, parts: Sequence[Tensor]) -> Pieces:
        payloads = [p.like([part]) for p, part in zip(self.payloads, parts, strict=True)]
        return replace(self, payloads=tuple(payloads))

    def add_to_(self, batch: Batch, weight: float) -> None:
        for payload, (starts, ends) in zip(self.payloads, self.stretches, strict=True):
            payload.add_to_(batch.slices(starts, ends), weight)

    def copy_to_(self, batch: Batch, weight: float) -> None:
        for payload, (starts, ends) in zip(self.payloads, self.stretches, strict=True):
            payload.copy_to_(batch.slices(starts, ends), weight)

    def subtract_from_(self, batch: Batch) -> None:
        self.add_to_(batch, -1.0)

    def zero_at_(self, batch: Batch) -> None:
        """Nothing: every value was sent."""

    def dense(self) -> list[Tensor]:
        found = [torch.zeros(n, device=self.payloads[0].buffer.device) for n in self.sizes]
        self.copy_to_(Batch(("",) * len(found), found), 1.0)
        return found
