"""The tensor itself as a payload."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

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

    def dense(self) -> Tensor:
        return self.values.reshape(-1).float().clone()


@dataclass(frozen=True, slots=True)
class Wholes:
    """The tensors of a batch themselves."""

    batch: Batch

    @property
    def parts(self) -> tuple[Tensor, ...]:
        return tuple(tensor.view(-1) for tensor in self.batch.tensors)

    @property
    def num_floats(self) -> float:
        return sum(tensor.nbytes for tensor in self.batch.tensors) / 4

    def by_tensor(self) -> list[tuple[int, float]]:
        """Bytes and floats of each tensor."""
        return [(tensor.nbytes, tensor.nbytes / 4) for tensor in self.batch.tensors]

    def like(self, parts: Sequence[Tensor]) -> Wholes:
        shaped = zip(parts, self.batch.tensors, strict=True)
        return Wholes(self.batch.like([part.view(like.shape) for part, like in shaped]))

    def subtract_from_(self, batch: Batch) -> None:
        if (batch.native and self.batch.native) or (batch.on_gpu and self.batch.on_gpu):
            kernels.add(batch, self.batch.tensors, batch.tensors, -1.0)
            return
        for tensor, values in zip(batch.tensors, self.batch.tensors, strict=True):
            Whole(values).subtract_from_(tensor)

    def zero_at_(self, batch: Batch) -> None:
        """Nothing: it has no places."""

    def dense(self) -> list[Tensor]:
        return [Whole(values).dense() for values in self.batch.tensors]


@dataclass(frozen=True, slots=True)
class Halves:
    """The tensors of a batch in a narrow type, one after another."""

    values: Tensor  # fp16[n] or bf16[n]
    sizes: tuple[int, ...]  # values of each tensor

    @property
    def parts(self) -> tuple[Tensor, ...]:
        return (self.values,)

    @property
    def num_floats(self) -> float:
        return self.values.nbytes / 4

    def by_tensor(self) -> list[tuple[int, float]]:
        """Bytes and floats of each tensor."""
        return [(2 * n, n / 2) for n in self.sizes]

    def like(self, parts: Sequence[Tensor]) -> Halves:
        (values,) = parts
        return Halves(values, self.sizes)

    def subtract_from_(self, batch: Batch) -> None:
        narrow.widen(self.values, batch, -1.0, accumulate=True)

    def zero_at_(self, batch: Batch) -> None:
        """Nothing: it has no places."""

    def dense(self) -> list[Tensor]:
        return list(self.values.float().split(self.sizes))
