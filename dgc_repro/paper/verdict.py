"""The judge: what a paper claims against what was measured. docs/reading-a-result.md has the verdicts.

The interval is a t interval of the mean over seeds, of paired differences or of the logarithms of paired
ratios (statistics.py). It is moderated: the comparisons of one quantity, setting, kind (value, difference,
ratio) and model that the claims of a page make share a prior of their variances, if they are enough.
Comparisons that have a row in common are correlated, which the prior takes into account.

A magnitude is a range around the printed number, so that *agrees* is an equivalence test. A claim of several
checks agrees when all do: an intersection-union test, which needs no correction. It differs when one does
after Holm's correction over its checks.

A row that never reaches a target has an infinite value. Against a row that reaches it in every seed, the
comparison is decided; where only some seeds reach it, it is inconclusive. Three outcomes that are 0 or 1
decide nothing as a proportion: a claim should judge the distance from the target in their place.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal, get_args

import numpy as np
import pandas as pd
from scipy import stats

from dgc_repro.paper.claims import EXPECTED, Check, Claim
from dgc_repro.paper.frame import SENT, values
from dgc_repro.paper.statistics import (
    COVERAGE,
    SHARED_BASELINE,
    Prior,
    Values,
    estimate,
    holm,
    prior_of,
)

Word = Literal[
    "agrees", "differs", "agrees (given)", "differs (given)", "inconclusive", "indicative (+)",
    "indicative (-)", "not tested", "by construction", "cannot follow", "not run",
]  # fmt: skip
MIN_SEEDS = 3
UNTIL = ("to the target", "to the plateau")
"""In names of quantities that end where a quality is reached."""
YES_OR_NO = "runs"
"""Unit of quantities that are 0 or 1 of each run (failed, target reached)."""

WORDS: tuple[Word, ...] = get_args(Word)
GIVEN: Mapping[Word, Word] = {"agrees": "agrees (given)", "differs": "differs (given)"}
"""What a decided claim is called that has an assumed input."""


@dataclass(frozen=True)
class Effect:
    """One check, measured: ``mean`` over ``n`` seeds with its interval. A NaN ``mean``: undefined in some
    seed. ``p``: of the hypothesis that the value lies in the claimed range, where there is an interval.
    ``prior``: of the variances, in whose group of comparisons the check is (see `group_of`)."""

    check: Check
    n: int
    mean: float
    low: float
    high: float
    unit: str
    labels: Mapping[str, str]
    p: float | None = None
    prior: Prior | None = None

    @property
    def inside(self) -> bool:
        """Whether the whole interval lies in the claimed range."""
        return self._sides(self.low)[0] and self._sides(self.high)[1]

    @property
    def outside(self) -> bool:
        """Whether the whole interval lies outside."""
        overlaps = self._sides(self.high)[0] and self._sides(self.low)[1]
        return not (overlaps or math.isnan(self.mean))

    @property
    def p_outside(self) -> float:
        """The p-value of "it lies in the claimed range"; 0 or 1 for a number without a spread."""
        return float(not self.outside) if self.p is None else self.p

    @property
    def points_inside(self) -> bool:
        """Whether the mean lies in the claimed range."""
        return all(self._sides(self.mean))

    def _sides(self, value: float) -> tuple[bool, bool]:
        """Whether a value lies above the range's lower end, and below its upper end. Against a row that never
        reaches a target a difference is infinite and a ratio may be 0: such a value lies in a range that is
        open to that side. A row's own infinite value lies in no range."""
        check, is_pair = self.check, self.check.lesser is not None
        least = 0.0 if check.ratio else -math.inf
        return (
            value > check.above or (is_pair and value == least >= check.above),
            value < check.below or (is_pair and value == check.below == math.inf),
        )

    @property
    def text(self) -> str:
        """Quantity, rows, number with interval, and the claimed range."""
        check = self.check
        what = _named(check, self.labels, " / " if check.ratio else " - ")
        quantity = ", ".join(part for part in (check.quantity, check.setting) if part)
        printed = "" if math.isnan(check.printed) else f", printed {self._number(check.printed)}"
        return f"{quantity}, {what}: {self.brief} (claimed {self._range}{printed})"

    @property
    def directed(self) -> str:
        """The rows in the order in which they are compared, and the number."""
        between = " over " if self.check.ratio else " minus "
        return f"{_named(self.check, self.labels, between)}: {self.brief}"

    @property
    def brief(self) -> str:
        """The number with its interval; a difference of percentages in points."""
        if math.isnan(self.mean):
            return "undefined"
        text = self._number(self.mean)
        if self.low != self.high:
            text += f" [{self._number(self.low)}, {self._number(self.high)}]"
        if self.check.ratio:
            return text
        is_difference = self.check.lesser is not None
        unit = "points" if is_difference and self.unit == "%" else self.unit
        return f"{text} {unit}".rstrip()

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
        """The word with what qualifies it: "agrees, given compute times (modelled)"."""
        is_given = self.word in GIVEN.values()
        word = self.word.replace(" (given)", f", given {self.claim.assumed}")
        parts = [
            *(["modelled"] if self.modelled else []),
            *([f"assumed: {self.claim.assumed}"] if self.claim.assumed and not is_given else []),
            *([f"same runs as {self.repeats}"] if self.repeats else []),
        ]
        return f"{word} ({'; '.join(parts)})" if parts else word


