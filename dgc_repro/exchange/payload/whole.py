"""The tensor itself as a payload."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dgc_repro.exchange.payload.interface import Own
from dgc_repro.kernel import batch as kernels
from dgc_repro.kernel import narrow
from dgc_repro.kernel.batch import Batch


@dataclass(frozen=True, slots=True)
class Whole:
    """The tensor itself, every value of it."""

    values: Tensor  # any float type, contiguous

    @property
    def parts(self) -> tuple[Tensor, ...]:
        return (self.values.view(-1),)

    @property
    def num_floats(self) -> float:
        return self.values.nbytes / 4

    def like(self, parts: Sequence[Tensor]) -> Whole:
        (values,) = parts
        return Whole(values.view(self.values.shape))

    def add_to_(self, buffer: Tensor, weight: float) -> None:
        buffer.view(-1).add_(self.values.view(-1), alpha=weight)

    def copy_to_(self, buffer: Tensor, weight: float) -> None:
        torch.mul(self.values.view(-1).to(buffer.dtype), weight, out=buffer.view(-1))

    def subtract_from_(self, buffer: Tensor) -> None:
        buffer.view(-1).sub_(self.values.view(-1))


@dataclass(frozen=True, slots=True)
class Wholes(Own):
    """The tensors of a batch themselves."""

    batch: Batch

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
