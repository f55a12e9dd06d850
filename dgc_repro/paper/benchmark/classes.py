"""What the seeds of a workload show of each setting's cost against a reference: its class (`MEANINGS`), also
in words (`in_words`). All pages and printed tables take rule and words from here.

A class is what the setting's own 95 % interval shows. Beside it stands whether the class is still shown where
all settings of the workload's frozen family are judged together: Holm's correction keeps the chance of one or
more false classes of a kind at 5 %. A family is a list of settings with a date (conf/paper/benchmark.yaml).
What rows have in common, their variance, is taken from the first family, so that a row that is added later
changes no other row's class.

Accuracy  of test and validation images together: one variance for all settings (`statistics.pooled`). Among
          fewer than five rows, differences from the reference's run of the same seed and Student's t
Others    logarithms of the ratio to the reference's run of the same seed on the same kind of processor; the
          variance of a row is shrunk to a prior that grows with the size of its effect. Rows whose ratios all
          lie within a tenth of the margin are nearly the same training, and are judged by their own variance
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from dgc_repro.paper.benchmark.workloads import Workload
from dgc_repro.paper.statistics import (
    COVERAGE,
    MIN_ROWS,
    SHARED_BASELINE,
    Estimate,
    Pool,
    Prior,
    Sample,
    estimate,
    holm,
    pool_of,
    pooled,
    prior_of,
)
from dgc_repro.paper.verdict import MIN_SEEDS

Word = Literal["equivalent", "costs", "better", "undecided"]
UNDECIDED: Word = "undecided"
MEANINGS: Mapping[Word, str] = {
    "equivalent": "the 95 % interval of its cost lies inside the margin",
    "costs": "the interval lies above 0, or training diverged in a seed",
    "better": "the interval lies below 0",
    UNDECIDED: f"none of these, or fewer than {MIN_SEEDS} seeds",
}
"""What the seeds show of a setting of each class. The first three are `SHOWN`."""
WORDS = tuple(MEANINGS)
SHOWN = WORDS[:-1]
MOST_MORE = 99
"""Of the seeds that `Judged.more_seeds` looks at."""
LARGE = 1e6
NEARLY_SAME = 0.1
"""Share of the margin within which all ratios of a row lie that is nearly the reference's training."""
FLOOR = 0.05
"""Share of the margin below which effects do not tell the size of a variance."""


@dataclass(frozen=True)
class Shown:
    """A setting's cost: its mean over ``n`` seeds (of percentages the geometric one) and its 95 % interval.
    Without an interval all three are equal. They are infinite where one of ``diverged`` seeds diverged.
    ``survives``: whether the class is shown in the family too; None outside of one."""

    word: Word
    n: int
    mean: float
    low: float
    high: float
    survives: bool | None = None
    diverged: int = 0

    @property
    def bars(self) -> tuple[float, float]:
        """Lengths of the error bars, down and up."""
        return self.mean - self.low, self.high - self.mean

    @property
    def interval(self) -> str:
        """The interval in words; '-' for none."""
        low, high = (cost_text(end) for end in (self.low, self.high))
        return f"{low} to {high}" if self.has_interval else "-"

    @property
    def has_interval(self) -> bool:
        return self.low < self.high

    @property
    def cost(self) -> str:
        """The mean; or in how many seeds training diverged."""
        return f"diverged in {self.diverged} of {self.n}" if self.diverged else cost_text(self.mean)

    @property
    def family(self) -> str:
        """The column beside the class."""
        if self.survives is None or self.word == UNDECIDED:
            return "-"
        return "yes" if self.survives else "no"


