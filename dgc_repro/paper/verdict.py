"""The judge: what a paper claims against what was measured.

agrees           the 95 % interval lies wholly inside the claimed range
differs          the interval lies wholly outside
inconclusive     neither: the runs cannot tell
indicative (+)   fewer than 3 seeds, or an assumed input; + where the mean lies inside the range, else -
not tested       a premise of the claim does not hold of these runs, or no row of it ever reaches the target
by construction  two formulas are compared, and they agree; no finding
cannot follow    the paper's own numbers contradict each other
not run          a row of the claim has no finished run

The interval is Student's t interval of the mean over seeds, of paired differences or of the logarithms of
paired ratios. A magnitude is a range around the printed number, so that *agrees* is an equivalence test. A
claim of several checks agrees when all do and differs when one does.

A row that never reaches a target has an infinite value. Against a row that reaches it in every seed, the
comparison is decided; where only some seeds reach it, it is inconclusive.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pandas as pd
from scipy import stats

from dgc_repro.paper.claims import Check, Claim

Word = Literal[
    "agrees", "differs", "inconclusive", "indicative (+)", "indicative (-)", "not tested",
    "by construction", "cannot follow", "not run",
]  # fmt: skip
MIN_SEEDS = 3
COVERAGE = 0.95
YES_OR_NO = "runs"
"""Unit of quantities that are 0 or 1 of each run (failed, target reached)."""


@dataclass(frozen=True)
class Effect:
    """One check, measured: ``mean`` over ``n`` seeds with its interval. A NaN ``mean``: undefined in some
    seed."""

    check: Check
    n: int
    mean: float
    low: float
    high: float
    unit: str
    labels: Mapping[str, str]

    @property
    def inside(self) -> bool:
        """Whether the whole interval lies in the claimed range."""
        return self._is_above(self.low) and self._is_below(self.high)

    @property
    def outside(self) -> bool:
        """Whether the whole interval lies outside."""
        return not (
            math.isnan(self.mean) or (self._is_above(self.high) and self._is_below(self.low))
        )

    @property
    def points_inside(self) -> bool:
        """Whether the mean lies in the claimed range."""
        return self._is_above(self.mean) and self._is_below(self.mean)

    # Against a row that never reaches a target a difference is infinite and a ratio may be 0. Such a value
    # lies in a range that is open to that side. A row's own infinite value lies in no range.
    def _is_above(self, value: float) -> bool:
        least = 0.0 if self.check.ratio else -math.inf
        return value > self.check.above or (self._is_pair and value == least >= self.check.above)

    def _is_below(self, value: float) -> bool:
        return value < self.check.below or (self._is_pair and value == self.check.below == math.inf)

    @property
    def _is_pair(self) -> bool:
        return self.check.lesser is not None

    @property
    def text(self) -> str:
        """Quantity, rows, number with interval, and the claimed range."""
        check = self.check
        rows = [self.labels.get(row, row) for row in check.rows]
        what = (" / " if check.ratio else " - ").join(rows)
        quantity = ", ".join(part for part in (check.quantity, check.setting) if part)
        printed = "" if math.isnan(check.printed) else f", printed {self._number(check.printed)}"
        return f"{quantity}, {what}: {self.brief} (claimed {self._range}{printed})"

    @property
    def brief(self) -> str:
        """The number with its interval."""
        if math.isnan(self.mean):
            return "undefined"
        text = self._number(self.mean)
        if self.low != self.high:
            text += f" [{self._number(self.low)}, {self._number(self.high)}]"
        return text if self.check.ratio else f"{text} {self.unit}".rstrip()

    @property
    def _range(self) -> str:
        low, high = self.check.above, self.check.below
        if math.isinf(high):
            return f"> {self._number(low)}"
        if math.isinf(low) or (self.check.ratio and low <= 0):
            return f"< {self._number(high)}"
        return f"{self._number(low)} to {self._number(high)}"

    def _number(self, value: float) -> str:
        if math.isinf(value):
            return "infinite" if value > 0 else "-infinite"
        if self.check.ratio:
            return f"{value:.3g}x"
        return f"{value:+.3g}" if self.check.lesser is not None else f"{value:.4g}"


@dataclass(frozen=True)
class Verdict:
    """The ``word``, the effects behind it, and why. ``repeats``: the claim, judged earlier, that compares
    the same trainings in the same range; a repeated claim is not counted again."""

    claim: Claim
    word: Word
    n: int
    detail: str
    modelled: bool = False
    repeats: str = ""
    effects: tuple[Effect, ...] = ()

    @property
    def text(self) -> str:
        """The word with what qualifies it."""
        parts = [
            *(["modelled"] if self.modelled else []),
            *([f"assumed: {self.claim.assumed}"] if self.claim.assumed else []),
            *([f"same runs as {self.repeats}"] if self.repeats else []),
        ]
        return f"{self.word} ({'; '.join(parts)})" if parts else self.word


def judge(
    claims: Sequence[Claim],
    frame: pd.DataFrame,
    *,
    labels: Mapping[str, str] | None = None,
    same: Mapping[str, str] | None = None,
    modelled: bool = False,
) -> tuple[Verdict, ...]:
    """Each claim with its verdict, in order.

    ``frame``: long, see frame.py. ``labels``: rows in words. ``same``: rows that are the training of another
    row (frame.twins). ``modelled``: numbers of a model without a spread, judged as they are.
    """
    labels, same = labels or {}, same or {}
    found: list[Verdict] = []
    seen: dict[object, str] = {}
    for claim in claims:
        verdict = _verdict(claim, frame, labels, same, modelled)
        key = tuple(_identity(check, frame, same) for check in claim.checks)
        first = seen.setdefault(key, claim.id)
        if first != claim.id and verdict.n:
            verdict = replace(verdict, repeats=first)
        found.append(verdict)
    return tuple(found)


def tally(verdicts: Sequence[Verdict]) -> dict[str, int]:
    """How many verdicts of each word, repeated ones not counted."""
    counts: dict[str, int] = {}
    for verdict in verdicts:
        if not verdict.repeats:
            counts[verdict.word] = counts.get(verdict.word, 0) + 1
    return counts


def judged(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """The verdicts that come of an interval. Modelled numbers have none."""
    words = ("agrees", "differs", "inconclusive")
    return [v for v in verdicts if v.word in words and not v.repeats and not v.modelled]


def excluding(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """The judged verdicts of claims whose range excludes "no effect" in at least one comparison of two rows:
    where no row differs from another, such a claim agrees at most in the tail of the interval, 2.5 %."""

    def excludes(check: Check) -> bool:
        none = 1.0 if check.ratio else 0.0
        return check.lesser is not None and not check.above < none < check.below

    return [v for v in judged(verdicts) if any(map(excludes, v.claim.checks))]


def by_chance(verdicts: Sequence[Verdict]) -> float:
    """Agreements to expect, at most, of the `excluding` claims if no row differed from any other."""
    return (1 - COVERAGE) / 2 * len(excluding(verdicts))


def values(frame: pd.DataFrame, quantity: str, row: str, setting: str = "") -> pd.Series:
    """A quantity of a row by seed."""
    chosen = (frame["quantity"] == quantity) & (frame["row"] == row) & frame["step"].isna()
    chosen &= frame["setting"] == setting
    return frame[chosen].set_index("seed")["value"].sort_index()


def paired(check: Check, frame: pd.DataFrame) -> list[float]:
    """The check's difference or ratio for each seed that both rows have. Two infinite values, of rows that
    both never reach a target, are no pair."""
    upper = values(frame, check.quantity, check.greater, check.setting)
    if check.lesser is None:
        return list(upper)
    lower = values(frame, check.quantity, check.lesser, check.setting)
    found = []
    for seed in upper.index.intersection(lower.index):
        a, b = float(upper[seed]), float(lower[seed])
        if math.isinf(a) and math.isinf(b):
            continue
        if check.ratio:
            zero = math.inf if a > 0 else math.nan
            found.append(zero if b == 0 else a / b)
        else:
            found.append(a - b)
    return found


def interval(differences: Sequence[float], *, ratio: bool = False) -> tuple[float, float, float]:
    """(mean, low, high): the mean and Student's 95 % interval; of ratios the geometric mean. Where only some
    values are infinite, or a ratio is negative, there is neither a mean nor an interval: (NaN, -inf, inf)."""
    found = np.asarray(differences, dtype=np.float64)
    if ratio:
        with np.errstate(divide="ignore", invalid="ignore"):
            found = np.log(found)
    if not len(found) or np.isnan(found).any():
        return math.nan, -math.inf, math.inf
    if np.isinf(found).any():
        if not (found == found[0]).all():
            return math.nan, -math.inf, math.inf
        mean = low = high = float(found[0])
    else:
        mean = float(found.mean())
        half = 0.0
        if len(found) > 1:
            error = float(found.std(ddof=1)) / math.sqrt(len(found))
            half = float(stats.t.ppf((1 + COVERAGE) / 2, len(found) - 1)) * error
        low, high = mean - half, mean + half
    return tuple(map(_exp, (mean, low, high))) if ratio else (mean, low, high)  # type: ignore[return-value]


def proportion(outcomes: Sequence[float]) -> tuple[float, float]:
    """The exact (Clopper-Pearson) 95 % interval of a proportion, from outcomes that are 0 or 1."""
    n, hits, tail = len(outcomes), sum(outcomes), (1 - COVERAGE) / 2
    low = float(stats.beta.ppf(tail, hits, n - hits + 1)) if hits > 0 else 0.0
    high = float(stats.beta.ppf(1 - tail, hits + 1, n - hits)) if hits < n else 1.0
    return low, high


def _exp(value: float) -> float:
    return math.inf if value > 700 else math.exp(value)


def _effect(
    check: Check, frame: pd.DataFrame, labels: Mapping[str, str], exact: bool
) -> Effect | None:
    found = paired(check, frame)
    if not found:
        return None
    unit = str(frame.loc[frame["quantity"] == check.quantity, "unit"].iloc[0])
    mean, low, high = interval(found, ratio=check.ratio)
    if unit == YES_OR_NO and check.lesser is None:
        low, high = proportion(found)
    if exact or len(found) < MIN_SEEDS:
        low = high = mean
    return Effect(check, len(found), mean, low, high, unit, labels)


def _verdict(
    claim: Claim,
    frame: pd.DataFrame,
    labels: Mapping[str, str],
    same: Mapping[str, str],
    modelled: bool,
) -> Verdict:
    exact = modelled or claim.by_construction
    effects = [_effect(check, frame, labels, exact) for check in claim.checks]
    measured = [effect for effect in effects if effect is not None]
    numbers = "; ".join(effect.text for effect in measured)
    n = min((effect.n for effect in measured), default=0)

    def say(word: Word, detail: str, count: int = n) -> Verdict:
        return Verdict(claim, word, count, detail, modelled, effects=tuple(measured))

    if claim.cannot_follow:
        return say("cannot follow", f"{claim.cannot_follow} Measured: {numbers or 'not run'}.")
    if len(measured) < len(effects):
        word, why = _missing(claim, frame, labels)
        if word == "not run" or not any(effect.outside for effect in measured):
            return say(word, why, 0)
    for check in claim.checks:
        first, *second = (same.get(row, row) for row in check.rows)
        # Twins may still differ in what they send.
        if second == [first] and len(set(paired(check, frame)) | {float(check.ratio)}) == 1:
            rows = _rows(check, labels)
            return say("not tested", f"{rows} are the same training. Measured: {numbers}")
    for premise in claim.premises:
        effect = _effect(premise, frame, labels, exact)
        if effect is None:
            return say("not tested", f"premise unknown: no {premise.quantity}. Measured: {numbers}")
        if effect.outside or (effect.n < MIN_SEEDS and not effect.points_inside):
            return say("not tested", f"premise does not hold: {effect.text}. Measured: {numbers}")
        if not effect.inside:
            return say("inconclusive", f"premise unclear: {effect.text}. Measured: {numbers}")
    if claim.by_construction:
        return say(
            "by construction" if all(e.points_inside for e in measured) else "differs", numbers
        )
    if any(math.isnan(effect.mean) for effect in measured):
        return say(
            "inconclusive", f"{numbers}: a ratio of nothing, or a target reached in some seeds only"
        )
    dropped = [text for check in claim.checks if (text := _never(check, frame))]
    if dropped:
        numbers += f"; {'; '.join(dropped)}"
    if claim.assumed or (n < MIN_SEEDS and not exact) or dropped:
        sign = "+" if all(effect.points_inside for effect in measured) else "-"
        return say("indicative (+)" if sign == "+" else "indicative (-)", numbers)
    if all(effect.inside for effect in measured):
        return say("agrees", numbers)
    return say("differs" if any(effect.outside for effect in measured) else "inconclusive", numbers)


def _never(check: Check, frame: pd.DataFrame) -> str:
    """How many common seeds were left out because both rows never get there; empty for none."""
    if check.lesser is None:
        return ""
    upper, lower = (values(frame, check.quantity, row, check.setting) for row in check.rows)
    common = upper.index.intersection(lower.index)
    both = int((np.isinf(upper[common]) & np.isinf(lower[common])).sum())
    return f"neither row gets there in {both} of {len(common)} seeds" if both else ""


def _missing(claim: Claim, frame: pd.DataFrame, labels: Mapping[str, str]) -> tuple[Word, str]:
    """Why a check has no number: no run, no seed in common, or neither row ever gets there."""
    rows = sorted({row for check in claim.checks for row in check.rows})
    absent = [labels.get(row, row) for row in rows if row not in set(frame["row"])]
    if absent:
        return "not run", f"no finished run of {', '.join(absent)}"
    both = " and ".join(labels.get(row, row) for row in rows)
    for check in claim.checks:
        found = [values(frame, check.quantity, row, check.setting) for row in check.rows]
        if not paired(check, frame) and all(len(f) and np.isinf(f).all() for f in found):
            names = " and ".join(labels.get(row, row) for row in check.rows)
            return "not tested", f"{check.quantity} is infinite for {names}"
    return "not run", f"no common number of {both}"


def _rows(check: Check, labels: Mapping[str, str]) -> str:
    return " and ".join(labels.get(row, row) for row in check.rows)


def _identity(check: Check, frame: pd.DataFrame, same: Mapping[str, str]) -> object:
    """What a check compares, with twins under one name. Twins may still differ in what they send."""
    rows = tuple(same.get(row, row) for row in check.rows)
    found = tuple(paired(check, frame))
    return check.quantity, rows, check.setting, check.above, check.below, check.ratio, found
