"""The judge: what a paper claims against what was measured.

agrees           the 95 % interval lies wholly inside the claimed range
differs          the interval lies wholly outside
agrees (given)   the same, given an input that nobody has measured: shown as "agrees, given compute times"
differs (given)  the same, given such an input
inconclusive     neither: the runs cannot tell
indicative (+)   fewer than 3 seeds; + where the mean lies inside the range, else -
not tested       a premise of the claim does not hold of these runs, no row of it ever reaches the target, or
                 the data set is not the paper's (what is sent, and times, are judged still)
by construction  two formulas are compared, and they agree; no finding
cannot follow    the paper's own numbers contradict each other
not run          a row of the claim has no finished run

The interval is a t interval of the mean over seeds, of paired differences or of the logarithms of paired
ratios (statistics.py). It is moderated: the comparisons of one quantity, setting, kind (value, difference,
ratio) and model that the claims of a page make share a prior of their variances, if they are enough.
Comparisons that have a row in common are correlated, which the prior takes into account.

A magnitude is a range around the printed number, so that *agrees* is an equivalence test. A claim of several
checks agrees when all do: an intersection-union test, which needs no correction, since each check must pass
by itself. It differs when one does after Holm's correction over its checks.

A row that never reaches a target has an infinite value. Against a row that reaches it in every seed, the
comparison is decided; where only some seeds reach it, it is inconclusive. Outcomes that are 0 or 1 in few
runs decide nothing as a proportion: a claim should judge the distance from the target in their place.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
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
    labels, same = labels or {}, same or {}
    measure = partial(_effect, frame=frame, labels=labels, priors=_priors(claims, frame, same))
    found: list[Verdict] = []
    seen: dict[object, str] = {}
    for claim in claims:
        verdict = _verdict(claim, frame, labels, same, modelled, other_data or {}, measure)
        key = tuple(_identity(check, frame, same) for check in claim.checks)
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
        none = 1.0 if check.ratio else 0.0
        return check.lesser is not None and not check.above < none < check.below

    return [v for v in judged(verdicts) if any(map(excludes, v.claim.checks))]


def by_chance(verdicts: Sequence[Verdict]) -> tuple[float, float]:
    """What to expect, at most, by chance: agreements of the `excluding` claims if no row differed from any
    other, and differences of the judged claims if all were true. The tail of an interval is 2.5 %; a range
    with two ends has two."""

    def tails(claim: Claim) -> int:
        return 2 if any(_has_two_ends(check) for check in claim.checks) else 1

    tail = (1 - COVERAGE) / 2
    differences = tail * sum(tails(verdict.claim) for verdict in judged(verdicts))
    return tail * len(excluding(verdicts)), differences


def _has_two_ends(check: Check) -> bool:
    least = 0.0 if check.ratio else -math.inf
    return check.above > least and check.below < math.inf


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
    n, hits, tail = len(outcomes), sum(outcomes), (1 - COVERAGE) / 2
    low = float(stats.beta.ppf(tail, hits, n - hits + 1)) if hits > 0 else 0.0
    high = float(stats.beta.ppf(1 - tail, hits + 1, n - hits)) if hits < n else 1.0
    return low, high


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


def _effect(
    check: Check,
    exact: bool,
    *,
    frame: pd.DataFrame,
    labels: Mapping[str, str],
    priors: Mapping[Group, Prior],
) -> Effect | None:
    """The check's value with its interval; ``exact``: a number that is judged without one."""
    found = paired(check, frame)
    if not len(found):
        return None
    is_own = (frame["quantity"] == check.quantity) & (frame["row"] == check.greater)
    unit = str(frame.loc[is_own, "unit"].iloc[0])
    prior = priors.get(group_of(check))
    one = estimate(found, ratio=check.ratio, prior=prior)
    mean, low, high, n = one.mean, one.low, one.high, one.n
    if exact or n < MIN_SEEDS:
        return Effect(check, n, mean, mean, mean, unit, labels)
    if unit == YES_OR_NO and check.lesser is None:
        return Effect(check, n, mean, *proportion(found), unit, labels)
    if not one.error:
        return Effect(check, n, mean, low, high, unit, labels)
    p = one.p_outside(check.above, check.below)
    return Effect(check, n, mean, low, high, unit, labels, p, prior)


