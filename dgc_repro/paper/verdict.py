"""The judge: what a paper claims against what was measured. docs/reading-a-result.md has the verdicts.

The interval is a t interval of the mean over seeds, of paired differences or of the logarithms of paired
ratios (statistics.py). It is moderated: the comparisons of one quantity, setting, kind (value, difference,
ratio) and model that the claims of a page make share a prior of their variances, if they are enough.
Comparisons that have a row in common are correlated, which the prior takes into account.

A magnitude is a range around the printed number, so that *agrees* is an equivalence test. A claim of several
checks agrees when all do: an intersection-union test, which needs no correction. It differs when one does
after Holm's correction over its checks.

A row that never reaches a target has an infinite value. Against a row that reaches it in every seed, the
comparison is decided; where only some seeds reach it, it is inconclusive.

Two rows whose last test is no better than guessing decide nothing about its quality.

Seeds that all have one value of a grid, such as a number of steps between tests or an outcome that is 0 or 1,
have no interval and decide nothing: a claim should judge the distance from a target in place of an outcome.
Bytes and floats are counted, and may well agree. An order that stays open says what its interval excludes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from typing import Literal, NamedTuple, get_args

import numpy as np
import pandas as pd

from dgc_repro.paper.claims import EXPECTED, Check, Claim
from dgc_repro.paper.effect import Effect
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
    "indicative (-)", "by construction", "not tested", "not run", "cannot follow",
]  # fmt: skip
"""The verdicts, as a page orders them."""
MIN_SEEDS = 3
LAST_TEST = ("test accuracy", "test perplexity", "test loss")
UNTIL = ("to the target", "to the plateau")
"""In names of quantities that end where a quality is reached."""
WORDS: tuple[Word, ...] = get_args(Word)
GIVEN: Mapping[Word, Word] = {"agrees": "agrees (given)", "differs": "differs (given)"}
"""What a decided claim is called that has an assumed input."""


UNTESTED = ("not tested", "not run")
"""Words of a claim on which the runs say nothing."""


@dataclass(frozen=True)
class Verdict:
    """The ``word`` and the effects behind it.

    detail   both in one text
    why      what keeps the numbers from deciding, in sentences
    needs    what a claim that was not tested needs, to continue "3 claims need"
    repeats  the claim, judged earlier, that compares the same trainings in the same range; a repeated claim
             is not counted again
    """

    claim: Claim
    word: Word
    n: int
    detail: str
    modelled: bool = False
    repeats: str = ""
    effects: tuple[Effect, ...] = ()
    why: str = ""
    needs: str = ""

    @property
    def text(self) -> str:
        """The word with what qualifies it: "agrees, given compute times (modelled)"."""
        assumed, is_given = self.claim.assumed, self.word in GIVEN.values()
        word = self.word.replace(" (given)", f", given {assumed}")
        parts = {
            "modelled": self.modelled,
            f"assumed: {assumed}": assumed and not is_given,
            f"same runs as {self.repeats}": self.repeats,
        }
        said = "; ".join(part for part, is_so in parts.items() if is_so)
        return f"{word} ({said})" if said else word


def tally(verdicts: Sequence[Verdict]) -> dict[str, int]:
    """How many verdicts of each word, repeated ones not counted."""
    return dict(Counter(verdict.word for verdict in verdicts if not verdict.repeats))


class Chance(NamedTuple):
    """What to expect, at most, by chance: ``agreements`` of the claims that exclude "no effect" if no row
    differed from any other, and ``differences`` of the ``judged`` claims if all were true.

    The tail of an interval is 2.5 %; a range with two ends has two. Modelled numbers have no interval."""

    judged: int
    excluding: int
    agreements: float
    differences: float


def by_chance(verdicts: Sequence[Verdict]) -> Chance:
    """Count the claims that rest on an interval, and those whose range excludes "no effect" in at least one
    comparison of two rows."""
    words = (*GIVEN, *GIVEN.values(), "inconclusive")
    own = [v.claim.checks for v in verdicts if v.word in words and not (v.repeats or v.modelled)]
    excluding = sum(
        any(c.lesser is not None and not c.above < float(c.ratio) < c.below for c in checks)
        for checks in own
    )
    ends = sum(1 + any(c.above > c.least and c.below < math.inf for c in checks) for checks in own)
    tail = (1 - COVERAGE) / 2
    return Chance(len(own), excluding, tail * excluding, tail * ends)


def paired(check: Check, frame: pd.DataFrame) -> Values:
    """The check's difference or ratio for each seed that both rows have. Two infinite values, of rows that
    both never reach a target, are no pair."""
    upper, *lower = _common(check, frame)
    effect: Values = upper
    for other in lower:
        with np.errstate(divide="ignore", invalid="ignore"):
            effect = upper / other if check.ratio else upper - other
        if check.ratio:  # a negative value over zero is no ratio
            effect = np.where((other == 0) & (upper <= 0), np.nan, effect)
        effect = effect[~(np.isinf(upper) & np.isinf(other))]
    return effect


def _common(check: Check, frame: pd.DataFrame) -> Values:
    """A line for each row of the check, a column for each seed that they share."""
    rows = [values(frame, check.quantity, row, check.setting) for row in check.rows]
    return np.asarray(pd.concat(rows, axis=1, join="inner").to_numpy(np.float64).T)


def judge(
    claims: Sequence[Claim],
    frame: pd.DataFrame,
    *,
    labels: Mapping[str, str] | None = None,
    same: Mapping[str, str] | None = None,
    modelled: bool = False,
    other_data: Mapping[str, str] | None = None,
    guesses: Collection[str] = (),
) -> tuple[Verdict, ...]:
    """Each claim with its verdict, in order.

    ``frame``: long, see frame.py. ``labels``: rows in words. ``same``: rows that are the training of another
    row (frame.twins). ``modelled``: numbers of a model without a spread, judged as they are. ``other_data``:
    rows of another data set than the paper's, and of which: "digits, not CIFAR-10". ``guesses``: rows whose
    runs are all no better than guessing in the last test: two of them decide no claim on its quality.
    """
    court = _Court(claims, frame, labels or {}, same or {}, modelled, other_data or {}, guesses)
    found: list[Verdict] = []
    seen: dict[object, str] = {}
    for claim in claims:
        verdict = court.judge(claim)
        # Twins under one name; they may still differ in what they send.
        key = tuple(
            (c.group, court.twins(c), c.above, c.below, paired(c, frame).tobytes())
            for c in claim.checks
        )
        first = seen.setdefault(key, claim.id)
        repeats = first if first != claim.id and verdict.n else ""
        found.append(replace(verdict, repeats=repeats))
    return tuple(found)


class _Ruling(NamedTuple):
    """What a claim's `Verdict` says of it."""

    word: Word
    detail: str
    why: str = ""
    needs: str = ""