@dataclass(frozen=True)
class Judged:
    """What is shown of each setting of a workload, by row, and the estimates behind it.

    reference  the row that all others are compared with
    estimates  of the rows with three seeds or more, none diverged: a difference in points, or a ratio
    spread     what the rows of the family have in common; None for too few rows
    """

    workload: Workload
    reference: str
    shown: Mapping[str, Shown]
    estimates: Mapping[str, Estimate]
    spread: Pool | Prior | None

    def more_seeds(self, row: str) -> int | None:
        """How many more seeds would decide a row, if its mean and its spread and all other rows stay as they
        are. None: more than `MOST_MORE`, or unknown, because the row has too few seeds for an estimate."""
        one = self.estimates.get(row)
        if one is None or not one.error:
            return None
        found = bisect_left(
            range(MOST_MORE + 1),
            True,
            key=lambda seeds: _word(one.extended(seeds), self.workload) != UNDECIDED,
        )
        return found if found <= MOST_MORE else None

    @property
    def settings(self) -> dict[str, Shown]:
        """What is shown, by the name of a setting without its workload."""
        return {row.partition(".")[2]: one for row, one in self.shown.items()}

    @property
    def spread_text(self) -> str:
        """What the rows have in common, in a sentence."""
        title, spread = self.workload.title, self.spread
        if spread is None:
            return (
                f"{title}: each setting has its own variance, because there are too few settings."
            )
        if isinstance(spread, Pool):
            return (
                f"{title}: one standard deviation for all settings, {spread.sd:.2f} points with "
                f"{spread.df:.0f} degrees of freedom; Bartlett's p of equal variances is "
                f"{spread.bartlett:.2f}, and {100 * spread.correlation:.0f} % of the variance is common to "
                "the runs of a seed."
            )
        freedom = "infinitely many" if math.isinf(spread.df) else f"{spread.df:.1f}"
        return (
            f"{title}: the prior has a standard deviation of {100 * spread.sd:.2g} % at an effect of "
            f"{100 * spread.at:.2g} % with {freedom} degrees of freedom, and its variance grows with the "
            f"power {spread.slope:.1f} of the effect."
        )


def judge(
    rows: Mapping[str, Sequence[Sample]],
    reference: str,
    workload: Workload,
    families: Sequence[Collection[str]] | None = None,
) -> Judged:
    """Judge the settings of a workload. ``rows``: the quality of each run (`Workload.judged`); ``families``:
    of rows, the first one tells what they have in common. None: all rows are one family."""
    families = [rows.keys() - {reference}] if families is None else families
    first = {*families[0], reference} if families else {*rows}
    estimates: dict[str, Estimate] = {}
    spread: Pool | Prior | None
    pairs = {row: paired(own, rows[reference]) for row, own in rows.items()}
    if workload.is_difference:
        known = [
            own
            for row, own in rows.items()
            if row in first and all(math.isfinite(one.value) for one in own)
        ]
        spread = pool_of(known) if len(known) >= MIN_ROWS else None
        worse = {row: [one._replace(value=-one.value) for one in own] for row, own in rows.items()}
        for row, pair in pairs.items():
            if spread is not None:
                estimates[row] = pooled(worse[row], worse[reference], spread)
            else:
                estimates[row] = estimate([base - own for own, base in pair])
    else:
        ratios = {row: [own / base for own, base in pair] for row, pair in pairs.items()}
        near = NEARLY_SAME * workload.margin / 100
        alone = {row for row, own in ratios.items() if np.all(np.abs(np.log(own)) < near)}
        spread = prior_of(
            [own for row, own in ratios.items() if row in first - alone and np.isfinite(own).all()],
            ratio=True, overlap=SHARED_BASELINE, floor=FLOOR * workload.margin / 100,
        )  # fmt: skip
        for row, own in ratios.items():
            estimates[row] = estimate(own, ratio=True, prior=None if row in alone else spread)
    shown = {
        row: _shown(own, rows[reference], estimates[row], workload, is_reference=row == reference)
        for row, own in rows.items()
    }
    tested = {
        row: one
        for row, one in estimates.items()
        if row != reference and shown[row].has_interval and shown[row].n >= MIN_SEEDS
    }
    for family in families:
        for row, survives in _together(family, shown, tested, workload).items():
            shown[row] = replace(shown[row], survives=survives)
    return Judged(workload, reference, shown, tested, spread)


def paired(own: Sequence[Sample], reference: Sequence[Sample]) -> list[tuple[float, float]]:
    """Return each value with the reference's of the same seed and block, where there is one."""
    base = {(one.seed, one.block): one.value for one in reference}
    return [(one.value, base[one.seed, one.block]) for one in own if (one.seed, one.block) in base]


