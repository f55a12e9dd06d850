"""The learning rate as a pure function of the epoch reached: nothing to save, nothing to resume.

Every schedule may begin with a linear warm-up over ``warmup_epochs`` (Goyal et al., "Accurate, large
minibatch SGD", 2017, arXiv:1706.02677, section 2.2). ``epoch`` is fractional and counts from 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from dgc_repro.policy.checks import check_number


class Schedule(Protocol):
    """A factor on the base learning rate."""

    def factor(self, epoch: float, num_epochs: int) -> float:
        """The factor after ``epoch`` of ``num_epochs`` epochs."""


def _warmed(epoch: float, warmup_epochs: float, factor: float) -> float:
    return factor * min(1.0, epoch / warmup_epochs) if warmup_epochs > 0 else factor


def _check_warmup(warmup_epochs: float) -> None:
    check_number("warmup_epochs", warmup_epochs)
    if warmup_epochs < 0:
        raise ValueError(f"warmup_epochs: from 0, got {warmup_epochs}")


@dataclass(frozen=True)
class Constant:
    """The base learning rate throughout."""

    warmup_epochs: float = 0.0

    def __post_init__(self) -> None:
        _check_warmup(self.warmup_epochs)

    def factor(self, epoch: float, num_epochs: int) -> float:
        return _warmed(epoch, self.warmup_epochs, 1.0)


@dataclass(frozen=True)
class Step:
    """Multiplied by ``gamma`` at each of ``milestones_epochs``."""

    milestones_epochs: Sequence[float] = ()
    gamma: float = 0.1
    warmup_epochs: float = 0.0

    def __post_init__(self) -> None:
        _check_warmup(self.warmup_epochs)
        check_number("gamma", self.gamma, "a factor above 0", lambda gamma: gamma > 0)
        given: object = self.milestones_epochs
        if isinstance(given, str) or not isinstance(given, Sequence):
            raise ValueError(f"milestones_epochs: a list of epochs, got {given!r}")
        for milestone in self.milestones_epochs:
            check_number("milestones_epochs", milestone)
        if list(self.milestones_epochs) != sorted(self.milestones_epochs):
            raise ValueError(f"milestones_epochs: ascending, got {list(self.milestones_epochs)}")

    def factor(self, epoch: float, num_epochs: int) -> float:
        passed = sum(epoch >= milestone for milestone in self.milestones_epochs)
        return _warmed(epoch, self.warmup_epochs, self.gamma**passed)


@dataclass(frozen=True)
class Cosine:
    """Half a cosine from 1 to 0 over the run (Loshchilov and Hutter, "SGDR", 2016,
    arXiv:1608.03983, equation 5, without restarts)."""

    warmup_epochs: float = 0.0

    def __post_init__(self) -> None:
        _check_warmup(self.warmup_epochs)

    def factor(self, epoch: float, num_epochs: int) -> float:
        return _warmed(
            epoch, self.warmup_epochs, 0.5 * (1 + math.cos(math.pi * epoch / num_epochs))
        )
