"""The one function that compares what a paper claims with what was measured.

agrees         the direction holds for the paired seed differences (95 % bootstrap interval of
               their mean, n >= 3) and the magnitude lies within the claim's tolerance
differs        n >= 3 and it does not; the detail says reversed, not established or too far off
indicative     n < 3, or it rests on an assumed input: which way it points, no judgement
by construction  it compares two formulas, and they are as they should be: no finding
not run        a row of the claim has no finished run
not tested     a premise of the claim does not hold of its runs (nothing was compressed, say)
cannot follow  the paper's own numbers contradict each other; the arithmetic is the detail

A verdict always carries the scale of its runs, and its text shows both. What is timed is judged from
paired repeats in the place of seeds (`verdict_of_repeats`); what a study computes from its seeds, and
what comes out of a model, which has no spread and says so (`verdict_of_values`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from dgc_repro.paper.claim import Check, Claim
from dgc_repro.report.quantities import QUANTITIES, STUDIED
from dgc_repro.report.records import Run

Word = Literal[
    "agrees", "differs", "indicative", "not run", "not tested", "cannot follow", "by construction"
]
PAPER_SCALE = "paper"
MIN_SEEDS = 3
RESAMPLES = 10_000
COVERAGE = 0.95
Values = Mapping[str, Mapping[str, Mapping[int, float]]]
"""Numbers of a study: by quantity, by row, by seed."""


@dataclass(frozen=True)
class Verdict:
    """A verdict: ``word``, the ``scale`` of the runs, ``n`` paired seeds, ``detail`` in numbers;
    ``modelled``: of numbers that a model gave and nobody has measured; ``assumed``: an input that it
    rests on and that nobody has measured either."""

    word: Word
    scale: str
    n: int
    detail: str
    modelled: bool = False
    assumed: str = ""

    @property
    def text(self) -> str:
        """The word with its scale, the only way a verdict is ever printed."""
        what = "modelled, " if self.modelled else ""
        what += f"assumed {self.assumed}, " if self.assumed else ""
        if self.scale == PAPER_SCALE:
            return f"{self.word} ({what}paper scale)"
        return f"{self.word} ({what}reduced scale: {self.scale})"


@dataclass(frozen=True)
class Outcome:
    """One check, measured: ``mean`` paired difference, its interval, and whether it holds."""

    n: int
    mean: float
    holds: bool
    detail: str


def paired_differences(check: Check, runs: Sequence[Run]) -> list[float]:
    """``greater - lesser`` for every seed that both rows have, in the order of the seeds."""
    of = QUANTITIES[check.quantity].of
    greater = {run.seed: of(run) for run in runs if run.row == check.greater}
    lesser = {run.seed: of(run) for run in runs if run.row == check.lesser}
    return _compared(check, greater, lesser)


def _compared(
    check: Check, greater: Mapping[int, float], lesser: Mapping[int, float]
) -> list[float]:
    """Differences, or quotients, for every seed that both have, in the order of the seeds."""
    found = []
    for seed in sorted(greater.keys() & lesser.keys()):
        difference = greater[seed] - lesser[seed]
        if check.relative:
            difference = difference / greater[seed] if greater[seed] else math.nan
        elif check.ratio:
            difference = greater[seed] / lesser[seed] if lesser[seed] else math.nan
        found.append(difference)
    return found


def _each_compared(checks: Sequence[Check], values: Values) -> list[list[float]]:
    """The same of what a study computed, for each check."""
    rows = [values.get(check.quantity, {}) for check in checks]
    return [
        _compared(check, found.get(check.greater, {}), found.get(check.lesser, {}))
        for check, found in zip(checks, rows, strict=True)
    ]


def bootstrap_interval(
    differences: Sequence[float],
    statistic: Callable[..., NDArray[np.float64]] = np.mean,
) -> tuple[float, float]:
    """Percentile bootstrap interval (95 %) of the mean, or of another ``statistic`` that takes an
    axis; the resampling is seeded."""
    values = np.asarray(differences, dtype=np.float64)
    if not np.isfinite(values).all():
        return math.nan, math.nan
    picks = np.random.default_rng(0).integers(len(values), size=(RESAMPLES, len(values)))
    tail = (1 - COVERAGE) / 2
    low, high = np.quantile(statistic(values[picks], axis=1), [tail, 1 - tail])
    return float(low), float(high)


def _written(value: float, check: Check, unit: bool = True) -> str:
    if check.ratio:
        return f"{value:.2f}" + ("x" if unit else "")
    if check.relative:
        return f"{100 * value:+.1f}" + (f" % of {check.greater}" if unit else "")
    name = _label_and_unit(check)[1] if unit else ""
    return f"{value:+.3g} {name}".rstrip()


def _label_and_unit(check: Check) -> tuple[str, str]:
    name, _, place = check.quantity.partition("@")
    if name in STUDIED:
        return place or STUDIED[name][0], STUDIED[name][1]
    quantity = QUANTITIES[check.quantity]
    return quantity.label, quantity.unit


def _asked(check: Check) -> str:
    """The claim's range, where it is another than that one side is larger."""
    if check.above == _even(check) and math.isinf(check.below):
        return ""
    bounds = (("above", check.above), ("below", check.below))
    said = [f"{word} {_written(v, check, False)}" for word, v in bounds if math.isfinite(v)]
    return f" (claim: {', '.join(said)})" if said else ""


