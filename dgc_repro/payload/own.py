"""What was sent of a batch in another way than gathered as one payload: averages, and payloads one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from dgc_repro.kernel import batch as kernels
from dgc_repro.kernel import lowrank, narrow
from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.lowrank import Matrices
from dgc_repro.payload.interface import Own, as_batch


@dataclass(frozen=True, slots=True)
class Wholes(Own):
    """The tensors of a batch themselves."""

    batch: Batch

    @classmethod
    def of(cls, tensor: Tensor) -> Wholes:
        """One tensor itself."""
        return cls(as_batch(tensor))

    def _subtract_from(self, batch: Batch) -> None:
        kernels.add(batch, self.batch.tensors, batch.tensors, -1.0)


@dataclass(frozen=True, slots=True)
class Halves(Own):
    """The tensors of a batch in a narrow type, one after another."""

    values: Tensor  # fp16[n] or bf16[n]

    def _subtract_from(self, batch: Batch) -> None:
        narrow.widen(self.values, batch, -1.0, accumulate=True)


@dataclass(frozen=True, slots=True)
class LowRank(Own):
    """p^T q of each matrix, of rank r, read row by row. The p of all matrices lie one after another, and
    so do the q."""

    matrices: Matrices
    p: Tensor  # f32, [r, rows] of each
    q: Tensor  # f32, [r, cols] of each

    def _subtract_from(self, batch: Batch) -> None:
        lowrank.outer(batch, self.matrices, self.p, self.q, -1.0, accumulate=True)


@dataclass(frozen=True, slots=True)
class Parted(Own):
    """What was sent of a batch, in several payloads. It is never sent as such: its payloads have been.
    ``cut``: from a batch to what each payload is of, a tensor or a batch."""

    payloads: tuple[Any, ...]
    cut: Callable[[Batch], Sequence[Batch | Tensor]]

    def _subtract_from(self, batch: Batch) -> None:
        for payload, view in zip(self.payloads, self.cut(batch), strict=True):
            payload.subtract_from_(view)

    def _zero_at(self, batch: Batch) -> None:
        for payload, view in zip(self.payloads, self.cut(batch), strict=True):
            if hasattr(payload, "zero_at_"):  # a payload of one tensor need not have it
                payload.zero_at_(view)
            elif hasattr(payload, "indices"):
                name = type(payload).__name__
                raise TypeError(
                    f"{name}: a payload with indices needs zero_at_(buffer), which zeros them"
                )
