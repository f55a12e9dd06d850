"""What was sent of a batch in another way than gathered as one payload.

Averages (`Wholes`, `Halves`, `LowRank`) travel as `Mean`; the payloads of a `Parted` travel one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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

    @property
    def parts(self) -> tuple[Tensor, ...]:
        return tuple(tensor.view(-1) for tensor in self.batch.tensors)

    def like(self, parts: Sequence[Tensor]) -> Wholes:
        shaped = zip(parts, self.batch.tensors, strict=True)
        return Wholes(self.batch.like([part.view(like.shape) for part, like in shaped]))

    def _subtract_from(self, batch: Batch) -> None:
        kernels.add(batch, self.batch.tensors, batch.tensors, -1.0)


@dataclass(frozen=True, slots=True)
class Halves(Own):
    """The tensors of a batch in a narrow type, one after another."""

    values: Tensor  # fp16[n] or bf16[n]

    @property
    def parts(self) -> tuple[Tensor, ...]:
        return (self.values,)

    def like(self, parts: Sequence[Tensor]) -> Halves:
        return Halves(*parts)

    def _subtract_from(self, batch: Batch) -> None:
        narrow.widen(self.values, batch, -1.0, accumulate=True)


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
            elif hasattr(payload, "indices"):
                name = type(payload).__name__
                raise TypeError(
                    f"{name}: a payload with indices needs zero_at_(buffer), which zeros them"
                )