def _even(check: Check) -> float:
    """The value at which neither side is larger."""
    return 1.0 if check.ratio else 0.0


def _is_distance(check: Check) -> bool:
    """Whether a claim is on a magnitude alone, whichever way."""
    return check.magnitude is not None and math.isinf(check.above)


def _magnitude(check: Check, mean: float) -> tuple[bool, str]:
    """Whether the mean is as large as printed, and that in words."""
    assert check.magnitude is not None
    assert check.tolerance is not None
    holds = abs(mean - check.magnitude) <= check.tolerance
    if _is_distance(check):
        return holds, "magnitude holds" if holds else "magnitude does not hold"
    return holds, "direction and magnitude hold" if holds else "direction holds, magnitude does not"


def _judge(check: Check, mean: float, low: float, high: float, n: int) -> tuple[bool, str]:
    """Whether the check holds, and the reason in words. NaN never holds."""
    if not math.isfinite(mean):
        return False, "a value is missing or not finite"
    if n < MIN_SEEDS:
        inside = check.above < mean < check.below
        if inside and _is_distance(check):
            return _magnitude(check, mean)
        return inside, "points the claim's way" if inside else "points the other way"
    if not (check.above < low and high < check.below):
        outside = high <= check.above or low >= check.below
        is_direction = check.above == _even(check) and math.isinf(check.below)
        wrong = "reversed" if is_direction else "outside the range"
        if is_direction and low == high == check.above:
            wrong = "no difference"
        return False, wrong if outside else "not established"
    if check.magnitude is not None:
        return _magnitude(check, mean)
    return True, "holds"


def _outcome(check: Check, differences: Sequence[float], exact: bool = False) -> Outcome | None:
    """``exact``: one number without a spread is judged as it is."""
    if not differences:
        return None
    n, mean = len(differences), float(np.mean(differences))
    low, high = bootstrap_interval(differences) if n >= MIN_SEEDS else (mean, mean)
    holds, reason = _judge(check, mean, low, high, MIN_SEEDS if exact else n)
    numbers = _written(mean, check)
    if n >= MIN_SEEDS:
        numbers += f" [{_written(low, check, False)}, {_written(high, check, False)}]"
    if check.magnitude is not None and check.tolerance is not None:
        tolerance = _written(check.tolerance, check, False).lstrip("+")
        numbers += f" (paper {_written(check.magnitude, check, False)}, tolerance {tolerance})"
    numbers += _asked(check)
    pair = f"{check.greater} {'/' if check.ratio else '-'} {check.lesser}"
    count = "" if exact else f", n={n}"
    return Outcome(
        n, mean, holds, f"{_label_and_unit(check)[0]}, {pair}: {numbers}{count}: {reason}"
    )


def verdict(claim: Claim, runs: Sequence[Run], scale: str) -> Verdict:
    """Judge one claim from the finished runs of one artifact at one scale."""
    outcomes = [_outcome(check, paired_differences(check, runs)) for check in claim.checks]
    measured = [outcome for outcome in outcomes if outcome is not None]
    n = min((o.n for o in measured), default=0) if len(measured) == len(outcomes) else 0
    if claim.cannot_follow is not None:
        ours = _numbers(measured) or "not run"
        return Verdict(
            "cannot follow", scale, n, f"{claim.cannot_follow.arithmetic} Measured: {ours}."
        )
    key = claim.needs_setting
    if key is not None and not all(run.setting(key) for run in runs):
        ours = _numbers(measured) or "nothing"
        return Verdict("not run", scale, 0, f"needs runs with {key}; measured without: {ours}")
    if not n:
        return Verdict("not run", scale, 0, _missing(claim, runs))
    if unmet := _unmet(claim, [paired_differences(check, runs) for check in claim.premises]):
        return Verdict("not tested", scale, n, f"{unmet}. Measured: {_numbers(measured)}.")
    detail = "; ".join(o.detail for o in measured)
    if n < MIN_SEEDS:
        return Verdict("indicative", scale, n, detail)
    word: Word = "agrees" if all(o.holds for o in measured) else "differs"
    return Verdict(word, scale, n, detail)