def judge(
    claims: Sequence[Claim],
    frame: pd.DataFrame,
    *,
    labels: Mapping[str, str] | None = None,
    same: Mapping[str, str] | None = None,
    modelled: bool = False,
    other_data: Mapping[str, str] | None = None,
) -> tuple[Verdict, ...]:
    """Each claim with its verdict, in order.

    ``frame``: long, see frame.py. ``labels``: rows in words. ``same``: rows that are the training of another
    row (frame.twins). ``modelled``: numbers of a model without a spread, judged as they are. ``other_data``:
    rows of another data set than the paper's, and of which: "digits, not CIFAR-10".
    """
    same = same or {}
    priors = _priors(claims, frame, same)
    court = _Court(frame, labels or {}, same, modelled, other_data or {}, priors)
    found: list[Verdict] = []
    seen: dict[object, str] = {}
    for claim in claims:
        verdict = court.judge(claim)
        key = tuple(court.identity(check) for check in claim.checks)
        first = seen.setdefault(key, claim.id)
        repeats = first if first != claim.id and verdict.n else ""
        found.append(replace(verdict, repeats=repeats))
    return tuple(found)


def tally(verdicts: Sequence[Verdict]) -> dict[str, int]:
    """How many verdicts of each word, repeated ones not counted."""
    return dict(Counter(verdict.word for verdict in verdicts if not verdict.repeats))