def _shown(
    own: Sequence[Sample],
    reference: Sequence[Sample],
    one: Estimate,
    workload: Workload,
    *,
    is_reference: bool,
) -> Shown:
    """What an estimate shows without the family."""
    diverged = sum(not math.isfinite(sample.value) for sample in own)
    if diverged:
        return Shown("costs", len(own), *3 * (math.inf,), diverged=diverged)
    if is_reference:
        return Shown(UNDECIDED, len(own), 0.0, 0.0, 0.0)
    mean, low, high = (_cost(value, workload) for value in (one.mean, one.low, one.high))
    if one.n < MIN_SEEDS or not one.error:  # equal values of a grid are no interval
        if math.isnan(mean) and workload.is_difference:
            costs = [below_mean(sample, reference) for sample in own]
            mean = float(np.nanmean(costs)) if not np.isnan(costs).all() else math.nan
        return Shown(UNDECIDED, one.n, mean, mean, mean)
    return Shown(_word(one, workload), one.n, mean, low, high)


def below_mean(own: Sample, reference: Sequence[Sample]) -> float:
    """By how much a value lies below the mean of the reference in the same block; NaN where it has none."""
    values = [one.value for one in reference if one.block == own.block]
    return float(np.mean(values)) - own.value if values else math.nan


def _together(
    family: Collection[str],
    shown: Mapping[str, Shown],
    tested: Mapping[str, Estimate],
    workload: Workload,
) -> dict[str, bool]:
    """Whether the class of each row of a family is shown with Holm's correction over the family. A row
    without an interval is one of the family too, of which nothing is shown."""
    none, low, high = _bounds(workload)
    rows = [row for row in family if row in tested]
    missing = [1.0] * (len(family) - len(rows))
    is_small = holm([*(tested[row].p_inside(low, high) for row in rows), *missing])
    differs = holm([*(tested[row].p_outside(none, none) for row in rows), *missing])
    return {
        row: (small if shown[row].word == "equivalent" else large) < 1 - COVERAGE
        for row, small, large in zip(rows, is_small, differs, strict=False)
    }


def in_words(shown: Shown, workload: Workload) -> str:
    """Return what the interval of a setting shows, in a sentence."""
    if shown.diverged:
        return "Training diverged."
    if shown.n < MIN_SEEDS:
        return "Too few seeds."
    # To one decimal, outwards.
    least, most = (
        math.floor(round(10 * shown.low, 6)) / 10,
        math.ceil(round(10 * shown.high, 6)) / 10,
    )
    at_most = f"{most + 0.0:g} {workload.unit}"  # no -0
    if shown.word == "equivalent":
        if shown.low > 0:
            return f"Equivalent; costs {least:g} to {at_most}."
        if shown.high < 0:
            return "Equivalent; slightly better."
        return f"Equivalent: no cost seen, at most {at_most}."
    if shown.word == "costs":
        return f"Costs {_about(shown.mean, workload)}."
    if shown.word == "better":
        return "Better than training without compression."
    if not shown.has_interval:
        return "Not decided: all seeds have one value."
    return f"Not decided: no cost, or up to {at_most}."


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


def _word(one: Estimate, workload: Workload) -> Word:
    """The class by an interval alone."""
    none, low, high = _bounds(workload)
    if low < one.low and one.high < high:
        return "equivalent"
    return "costs" if one.low > none else "better" if one.high < none else UNDECIDED


def _bounds(workload: Workload) -> tuple[float, float, float]:
    """No effect, and the lower and the upper end of the margin, as they are tested."""
    margin = _effect(workload.margin, workload)
    return _effect(0.0, workload), -margin if workload.is_difference else 1 / margin, margin


def _effect(cost: float, workload: Workload) -> float:
    """A cost as it is tested: points as they are, percent as a ratio."""
    return cost if workload.is_difference else 1 + cost / 100


def _cost(effect: float, workload: Workload) -> float:
    return effect if workload.is_difference else 100 * (effect - 1)
