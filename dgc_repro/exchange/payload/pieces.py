"""The tensors of a batch in stretches, each with those of the others in a payload of its own."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dgc_repro.exchange.payload.separate import Several
from dgc_repro.kernel.batch import Batch


@dataclass(frozen=True, slots=True)
class Pieces(Several):
    """``stretches``: where those of each payload begin and end; together they cover the tensors, of these
    ``sizes``."""

    stretches: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    sizes: tuple[int, ...]

    def views(self, batch: Batch) -> list[Batch]:
        return [batch.slices(starts, ends) for starts, ends in self.stretches]

    def by_tensor(self) -> list[tuple[int, float]]:
        each = zip(*(payload.by_tensor() for payload in self.payloads), strict=True)
        return [(sum(size for size, _ in own), sum(floats for _, floats in own)) for own in each]

    def add_to_(self, batch: Batch, weight: float) -> None:
        for payload, view in zip(self.payloads, self.views(batch), strict=True):
            payload.add_to_(view, weight)

    def copy_to_(self, batch: Batch, weight: float) -> None:
        for payload, view in zip(self.payloads, self.views(batch), strict=True):
            payload.copy_to_(view, weight)

    def dense(self) -> list[Tensor]:
        found = [torch.zeros(n, device=self.payloads[0].buffer.device) for n in self.sizes]
        self.copy_to_(Batch(("",) * len(found), found), 1.0)
        return found