def judged(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """The verdicts that rest on an interval. Modelled numbers have none."""
    words = (*GIVEN, *GIVEN.values(), "inconclusive")
    return [v for v in verdicts if v.word in words and not v.repeats and not v.modelled]


def excluding(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """The judged verdicts of claims whose range excludes "no effect" in at least one comparison of two rows:
    where no row differs from another, such a claim agrees at most in the tail of the interval, 2.5 %."""

    def excludes(check: Check) -> bool:
        return check.lesser is not None and not check.above < float(check.ratio) < check.below

    return [v for v in judged(verdicts) if any(map(excludes, v.claim.checks))]


def by_chance(verdicts: Sequence[Verdict]) -> tuple[float, float]:
    """What to expect, at most, by chance: agreements of the `excluding` claims if no row differed from any
    other, and differences of the judged claims if all were true. The tail of an interval is 2.5 %; a range
    with two ends has two."""

    def tails(claim: Claim) -> int:
        least = [0.0 if check.ratio else -math.inf for check in claim.checks]
        ends = zip(claim.checks, least, strict=True)
        return 1 + any(c.above > low and c.below < math.inf for c, low in ends)

    tail = (1 - COVERAGE) / 2
    differences = tail * sum(tails(verdict.claim) for verdict in judged(verdicts))
    return tail * len(excluding(verdicts)), differences


def _common(check: Check, frame: pd.DataFrame) -> pd.DataFrame:
    """A column for each row of the check, a line for each seed that they share."""
    rows = [values(frame, check.quantity, row, check.setting) for row in check.rows]
    return pd.concat(rows, axis=1, join="inner")


def paired(check: Check, frame: pd.DataFrame) -> Values:
    """The check's difference or ratio for each seed that both rows have. Two infinite values, of rows that
    both never reach a target, are no pair."""
    upper, *lower = _common(check, frame).to_numpy(np.float64).T
    effect: Values = upper
    for other in lower:
        with np.errstate(divide="ignore", invalid="ignore"):
            effect = upper / other if check.ratio else upper - other
        if check.ratio:  # a negative value over zero is no ratio
            effect = np.where((other == 0) & (upper <= 0), np.nan, effect)
        effect = effect[~(np.isinf(upper) & np.isinf(other))]
    return effect


def proportion(outcomes: Sequence[float] | Values) -> tuple[float, float]:
    """The exact (Clopper-Pearson) 95 % interval of a proportion, from outcomes that are 0 or 1."""
    found = stats.binomtest(int(sum(outcomes)), len(outcomes)).proportion_ci(COVERAGE)
    return float(found.low), float(found.high)


Group = tuple[str, str, str, str]


def group_of(check: Check) -> Group:
    """Quantity, setting, kind and model of a check: comparisons that are alike in these share a prior."""
    kind = "ratio" if check.ratio else "value" if check.lesser is None else "difference"
    model = check.greater.partition(".")[0] if "." in check.greater else ""
    return check.quantity, check.setting, kind, model


def _priors(
    claims: Sequence[Claim], frame: pd.DataFrame, same: Mapping[str, str]
) -> dict[Group, Prior]:
    """The prior of each group of comparisons that has one. Two checks on the same rows, either way round, are
    one comparison, and so are checks on twins."""
    found: dict[Group, dict[frozenset[str], Values]] = {}
    for check in (check for claim in claims for check in (*claim.checks, *claim.premises)):
        rows = frozenset(same.get(row, row) for row in check.rows)
        if len(rows) == len(check.rows):
            found.setdefault(group_of(check), {}).setdefault(rows, paired(check, frame))
    fitted = {
        group: prior_of(list(of.values()), ratio=group[2] == "ratio", overlap=_overlap(list(of)))
        for group, of in found.items()
    }
    return {group: prior for group, prior in fitted.items() if prior is not None}


def _overlap(comparisons: Sequence[frozenset[str]]) -> float:
    """The mean squared correlation of two comparisons: `SHARED_BASELINE` for two that share a row, else 0."""
    pairs = [SHARED_BASELINE * bool(a & b) for a, b in combinations(comparisons, 2)]
    return sum(pairs) / len(pairs) if pairs else 0.0


@dataclass(frozen=True)
class _Court:
    """What the claims of a page are judged on (see `judge`)."""

    frame: pd.DataFrame
    labels: Mapping[str, str]
    same: Mapping[str, str]
    modelled: bool
    other_data: Mapping[str, str]
    priors: Mapping[Group, Prior]

    def judge(self, claim: Claim) -> Verdict:
        exact = self.modelled or claim.by_construction
        effects = [self.effect(check, exact) for check in claim.checks]
        known = [effect for effect in effects if effect is not None]
        n = min((effect.n for effect in known), default=0)
        word, detail = self._word(claim, known, n, exact)
        if len(known) < len(effects) and word.startswith("not"):
            n = 0
        return Verdict(claim, word, n, detail, self.modelled, effects=tuple(known))

    def effect(self, check: Check, exact: bool) -> Effect | None:
        """The check's value with its interval; ``exact``: a number that is judged without one."""
        found = paired(check, self.frame)
        if not len(found):
            return None
        is_own = (self.frame["quantity"] == check.quantity) & (self.frame["row"] == check.greater)
        unit = str(self.frame.loc[is_own, "unit"].iloc[0])
        prior = self.priors.get(group_of(check))
        one = estimate(found, ratio=check.ratio, prior=prior)
        if exact or one.n < MIN_SEEDS:
            return Effect(check, one.n, one.mean, one.mean, one.mean, unit, self.labels)
        if unit == YES_OR_NO and check.lesser is None:
            return Effect(check, one.n, one.mean, *proportion(found), unit, self.labels)
        p = one.p_outside(check.above, check.below) if one.error else None
        prior = prior if one.error else None
        return Effect(check, one.n, one.mean, one.low, one.high, unit, self.labels, p, prior)

    def identity(self, check: Check) -> object:
        """What a check compares, with twins under one name. Twins may still differ in what they send."""
        rows = tuple(self.same.get(row, row) for row in check.rows)
        found = paired(check, self.frame).tobytes()
        return check.quantity, rows, check.setting, check.above, check.below, check.ratio, found

    def _word(self, claim: Claim, known: Sequence[Effect], n: int, exact: bool) -> tuple[Word, str]:
        numbers = "; ".join(effect.text for effect in known)
        measured = f"Measured: {numbers or 'not run'}"
        missing = len(claim.checks) - len(known)
        p_values = holm([*(effect.p_outside for effect in known), *[1.0] * missing])
        is_outside = min(p_values) < 1 - COVERAGE
        if claim.cannot_follow:
            return "cannot follow", f"{claim.cannot_follow} {measured}."
        if missing:
            word, why = self._missing(claim)
            if word == "not run" or not is_outside:
                return word, why
        if why := self._untested(claim):
            return "not tested", f"{why}. {measured}"
        for premise in claim.premises:
            effect = self.effect(premise, exact)
            if effect is None:
                return "not tested", f"premise unknown: no {premise.quantity}. {measured}"
            if effect.outside or (effect.n < MIN_SEEDS and not effect.points_inside):
                return "not tested", f"premise does not hold: {effect.text}. {measured}"
            if not effect.inside:
                return "inconclusive", f"premise unclear: {effect.text}. {measured}"
        points_inside = all(effect.points_inside for effect in known)
        if claim.by_construction:
            return "by construction" if points_inside else "differs", numbers
        if any(math.isnan(effect.mean) for effect in known):
            why = "a ratio with zero, or a target that only some seeds reach"
            return "inconclusive", f"{numbers}: {why}"
        dropped = [text for check in claim.checks if (text := _never(check, self.frame))]
        numbers = "; ".join((numbers, *dropped))
        if (n < MIN_SEEDS and not exact) or dropped:
            return "indicative (+)" if points_inside else "indicative (-)", numbers
        if not (are_inside := all(effect.inside for effect in known)) and not is_outside:
            return "inconclusive", numbers
        decided: Word = "agrees" if are_inside else "differs"
        return GIVEN[decided] if claim.assumed else decided, numbers

    def _untested(self, claim: Claim) -> str:
        """Why a check says nothing of the claim: twins are compared, or the data are not the paper's."""
        for check in claim.checks:
            # Twins may still differ in what they send.
            is_twin = len({self.same.get(row, row) for row in check.rows}) < len(check.rows)
            if is_twin and set(paired(check, self.frame)) <= {float(check.ratio)}:
                return f"{_named(check, self.labels)} are the same training"
        if claim.by_construction or claim.where == EXPECTED:
            return ""
        for check in claim.checks:
            others = [self.other_data[row] for row in check.rows if row in self.other_data]
            if others and _depends_on_data(check, self.frame):
                return f"data: {others[0]}"
        return ""

    def _missing(self, claim: Claim) -> tuple[Word, str]:
        """Why a check has no number: no run, no seed in common, or neither row ever reaches a target."""
        frame, rows = self.frame, sorted({row for check in claim.checks for row in check.rows})
        absent = [self.labels.get(row, row) for row in rows if row not in set(frame["row"])]
        if absent:
            return "not run", f"no finished run of {', '.join(absent)}"
        for check in claim.checks:
            found = [values(frame, check.quantity, row, check.setting) for row in check.rows]
            if not len(paired(check, frame)) and all(len(f) and np.isinf(f).all() for f in found):
                named = _named(check, self.labels)
                return "not tested", f"{check.quantity} is infinite for {named}"
        named = " and ".join(self.labels.get(row, row) for row in rows)
        return "not run", f"no common number of {named}"


def _depends_on_data(check: Check, frame: pd.DataFrame) -> bool:
    """Whether another data set changes a quantity, as it changes accuracy. It does not change what is sent,
    nor the order of times, but for the time until a quality is reached."""
    line = frame[frame["quantity"] == check.quantity].iloc[0]
    until = any(words in check.quantity for words in UNTIL)
    return until or not (line["clock"] or check.quantity.startswith(tuple(SENT)))


def _never(check: Check, frame: pd.DataFrame) -> str:
    """How many common seeds were left out because neither row ever reaches it; empty for none."""
    never = np.isinf(_common(check, frame).to_numpy()).all(axis=1)
    if check.lesser is None or not never.any():
        return ""
    return f"neither row reaches it in {never.sum()} of {len(never)} seeds"


def _named(check: Check, labels: Mapping[str, str], between: str = " and ") -> str:
    return between.join(labels.get(row, row) for row in check.rows)
