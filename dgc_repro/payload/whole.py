"""The tensor itself as a payload."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


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
