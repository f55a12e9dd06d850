"""A model without batch normalization, whose gradient can be made to go wrong at chosen steps, and one
that raises on a rank.

Named in a config as ``model._target_: odd_models.Plain``; real processes need tests/ on PYTHONPATH.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Plain:
    """Two linear layers with 4 x ``width`` units between them.

    At each of ``poisoned_steps`` (from 0) the gradient of ``head.weight`` on ``poisoned_rank`` is
    NaN, while the loss stays finite, in a world of ``workers``."""

    width: int = 4
    poisoned_steps: Sequence[int] = ()
    poisoned_rank: int = 1
    workers: int = 2

    def build(self, num_classes: int) -> nn.Module:
        steps = frozenset(self.poisoned_steps)
        return _Plain(4 * self.width, num_classes, steps, self.poisoned_rank, self.workers)


class _Plain(nn.Module):
    def __init__(
        self, hidden: int, num_classes: int, steps: frozenset[int], rank: int, workers: int
    ) -> None:
        super().__init__()
        self.body = nn.Linear(3 * 8 * 8, hidden)
        self.head = nn.Linear(hidden, num_classes)
        self.steps, self.rank, self.workers, self.calls = steps, rank, workers, 0

    def forward(self, images: Tensor) -> Tensor:
        features = F.relu(self.body(F.avg_pool2d(images, 4).flatten(1)))
        weight = self.head.weight.clone()
        if self.training and self._is_poisoned():
            weight.register_hook(lambda gradient: gradient * float("nan"))
        return F.linear(features, weight, self.head.bias)

    def _is_poisoned(self) -> bool:
        call, self.calls = self.calls, self.calls + 1
        if "RANK" in os.environ:
            return call in self.steps and int(os.environ["RANK"]) == self.rank
        # Simulated: worker after worker.
        return call // self.workers in self.steps and call % self.workers == self.rank


@dataclass(frozen=True)
class Raising:
    """Raises in the forward pass of step ``at_step`` (from 1) on ``rank``, between two collectives."""

    width: int = 4
    at_step: int = 1
    rank: int = 1

    def build(self, num_classes: int) -> nn.Module:
        return _Raising(4 * self.width, num_classes, self)


class _Raising(_Plain):
    def __init__(self, hidden: int, num_classes: int, told: Raising) -> None:
        super().__init__(hidden, num_classes, frozenset(), 0, 1)
        self.told = told

    def forward(self, images: Tensor) -> Tensor:
        is_here = self.training and int(os.environ["RANK"]) == self.told.rank
        if is_here and self.calls + 1 == self.told.at_step:
            raise FloatingPointError("the forward pass went wrong")
        return super().forward(images)