def _verdict(
    claim: Claim,
    frame: pd.DataFrame,
    labels: Mapping[str, str],
    same: Mapping[str, str],
    modelled: bool,
    other_data: Mapping[str, str],
    measure: Callable[[Check, bool], Effect | None],
) -> Verdict:
    exact = modelled or claim.by_construction
    effects = [measure(check, exact) for check in claim.checks]
    measured = [effect for effect in effects if effect is not None]
    numbers = "; ".join(effect.text for effect in measured)
    n = min((effect.n for effect in measured), default=0)
    points_inside = all(effect.points_inside for effect in measured)
    unknown = [1.0] * (len(effects) - len(measured))
    p_values = holm([*(effect.p_outside for effect in measured), *unknown])
    is_outside = min(p_values) < 1 - COVERAGE

    def say(word: Word, detail: str, count: int = n) -> Verdict:
        return Verdict(claim, word, count, detail, modelled, effects=tuple(measured))

    if claim.cannot_follow:
        return say("cannot follow", f"{claim.cannot_follow} Measured: {numbers or 'not run'}.")
    if len(measured) < len(effects):
        word, why = _missing(claim, frame, labels)
        if word == "not run" or not is_outside:
            return say(word, why, 0)
    for check in claim.checks:
        # Twins may still differ in what they send.
        is_twin = len({same.get(row, row) for row in check.rows}) < len(check.rows)
        if is_twin and set(paired(check, frame)) <= {float(check.ratio)}:
            rows = _named(check, labels)
            return say("not tested", f"{rows} are the same training. Measured: {numbers}")
    for check in claim.checks:
        others = [other_data[row] for row in check.rows if row in other_data]
        is_judged = claim.by_construction or claim.where == EXPECTED
        if others and not is_judged and _depends_on_data(check, frame):
            return say("not tested", f"data: {others[0]}. Measured: {numbers}")
    for premise in claim.premises:
        effect = measure(premise, exact)
        if effect is None:
            return say("not tested", f"premise unknown: no {premise.quantity}. Measured: {numbers}")
        if effect.outside or (effect.n < MIN_SEEDS and not effect.points_inside):
            return say("not tested", f"premise does not hold: {effect.text}. Measured: {numbers}")
        if not effect.inside:
            return say("inconclusive", f"premise unclear: {effect.text}. Measured: {numbers}")
    if claim.by_construction:
        return say("by construction" if points_inside else "differs", numbers)
    if any(math.isnan(effect.mean) for effect in measured):
        why = "a ratio with zero, or a target that only some seeds reach"
        return say("inconclusive", f"{numbers}: {why}")
    dropped = [text for check in claim.checks if (text := _never(check, frame))]
    numbers = "; ".join((numbers, *dropped))
    if (n < MIN_SEEDS and not exact) or dropped:
        return say("indicative (+)" if points_inside else "indicative (-)", numbers)
    given: Mapping[Word, Word] = GIVEN if claim.assumed else {}
    if all(effect.inside for effect in measured):
        return say(given.get("agrees", "agrees"), numbers)
    if is_outside:
        return say(given.get("differs", "differs"), numbers)
    return say("inconclusive", numbers)


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


def _missing(claim: Claim, frame: pd.DataFrame, labels: Mapping[str, str]) -> tuple[Word, str]:
    """Why a check has no number: no run, no seed in common, or neither row ever reaches a target."""
    rows = sorted({row for check in claim.checks for row in check.rows})
    absent = [labels.get(row, row) for row in rows if row not in set(frame["row"])]
    if absent:
        return "not run", f"no finished run of {', '.join(absent)}"
    for check in claim.checks:
        found = [values(frame, check.quantity, row, check.setting) for row in check.rows]
        if not len(paired(check, frame)) and all(len(f) and np.isinf(f).all() for f in found):
            return "not tested", f"{check.quantity} is infinite for {_named(check, labels)}"
    return "not run", f"no common number of {' and '.join(labels.get(row, row) for row in rows)}"


def _named(check: Check, labels: Mapping[str, str], between: str = " and ") -> str:
    return between.join(labels.get(row, row) for row in check.rows)


def _identity(check: Check, frame: pd.DataFrame, same: Mapping[str, str]) -> object:
    """What a check compares, with twins under one name. Twins may still differ in what they send."""
    rows = tuple(same.get(row, row) for row in check.rows)
    found = paired(check, frame).tobytes()
    return check.quantity, rows, check.setting, check.above, check.below, check.ratio, found