def _open_premise(premise: Check, effect: Effect | None, measured: str) -> _Ruling | None:
    """What a premise that is not shown to hold says of a claim; None where it holds."""
    needs = "a premise that these runs do not meet"
    if effect is None:
        said = f"The claim needs {premise.quantity}, which these runs do not have."
        detail = f"premise unknown: no {premise.quantity}. {measured}"
        return _Ruling("not tested", detail, said, needs)
    said = f"The claim needs {effect.needed} {effect.claimed}; it is {effect.measured}."
    if effect.outside or (effect.n < MIN_SEEDS and not effect.points_inside):
        detail = f"premise does not hold: {effect.text}. {measured}"
        return _Ruling("not tested", detail, said, needs)
    if not effect.inside:
        return _Ruling("inconclusive", f"premise unclear: {effect.text}. {measured}", said)
    return None


def _not_run(why: str) -> _Ruling:
    return _Ruling("not run", why, why, "runs that are not finished")


@dataclass(frozen=True)
class _Court:
    """What the ``claims`` of a page are judged on (see `judge`)."""

    claims: Sequence[Claim]
    frame: pd.DataFrame
    labels: Mapping[str, str]
    same: Mapping[str, str]
    modelled: bool
    other_data: Mapping[str, str]
    guesses: Collection[str]

    def twins(self, check: Check) -> tuple[str, ...]:
        """The rows of a check, twins under one name."""
        return tuple(self.same.get(row, row) for row in check.rows)

    def names(self, rows: Sequence[str]) -> tuple[str, ...]:
        return tuple(self.labels.get(row, row) for row in rows)

    @cached_property
    def priors(self) -> Mapping[tuple[str, ...], Prior | None]:
        """The prior of each group of comparisons. Two checks on the same rows, either way round, are one
        comparison, and so are checks on twins. Two that share a row are correlated."""
        found: dict[tuple[str, ...], dict[frozenset[str], Values]] = {}
        for check in (c for claim in self.claims for c in (*claim.checks, *claim.premises)):
            if len(rows := frozenset(self.twins(check))) == len(check.rows):
                of_group = found.setdefault(check.group, {})
                of_group.setdefault(rows, paired(check, self.frame))
        priors = {}
        for group, of in found.items():
            shared = [SHARED_BASELINE * bool(a & b) for a, b in combinations(of, 2)]
            overlap = sum(shared) / max(1, len(shared))
            priors[group] = prior_of(list(of.values()), ratio="ratio" in group, overlap=overlap)
        return priors

    def judge(self, claim: Claim) -> Verdict:
        exact = self.modelled or claim.by_construction
        effects = [self.effect(check, exact) for check in (*claim.checks, *claim.premises)]
        own, premises = effects[: len(claim.checks)], effects[len(claim.checks) :]
        known = [effect for effect in own if effect is not None]
        n = min((effect.n for effect in known), default=0)
        word, detail, why, needs = self._ruling(claim, known, premises, n, exact)
        if len(known) < len(own) and word.startswith("not"):
            n = 0
        return Verdict(
            claim, word, n, detail, self.modelled, effects=tuple(known), why=why, needs=needs
        )

    def effect(self, check: Check, exact: bool) -> Effect | None:
        """The check's value with its interval; ``exact``: a number that is judged without one."""
        if not len(found := paired(check, self.frame)):
            return None
        is_own = (self.frame["quantity"] == check.quantity) & (self.frame["row"] == check.greater)
        unit = str(self.frame.loc[is_own, "unit"].iloc[0])
        prior = self.priors.get(check.group)
        one = estimate(found, ratio=check.ratio, prior=prior)
        low, high, names = one.low, one.high, self.names(check.rows)
        if exact or one.n < MIN_SEEDS:
            low = high = one.mean
        elif one.error:
            p = one.p_outside(check.above, check.below)
            return Effect(check, one.n, one.mean, low, high, unit, names, p, prior)
        return Effect(check, one.n, one.mean, low, high, unit, names)

    def _ruling(
        self,
        claim: Claim,
        known: Sequence[Effect],
        premises: Sequence[Effect | None],
        n: int,
        exact: bool,
    ) -> _Ruling:
        numbers = "; ".join(effect.text for effect in known)
        measured = f"Measured: {numbers or 'not run'}"
        missing = len(claim.checks) - len(known)
        p_values = holm([*(effect.p_outside for effect in known), *[1.0] * missing])
        is_outside = min(p_values) < 1 - COVERAGE
        if why := claim.cannot_follow:
            return _Ruling("cannot follow", f"{why} {measured}.", why)
        if missing:
            found = self._missing(claim)
            if found.word == "not run" or not is_outside:
                return found
        if twins := self._twins_compared(claim):
            return _Ruling(
                "not tested", f"{twins}. {measured}", f"{twins}.", f"other runs ({twins})"
            )
        if data := self._other_data(claim):
            said, papers = f"The data are {data}.", data.partition(", not ")[2]
            return _Ruling("not tested", f"data: {data}. {measured}", said, papers)
        if not claim.by_construction and (rows := self._guesses_compared(claim)):
            said = f"{rows} are no better than guessing."
            return _Ruling("not tested", f"{said} {measured}", said, "runs that learn")
        for premise, of_premise in zip(claim.premises, premises, strict=True):
            if open_premise := _open_premise(premise, of_premise, measured):
                return open_premise
        points_inside = all(effect.points_inside for effect in known)
        if claim.by_construction:
            return _Ruling("by construction" if points_inside else "differs", numbers)
        if any(math.isnan(effect.mean) for effect in known):
            why = "a ratio with zero, or a target that only some seeds reach"
            return _Ruling("inconclusive", f"{numbers}: {why}", f"The number is {why}.")
        dropped = [text for check in claim.checks if (text := self._never(check))]
        numbers = "; ".join((numbers, *dropped))
        if (n < MIN_SEEDS and not exact) or dropped:
            word: Word = "indicative (+)" if points_inside else "indicative (-)"
            return _Ruling(word, numbers, "; ".join(dropped))
        if any(self._is_one_value(claim, effect) for effect in known if not exact):
            said = "all seeds have one value of a grid"
            return _Ruling("inconclusive", f"{numbers}: {said}", f"{said.capitalize()}.")
        if not (are_inside := all(effect.inside for effect in known)) and not is_outside:
            left = "; ".join(filter(None, (effect.excluded for effect in known)))
            return _Ruling("inconclusive", f"{numbers}. Shown: {left}" if left else numbers)
        decided: Word = "agrees" if are_inside else "differs"
        return _Ruling(GIVEN[decided] if claim.assumed else decided, numbers)

    def _is_one_value(self, claim: Claim, effect: Effect) -> bool:
        """Whether the seeds have one value of a measured quantity, or of a comparison, and so no interval.
        Rows that never reach a target are another matter."""
        check = effect.check
        is_free = claim.counted or check.quantity.startswith(tuple(SENT))
        rows = self.frame["row"].isin(check.rows) & (self.frame["quantity"] == check.quantity)
        is_free |= bool((self.frame.loc[rows, "clock"] == "modelled").any())
        is_one = effect.low == effect.high and math.isfinite(effect.mean)
        is_measured = bool(np.isfinite(_common(check, self.frame)).all())
        return effect.n >= MIN_SEEDS and is_one and is_measured and not is_free

    def _twins_compared(self, claim: Claim) -> str:
        """Which rows of a check are one training; empty for none."""
        for check in claim.checks:
            # How much twins send is an answer: a policy that compressed nothing has sent no less.
            is_twin = check.quantity not in SENT and len(set(self.twins(check))) < len(check.rows)
            if is_twin and set(paired(check, self.frame)) <= {float(check.ratio)}:
                return f"{' and '.join(self.names(check.rows))} are the same training"
        return ""

    def _other_data(self, claim: Claim) -> str:
        """Which data a check is made on, where they are not the paper's and the quantity depends on them.
        Data change neither what is sent nor the order of times, but for the time until a quality is
        reached."""
        if claim.by_construction or claim.where == EXPECTED:
            return ""
        for check in claim.checks:
            others = [self.other_data[row] for row in check.rows if row in self.other_data]
            if others and self._is_of_quality(check):
                return others[0]
        return ""

    def _is_of_quality(self, check: Check) -> bool:
        """Whether a quantity depends on what was learned: it is neither a time nor what is sent, or it is
        counted until a quality is reached."""
        clocks = self.frame.loc[self.frame["quantity"] == check.quantity, "clock"]
        is_until = any(words in check.quantity for words in UNTIL)
        return is_until or not (clocks.iloc[0] or check.quantity.startswith(tuple(SENT)))

    def _guesses_compared(self, claim: Claim) -> str:
        """Which rows of a claim on the quality of the last test have learned nothing, where all of its checks
        compare two such rows; else empty."""
        for check in claim.checks:
            is_of_last_test = check.quantity in LAST_TEST
            if check.lesser is None or not is_of_last_test or not {*check.rows} <= {*self.guesses}:
                return ""
        rows = dict.fromkeys(row for check in claim.checks for row in check.rows)
        return " and ".join(self.names(tuple(rows)))

    def _never(self, check: Check) -> str:
        """How many common seeds were left out because neither row ever reaches it; empty for none."""
        never = np.asarray(np.isinf(_common(check, self.frame)).all(axis=0))
        if check.lesser is None or not never.any():
            return ""
        return f"neither row reaches it in {never.sum()} of {len(never)} seeds"

    def _missing(self, claim: Claim) -> _Ruling:
        """Why a check has no number: no run, no seed in common, or neither row ever reaches a target."""
        frame, rows = self.frame, sorted({row for check in claim.checks for row in check.rows})
        absent = [row for row in rows if row not in set(frame["row"])]
        if absent:
            return _not_run(f"no finished run of {', '.join(self.names(absent))}")
        for check in claim.checks:
            found = [values(frame, check.quantity, row, check.setting) for row in check.rows]
            if not len(paired(check, frame)) and all(len(f) and np.isinf(f).all() for f in found):
                why = f"{check.quantity} is infinite for {' and '.join(self.names(check.rows))}"
                return _Ruling("not tested", why, why, f"other runs ({why})")
        return _not_run(f"no common number of {' and '.join(self.names(rows))}")
