"""The learning rate as a pure function of the epoch reached: nothing to save, nothing to resume.

Every schedule may begin with a linear warm-up over ``warmup_epochs`` (Goyal et al., "Accurate, large
minibatch SGD", 2017, arXiv:1706.02677, section 2.2). ``epoch`` is fractional and counts from 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Protocol

from dgc_repro.checked import MOST, Positive, Rule, checked, within


class Schedule(Protocol):
    """A factor on the base learning rate."""

    def factor(self, epoch: float, num_epochs: int) -> float:
        """The factor after ``epoch`` of ``num_epochs`` epochs."""


def _warmed(epoch: float, warmup_epochs: float, factor: float) -> float:
    return factor * min(1.0, epoch / warmup_epochs) if warmup_epochs > 0 else factor


WarmupEpochs = Annotated[float, within(0)]
ASCENDING = Rule("a list of epochs, ascending", lambda epochs: list(epochs) == sorted(epochs))


@checked
class Constant:
    """The base learning rate throughout. ``warmup_epochs``: epochs in which the rate rises from 0."""

    warmup_epochs: WarmupEpochs = 0.0

    def factor(self, epoch: float, num_epochs: int) -> float:
        return _warmed(epoch, self.warmup_epochs, 1.0)


@checked
class Step:
    """The rate falls at milestones. ``milestones_epochs``: epochs at which the rate is multiplied.
    ``gamma``: by this factor. ``warmup_epochs``: epochs in which the rate rises from 0."""

    milestones_epochs: Annotated[Sequence[float], ASCENDING] = ()
    gamma: Positive = 0.1
    warmup_epochs: WarmupEpochs = 0.0

    def __post_init__(self) -> None:
        times = max(1, len(self.milestones_epochs))
        if times * math.log10(self.gamma) > math.log10(MOST):
            raise ValueError(
                f"gamma: the learning rate at most {MOST:.0e} times as high after {times} milestones, got "
                f"{self.gamma:g}; 0.1 is usual"
            )

    def factor(self, epoch: float, num_epochs: int) -> float:
        passed = sum(epoch >= milestone for milestone in self.milestones_epochs)
        return _warmed(epoch, self.warmup_epochs, self.gamma**passed)


@checked
class Cosine:
    """Half a cosine from 1 to ``last`` over the run (Loshchilov and Hutter, "SGDR", 2016,
    arXiv:1608.03983, equation 5, without restarts). ``last``: share of the rate at the end of the run.
    ``warmup_epochs``: epochs in which the rate rises from 0."""

    last: Annotated[float, within(0, 1)] = 0.0
    warmup_epochs: WarmupEpochs = 0.0

    def factor(self, epoch: float, num_epochs: int) -> float:
        cosine = 0.5 * (1 + math.cos(math.pi * epoch / num_epochs))
        return _warmed(epoch, self.warmup_epochs, self.last + (1 - self.last) * cosine)


@checked
class Triangular:
    """From ``first`` to 1 at ``peak``, a share of the run, and on to ``last`` at its end, linearly (Smith,
    Topin, "Super-convergence", 2017, arXiv:1708.07120; the values are airbench's). ``first``: share of the
    rate at the beginning. ``peak``: the share of the run after which the whole rate is reached. ``last``:
    share of the rate at the end. ``warmup_epochs``: epochs in which the rate rises from 0."""

    first: Annotated[float, within(0, 1)] = 0.2
    peak: Annotated[float, within(above=0, below=1)] = 0.23
    last: Annotated[float, within(0, 1)] = 0.07
    warmup_epochs: WarmupEpochs = 0.0

    def factor(self, epoch: float, num_epochs: int) -> float:
        share = epoch / num_epochs
        if share < self.peak:
            factor = self.first + (1 - self.first) * share / self.peak
        else:
            factor = 1 + (self.last - 1) * (share - self.peak) / (1 - self.peak)
        return _warmed(epoch, self.warmup_epochs, factor)
