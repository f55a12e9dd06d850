"""What the seeds of a workload show of each setting's cost against dense training.

equivalent  its size is below the workload's margin
better      it is below 0
worse       it is above 0, or a seed diverged
undecided   the seeds do not tell, or there are fewer than three

Two questions are tested, with moderated t over the settings of the workload (statistics.py): is the cost
within the margin, and does it differ from 0? Holm's correction over the settings keeps the chance of one or
more false answers to a question at 5 %. A setting that is both worse and within the margin is equivalent.
Percentages are tested as logarithms of the ratio.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from dgc_repro.paper.benchmark.workloads import Workload
from dgc_repro.paper.statistics import COVERAGE, SHARED_BASELINE, Estimate, Prior, holm, moderated
from dgc_repro.paper.verdict import MIN_SEEDS

Word = Literal["equivalent", "better", "worse", "undecided"]
WORDS: tuple[Word, ...] = ("equivalent", "better", "worse", "undecided")
MOST_MORE = 99
"""Of the seeds that `Judged.more_seeds` looks at."""


@dataclass(frozen=True)
class Shown:
    """A setting's cost: its mean over ``n`` seeds (of percentages the geometric one) and its 95 % interval.
    Without an interval all three are equal. They are infinite where a seed diverged. ``alone``: the word
    without Holm's correction."""

    word: Word
    n: int
    mean: float
    low: float
    high: float
    alone: Word = "undecided"

    @property
    def bars(self) -> tuple[float, float]:
        """Lengths of the error bars, down and up."""
        return self.mean - self.low, self.high - self.mean

    @property
    def without_bars(self) -> Shown:
        """The same mean without an interval."""
        return replace(self, low=self.mean, high=self.mean)

    @property
    def interval(self) -> str:
        """The interval in words; '-' for none."""
        low, high = (f"{round(end, 2) + 0.0:.2f}" for end in (self.low, self.high))
        return "-" if self.low == self.high else f"{low} to {high}"


@dataclass(frozen=True)
class Judged:
    """What is shown of each setting of a workload, by row, and the estimates behind it.

    estimates  of the rows with three seeds or more, none diverged: a difference in points, or a ratio
    prior      of their variances; None for too few rows
    """

    workload: Workload
    shown: Mapping[str, Shown]
    estimates: Mapping[str, Estimate]
    prior: Prior | None

    def at_most(self, largest: float) -> set[str]:
        """The rows that are shown to lose less than ``largest``, with Holm's correction."""
        bound = _effect(largest, self.workload)
        p_values = [one.p_inside(-math.inf, bound) for one in self.estimates.values()]
        return {row for row, p in zip(self.estimates, holm(p_values), strict=True) if _is_shown(p)}

    def more_seeds(self, row: str) -> int | None:
        """How many more seeds would decide a row, if its mean and its spread and all other rows stay as they
        are. None: more than `MOST_MORE`, or unknown, because the row has too few seeds for an estimate."""
        rows = list(self.estimates)
        if row not in rows:
            return None
        place, estimates = rows.index(row), list(self.estimates.values())

        def is_decided(seeds: int) -> bool:
            longer = [*estimates[:place], estimates[place].extended(seeds), *estimates[place + 1 :]]
            return _words(longer, self.workload)[place] != "undecided"

        found = bisect_left(range(MOST_MORE + 1), True, key=is_decided)
        return found if found <= MOST_MORE else None

    @property
    def half_widths(self) -> list[float]:
        """Of the intervals, in the workload's unit."""
        return [
            (_cost(one.high, self.workload) - _cost(one.low, self.workload)) / 2
            for one in self.estimates.values()
        ]

    @property
    def prior_text(self) -> str:
        """The prior's standard deviation and degrees of freedom."""
        if self.prior is None:
            return "none, too few settings"
        sd = self.prior.sd if self.workload.is_difference else 100 * self.prior.sd
        freedom = "infinitely many" if math.isinf(self.prior.df) else f"{self.prior.df:.1f}"
        return f"{sd:.2g} {self.workload.unit} with {freedom} degrees of freedom"


def judge(costs: Mapping[str, Sequence[float]], workload: Workload) -> Judged:
    """Judge the settings of a workload. ``costs``: by row, one a seed, in the workload's unit."""
    finite = {row: own for row, own in costs.items() if np.isfinite(own).all()}
    tested = {row: own for row, own in finite.items() if len(own) >= MIN_SEEDS and np.any(own)}
    estimates, prior = moderated(
        [[_effect(cost, workload) for cost in own] for own in tested.values()],
        ratio=not workload.is_difference,
        overlap=SHARED_BASELINE,
    )
    by_row = dict(zip(tested, estimates, strict=True))
    words = dict(zip(tested, _words(estimates, workload), strict=True))
    alone = dict(zip(tested, _words(estimates, workload, correct=list), strict=True))
    shown = {}
    for row, own in costs.items():
        if row in tested:
            one = by_row[row]
            mean, low, high = (_cost(value, workload) for value in (one.mean, one.low, one.high))
            shown[row] = Shown(words[row], len(own), mean, low, high, alone[row])
        elif row not in finite:
            shown[row] = Shown("worse", len(own), *3 * (math.inf,), "worse")
        else:  # too few seeds, or the training of dense itself
            word: Word = "equivalent" if len(own) >= MIN_SEEDS else "undecided"
            shown[row] = Shown(word, len(own), *3 * (float(np.mean(own)),), word)
    return Judged(workload, shown, by_row, prior)


def _words(
    estimates: Sequence[Estimate],
    workload: Workload,
    correct: Callable[[Sequence[float]], list[float]] = holm,
) -> list[Word]:
    """The word of each estimate. ``correct``: the p-values of a question for their number."""
    none, margin = _effect(0.0, workload), _effect(workload.margin, workload)
    low = -margin if workload.is_difference else 1 / margin
    differs = correct([one.p_outside(none, none) for one in estimates])
    is_small = correct([one.p_inside(low, margin) for one in estimates])
    found: list[Word] = ["better" if one.mean < none else "worse" for one in estimates]
    return [
        "equivalent" if _is_shown(small) else word if _is_shown(large) else "undecided"
        for word, large, small in zip(found, differs, is_small, strict=True)
    ]


def _is_shown(p: float) -> bool:
    return p < 1 - COVERAGE


def _effect(cost: float, workload: Workload) -> float:
    """A cost as it is tested: points as they are, percent as a ratio."""
    return cost if workload.is_difference else 1 + cost / 100


def _cost(effect: float, workload: Workload) -> float:
    return effect if workload.is_difference else 100 * (effect - 1)
