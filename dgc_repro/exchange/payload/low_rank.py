"""Two thin factors of each matrix of a batch as a payload."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from dgc_repro.exchange.payload.interface import Own
from dgc_repro.kernel import lowrank
from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.lowrank import Matrices


@dataclass(frozen=True, slots=True)
class LowRank(Own):
    """p^T q of each matrix, of rank r, read row by row. The p of all matrices lie one after another, and
    so do the q."""

    matrices: Matrices
    p: Tensor  # f32, [r, rows] of each
    q: Tensor  # f32, [r, cols] of each

    @property
    def parts(self) -> tuple[Tensor, ...]:
        return (self.p, self.q)

    def like(self, parts: Sequence[Tensor]) -> LowRank:
        p, q = parts
        if (p.numel(), q.numel()) != (self.p.numel(), self.q.numel()):
            raise ValueError("factors of another size than this worker's")
        return replace(self, p=p, q=q)

    def _subtract_from(self, batch: Batch) -> None:
        lowrank.outer(batch, self.matrices, self.p, self.q, -1.0, accumulate=True)
