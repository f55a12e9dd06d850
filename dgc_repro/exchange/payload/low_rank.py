"""Two thin factors of each matrix of a batch as a payload."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dgc_repro.kernel import lowrank
from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.lowrank import Matrices


@dataclass(frozen=True, slots=True)
class LowRank:
    """p^T q of each matrix, of rank r, read row by row. The p of all matrices lie one after another, and
    so do the q."""

    matrices: Matrices
    p: Tensor  # f32, [r, rows] of each
    q: Tensor  # f32, [r, cols] of each

    @property
    def parts(self) -> tuple[Tensor, ...]:
        return (self.p, self.q)

    @property
    def num_floats(self) -> float:
        return float(self.p.numel() + self.q.numel())

    def by_tensor(self) -> list[tuple[int, float]]:
        """Bytes and floats of each tensor."""
        sizes = zip(self.matrices.p_sizes, self.matrices.q_sizes, strict=True)
        return [(4 * (p + q), float(p + q)) for p, q in sizes]

    def like(self, parts: Sequence[Tensor]) -> LowRank:
        p, q = parts
        if (p.numel(), q.numel()) != (self.p.numel(), self.q.numel()):
            raise ValueError("factors of another size than this worker's")
        return replace(self, p=p, q=q)

    def subtract_from_(self, batch: Batch) -> None:
        lowrank.outer(batch, self.matrices, self.p, self.q, -1.0, accumulate=True)

    def zero_at_(self, batch: Batch) -> None:
        """Nothing: it has no places."""

    def dense(self) -> list[Tensor]:
        values = [
            torch.empty(rows * cols, device=self.p.device) for rows, cols in self.matrices.sizes
        ]
        batch = Batch(tuple(map(str, range(len(values)))), values)
        lowrank.outer(batch, self.matrices, self.p, self.q, 1.0, accumulate=False)
        return values