def _numbers(outcomes: Sequence[Outcome]) -> str:
    """What was measured, without a judgement."""
    return "; ".join(outcome.detail.rpartition(":")[0] for outcome in outcomes)


def _unmet(claim: Claim, compared: Sequence[Sequence[float]]) -> str:
    """Which premise does not hold in the mean over seeds, in words; nothing where all do."""
    for check, differences in zip(claim.premises, compared, strict=True):
        outcome = _outcome(check, differences)
        if outcome is None:
            return f"its premise is unknown: no {check.quantity} of {check.greater}, {check.lesser}"
        if not check.above < outcome.mean < check.below:
            return f"its premise does not hold: {outcome.detail.rpartition(':')[0]}"
    return ""


def verdict_of_repeats(claim: Claim, ratios: Sequence[float], scale: str) -> Verdict:
    """Judge a claim of one quotient (``greater / lesser``) from paired repeats of a timing.

    The median of the repeats' quotients and the bootstrap interval of that median take the place
    of the mean over seeds: a busy machine makes outliers, and a median does not mind them.
    """
    (check,) = claim.checks
    assert check.ratio, "repeats are judged by their quotients"
    n = len(ratios)
    if not n:
        return Verdict("not run", scale, 0, "no finished measurement")
    middle = float(np.median(ratios))
    low, high = bootstrap_interval(ratios, np.median) if n >= MIN_SEEDS else (middle, middle)
    holds, reason = _judge(check, middle, low, high, n)
    numbers = _written(middle, check)
    if n >= MIN_SEEDS:
        numbers += f" [{_written(low, check, False)}, {_written(high, check, False)}]"
    if check.magnitude is not None and check.tolerance is not None:
        printed = _written(check.magnitude, check, False)
        numbers += f" (paper {printed}, tolerance {_written(check.tolerance, check, False)})"
    detail = f"{check.greater} / {check.lesser}: {numbers}, n={n} repeats: {reason}"
    if n < MIN_SEEDS:
        return Verdict("indicative", scale, n, detail)
    return Verdict("agrees" if holds else "differs", scale, n, detail)


def verdict_of_values(
    claim: Claim, values: Values, scale: str, *, modelled: bool = False
) -> Verdict:
    """Judge a claim from what a study has computed. ``modelled``: by a model, without a spread. What
    rests on an assumption, or holds by construction, neither agrees nor differs with anybody."""
    compared = _each_compared(claim.checks, values)
    pairs = zip(claim.checks, compared, strict=True)
    exact = modelled or claim.by_construction
    outcomes = [o for check, some in pairs if (o := _outcome(check, some, exact)) is not None]
    if claim.cannot_follow is not None:
        ours = _numbers(outcomes) or "not run"
        n = min((o.n for o in outcomes), default=0)
        detail = f"{claim.cannot_follow.arithmetic} Measured: {ours}."
        return Verdict("cannot follow", scale, n, detail, modelled, claim.assumed)
    if len(outcomes) < len(claim.checks):
        return Verdict("not run", scale, 0, "no finished record of it", modelled, claim.assumed)
    n = min(outcome.n for outcome in outcomes)
    if unmet := _unmet(claim, _each_compared(claim.premises, values)):
        detail = f"{unmet}. Measured: {_numbers(outcomes)}."
        return Verdict("not tested", scale, n, detail, modelled)
    detail = "; ".join(outcome.detail for outcome in outcomes)
    if claim.assumed or (n < MIN_SEEDS and not exact):
        return Verdict("indicative", scale, n, detail, modelled, claim.assumed)
    word: Word = "by construction" if claim.by_construction else "agrees"
    if not all(outcome.holds for outcome in outcomes):
        word = "differs"
    return Verdict(word, scale, n, detail, modelled)


def verdict_of_counts(claim: Claim, counts: Sequence[int], scale: str, compared: str) -> Verdict:
    """Judge a claim of counts, which have no spread: each one has to lie in the claim's range.

    ``compared``: in words, what was counted."""
    (check,) = claim.checks
    if not counts:
        return Verdict("not run", scale, 0, "no finished measurement")
    holds = all(check.above < count < check.below for count in counts)
    detail = f"{sum(counts):,} of {compared}: {'holds' if holds else 'does not hold'}"
    return Verdict("agrees" if holds else "differs", scale, len(counts), detail)


def _missing(claim: Claim, runs: Sequence[Run]) -> str:
    needed = {row for check in claim.checks for row in (check.greater, check.lesser)}
    absent = sorted(needed - {run.row for run in runs})
    if absent:
        return f"no finished run of {', '.join(absent)}"
    return f"no seed that {' and '.join(sorted(needed))} share"
