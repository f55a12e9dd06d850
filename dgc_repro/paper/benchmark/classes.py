"""What the seeds of a workload show of each setting's cost against a reference: its class (`MEANINGS`), and
what the interval alone shows (`Shown.is_worse`, `in_words`). All pages and printed tables take rule and words
from here.

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
UNDECIDED: Word = "undecided"
MEANINGS: Mapping[Word, str] = {
    "equivalent": "the size of the cost is below the margin",
    "better": "the cost is below 0",
    "worse": "the cost is above 0, or training diverged in a seed, whatever the number of seeds",
    UNDECIDED: f"none of these is shown, or there are fewer than {MIN_SEEDS} seeds, which is no sign of "
    "a small cost",
}
"""What the seeds show of a setting of each class. The first three are `SHOWN`."""
WORDS = tuple(MEANINGS)
SHOWN = WORDS[:-1]
MOST_MORE = 99
"""Of the seeds that `Judged.more_seeds` looks at."""
LARGE = 1e6


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
    alone: Word = UNDECIDED

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
        low, high = (cost_text(end) for end in (self.low, self.high))
        return f"{low} to {high}" if self.has_interval else "-"

    @property
    def has_interval(self) -> bool:
        """Whether there is an interval."""
        return self.low < self.high

    @property
    def is_worse(self) -> bool:
        """Whether the whole interval is above 0."""
        return self.has_interval and self.low > 0

    def is_within(self, margin: float) -> bool:
        """Whether the whole interval lies within the margin."""
        return self.has_interval and -margin < self.low and self.high < margin


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
        if row not in rows or math.isnan(self.estimates[row].mean):
            return None
        place, estimates = rows.index(row), list(self.estimates.values())

        def is_decided(seeds: int) -> bool:
            longer = [*estimates[:place], estimates[place].extended(seeds), *estimates[place + 1 :]]
            return _words(longer, self.workload)[place] != UNDECIDED

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
            word: Word = "equivalent" if len(own) >= MIN_SEEDS else UNDECIDED
            shown[row] = Shown(word, len(own), *3 * (float(np.mean(own)),), word)
    return Judged(workload, shown, by_row, prior)


def in_words(shown: Shown, mean: float, workload: Workload) -> str:
    """Return what the interval of a setting shows, in a sentence. ``mean``: its cost, as pages print it."""
    if math.isinf(shown.low):
        return "Training diverged."
    if shown.n < MIN_SEEDS:
        return "Too few seeds."
    if shown.low == shown.high == 0:
        return "No cost: every seed ends as without compression."
    if shown.low > 0:
        return f"Costs {_about(mean, workload)}."
    if shown.high < 0:
        return "Better than training without compression."
    most = f"{math.ceil(round(10 * shown.high, 6)) / 10:g} {workload.unit}"
    if shown.high < workload.margin:
        return f"No cost seen, at most {most}."
    return f"Not decided: no cost, or up to {most}."


def _about(cost: float, workload: Workload) -> str:
    """A cost to the nearest half point, or in percent to two digits."""
    if not workload.is_difference:
        return f"about {cost:.2g} %"
    halves = round(2 * cost)
    words = {0: "less than half a point", 1: "about half a point", 2: "about 1 point"}
    return words.get(halves, f"about {halves / 2:g} points")


def cost_text(cost: float) -> str:
    """A cost with two decimals; a very large one, such as that of a perplexity of 1e20, with three digits."""
    return f"{round(cost, 2) + 0.0:.2f}" if abs(cost) < LARGE else f"{cost:.3g}"


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
        "equivalent" if _is_shown(small) else word if _is_shown(large) else UNDECIDED
        for word, large, small in zip(found, differs, is_small, strict=True)
    ]


def _is_shown(p: float) -> bool:
    return p < 1 - COVERAGE


def _effect(cost: float, workload: Workload) -> float:
    """A cost as it is tested: points as they are, percent as a ratio."""
    return cost if workload.is_difference else 1 + cost / 100


def _cost(effect: float, workload: Workload) -> float:
    return effect if workload.is_difference else 100 * (effect - 1)
