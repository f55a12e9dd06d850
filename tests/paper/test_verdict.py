"""The judge: every word is reached, and the numbers that once misled it no longer do."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dgc_repro.paper.claims import EXPECTED, OURS, Check, Claim, near
from dgc_repro.paper.effect import Effect
from dgc_repro.paper.frame import lines
from dgc_repro.paper.statistics import interval
from dgc_repro.paper.verdict import Verdict, by_chance, judge, tally

INF, NAN = math.inf, math.nan
ABOVE = Check("steps", "a", "b")
RATIO = Check("steps", "a", "b", above=1.0, ratio=True)


def frame_of(**rows: Sequence[float] | Mapping[int, float]) -> pd.DataFrame:
    """The quantity ``steps`` of each row: by seed, or of seeds 0, 1, 2, ..."""
    found = {
        row: values if isinstance(values, Mapping) else dict(enumerate(values))
        for row, values in rows.items()
    }
    return lines(
        {"row": row, "seed": seed, "quantity": "steps", "unit": "steps", "value": value}
        for row, values in found.items()
        for seed, value in values.items()
    )


def claim(*checks: Check, **more: Any) -> Claim:
    return Claim("c", "as said", "Table I", checks, **more)


def judged(check: Check | Claim, *, modelled: bool = False, **rows: Any) -> Verdict:
    asked = check if isinstance(check, Claim) else claim(check)
    (found,) = judge([asked], frame_of(**rows), modelled=modelled)
    return found


@pytest.mark.parametrize(
    ("check", "a", "b", "word"),
    [
        (ABOVE, [5.1, 5.0, 5.3], [4, 4, 4], "agrees"),
        (ABOVE, [3.1, 3.0, 3.3], [4, 4, 4], "differs"),
        (ABOVE, [3.1, 4.9, 4.3], [4, 4, 4], "inconclusive"),
        (ABOVE, [4, 4.1, 4], [4, 4.1, 4], "inconclusive"),
        (ABOVE, [4, 4, 4], [4, 4, 4], "inconclusive"),  # one value of a grid
        (ABOVE, [9, 9, 9], [4, 4, 4], "inconclusive"),
        (replace(ABOVE, above=-INF, below=0.0), [3.1, 3.0, 3.3], [4, 4, 4], "agrees"),
        (RATIO, [5.1, 5.0, 5.3], [4, 4, 4], "agrees"),
        (RATIO, [3.1, 3.0, 3.3], [4, 4, 4], "differs"),
        (near(ABOVE, 1.0, 0.5), [5.1, 5.0, 5.1], [4, 4, 4], "agrees"),
        (near(ABOVE, 1.0, 0.5), [6.1, 6.0, 6.1], [4, 4, 4], "differs"),
        (near(RATIO, 1.3, 1.2), [5.2, 5.1, 5.3], [4, 4, 4], "agrees"),
        (near(RATIO, 1.3, 1.2), [4.1, 4.0, 4.1], [4, 4, 4], "differs"),
        # Seeds that point everywhere, and whose mean is the printed number.
        (near(ABOVE, 0.48, 0.24), [-20, 1, 20.5], [0, 0, 0], "inconclusive"),
        (near(RATIO, 1.3, 1.3), [0.5, 0.5, 2.9], [1, 1, 1], "inconclusive"),
        # Rows that never reach a target have infinite values.
        (ABOVE, [INF] * 3, [10, 12, 11], "agrees"),
        (ABOVE, [10, 12, 11], [INF] * 3, "differs"),
        (replace(ABOVE, above=-INF, below=0.0), [10, 12, 11], [INF] * 3, "agrees"),
        (near(ABOVE, 5.0, 2.0), [INF] * 3, [10, 12, 11], "differs"),
        (RATIO, [INF] * 3, [10, 12, 11], "agrees"),
        (RATIO, [10, 12, 11], [INF] * 3, "differs"),
        (replace(RATIO, above=0.0, below=1.0), [10, 12, 11], [INF] * 3, "agrees"),
        (replace(RATIO, above=0.1, below=1.0), [10, 12, 11], [INF] * 3, "differs"),
        (near(RATIO, 2.0, 2.0), [INF] * 3, [10, 12, 11], "differs"),
        (ABOVE, [INF, INF, 50], [10, 12, 11], "inconclusive"),
        (ABOVE, [INF, 20, 50], [10, INF, 11], "inconclusive"),
        (RATIO, [INF, INF, 50], [10, 12, 11], "inconclusive"),
        (ABOVE, [INF, 50], [10, 12], "inconclusive"),
        (ABOVE, [INF] * 3, [INF] * 3, "not tested"),
        (ABOVE, [INF, INF, 12], [INF, INF, 10], "indicative (+)"),  # one pair is left
        # Ratios that are none.
        (RATIO, [3, 3.1, 3], [0, 0, 0], "agrees"),
        (RATIO, [0, 0, 0], [0, 0, 0], "inconclusive"),
        (RATIO, [0, 0, 0], [3, 3.1, 3], "inconclusive"),
        (RATIO, [3, 3, 3], [0, 1, 1], "inconclusive"),
        (RATIO, [-3, -3, -3], [1, 1, 1], "inconclusive"),
        (RATIO, [-3, -3, -3], [0, 0, 0], "inconclusive"),
        # Few seeds, and none.
        (ABOVE, [5], [4], "indicative (+)"),
        (ABOVE, [5, 1], [4, 4], "indicative (-)"),
        (ABOVE, [5, 5, 5], {3: 4, 4: 4, 5: 4}, "not run"),
        (ABOVE, [5, NAN, 5.1, NAN, 5], [4] * 5, "agrees"),  # the frame leaves NaN out
        (ABOVE, [NAN] * 3, [4] * 3, "not run"),
        (ABOVE, [5, 5, 5], [], "not run"),
    ],
)
def test_two_rows(check: Check, a: Any, b: Any, word: str) -> None:
    assert judged(check, a=a, b=b).word == word


@pytest.mark.parametrize(
    ("values", "below", "word"),
    [
        ([5, 5.1, 4.9], 10.0, "agrees"),
        ([11, 11.1, 10.9], 10.0, "differs"),
        ([5, 12, 11], 10.0, "inconclusive"),
        ([INF] * 3, 10.0, "differs"),
        ([INF] * 3, INF, "differs"),  # "reaches the target" does not hold of a row that never does
        ([5, INF, 5], INF, "inconclusive"),
    ],
)
def test_the_value_of_one_row(values: list[float], below: float, word: str) -> None:
    assert judged(Check("steps", "a", below=below), a=values).word == word


def no_effect(seed: int, make: Callable[[np.random.Generator], list[float]], check: Check) -> float:
    """How often the verdict is *agrees*, of 2,000 triples of seeds whose rows do not differ."""
    generator = np.random.default_rng(seed)
    trials = 2000
    hits = 0
    for _ in range(trials):
        mean, low, high = interval(make(generator), ratio=check.ratio)
        hits += Effect(check, 3, mean, low, high).inside
    return hits / trials


@pytest.mark.parametrize("spread", ["small", "large"])
@pytest.mark.parametrize(
    "check",
    [
        *(ABOVE, near(ABOVE, 0.48, 0.47), near(ABOVE, 20.0, 19.0)),
        *(RATIO, near(RATIO, 1.3, 1.25), near(RATIO, 462.0, 400.0)),
    ],
)
def test_checks_without_an_effect_rarely_agree(check: Check, spread: str) -> None:
    def make(noise: np.random.Generator) -> list[float]:
        sd = {"small": 0.01, "large": 2.0} if check.ratio else {"small": 0.05, "large": 30.0}
        values = noise.normal(0, sd[spread], 3)
        return list(np.exp(values) if check.ratio else values)

    assert no_effect(2 if check.ratio else 1, make, check) <= 0.05


@pytest.mark.parametrize("check", [ABOVE, near(ABOVE, 30.0, 15.0)])
def test_an_effect_far_above_the_spread_is_found(check: Check) -> None:
    assert no_effect(3, lambda g: list(g.normal(30, 1, 3)), check) > 0.99


def test_several_checks_agree_together_and_differ_alone() -> None:
    rows = {"a": [5, 5.1, 5], "b": [4, 4.05, 4], "c": [3, 3.1, 5]}
    flipped = Check("steps", "b", "a")
    unclear = Check("steps", "b", "c")
    assert judged(claim(ABOVE, Check("steps", "a", below=6.0)), **rows).word == "agrees"
    assert judged(claim(ABOVE, flipped), **rows).word == "differs"
    assert judged(claim(ABOVE, unclear), **rows).word == "inconclusive"
    assert judged(claim(flipped, unclear), **rows).word == "differs"
    absent = judged(claim(ABOVE, Check("steps", "a", "d")), **rows)
    assert (absent.word, absent.needs) == ("not run", "runs that are not finished")


@pytest.mark.parametrize(
    ("premise", "word", "reason"),
    [
        (Check("steps", "a", above=4.0), "agrees", ""),
        (Check("steps", "a", above=80.0), "not tested", "premise does not hold"),
        (Check("gain", "a"), "not tested", "premise unknown"),
        (Check("steps", "never"), "not tested", "premise does not hold"),
    ],
)
def test_premises(premise: Check, word: str, reason: str) -> None:
    asked = claim(ABOVE, premises=(premise,))
    found = judged(asked, a=[5, 5.1, 5], b=[4, 4, 4], never=[INF] * 3)
    assert found.word == word
    assert reason in found.detail
    assert (found.needs == "a premise that these runs do not meet") is (word == "not tested")


def test_a_decided_claim_with_an_assumed_input_is_decided_given_that_input() -> None:
    asked = claim(ABOVE, assumed="compute times")
    found = judged(asked, a=[5, 5.1, 5.2], b=[4, 4, 4])
    assert (found.word, found.text) == ("agrees (given)", "agrees, given compute times")
    assert judged(asked, a=[3, 3.1, 3.2], b=[4, 4, 4]).text == "differs, given compute times"
    unclear = judged(asked, a=[3.1, 4.9, 4.3], b=[4, 4, 4])
    assert unclear.text == "inconclusive (assumed: compute times)"
    few = judged(asked, a=[5, 5], b=[4, 4])
    assert few.text == "indicative (+) (assumed: compute times)"
    modelled = judged(asked, a=[5], b=[4], modelled=True)
    assert modelled.text == "agrees, given compute times (modelled)"
    assert tally([found, few, modelled]) == {"agrees (given)": 2, "indicative (+)": 1}


@pytest.mark.parametrize(
    ("quantity", "clock", "where", "word"),
    [
        ("test accuracy", "", "Table I", "not tested"),
        ("test accuracy", "", EXPECTED, "agrees"),  # no paper claims it of its data set
        ("payload", "", "Table I", "agrees"),
        ("training time", "modelled", "Table I", "agrees"),
        ("seconds to the target", "modelled", "Table I", "not tested"),
        ("speedup to the plateau", "modelled", "Table I", "not tested"),
    ],
)
def test_on_another_data_set_than_the_papers_what_depends_on_it_is_not_tested(
    quantity: str, clock: str, where: str, word: str
) -> None:
    frame = frame_of(a=[5.1, 5.0, 5.3], b=[4, 4, 4]).assign(quantity=quantity, clock=clock)
    asked = Claim("c", "as said", where, (Check(quantity, "a", "b"),))
    (found,) = judge([asked], frame, other_data={"b": "digits, not CIFAR-10"})
    assert found.word == word
    assert found.detail.startswith("data: digits, not CIFAR-10. ") == (word == "not tested")
    assert (found.needs == "CIFAR-10") is (word == "not tested")


def test_what_holds_by_construction_agrees_with_nobody_and_a_defect_still_shows() -> None:
    asked = claim(ABOVE, by_construction=True)
    assert judged(asked, a=[5], b=[4]).word == "by construction"
    assert judged(asked, a=[3], b=[4]).word == "differs"
    assert judged(
        replace(asked, premises=(Check("steps", "a", above=9.0),)), a=[5], b=[4]
    ).word == ("not tested")


def test_contradicting_numbers_cannot_be_followed_whether_run_or_not() -> None:
    asked = claim(ABOVE, cannot_follow="8 of 32 bits are 25 %.")
    for rows, measured in (({"a": [5], "b": [4]}, "+1"), ({"a": [5]}, "not run")):
        found = judged(asked, **rows)
        assert found.word == "cannot follow"
        assert "8 of 32 bits are 25 %." in found.detail
        assert measured in found.detail


@pytest.mark.parametrize(("value", "word"), [(1.2, "agrees"), (0.9, "differs"), (1.0, "differs")])
def test_one_modelled_number_is_judged_as_it_is(value: float, word: str) -> None:
    found = judged(ABOVE, a=[value], b=[1.0], modelled=True)
    assert found.text == f"{word} (modelled)"
    assert by_chance([found])[2:] == (0.0, 0.0)


def test_rows_that_are_the_same_training_are_not_compared_and_count_once() -> None:
    frame = frame_of(a=[5, 5.1, 5], twin=[5, 5.1, 5], b=[4, 4, 4])
    same = {"twin": "a"}
    claims = (
        Claim("1", "a above b", "F1", (ABOVE,)),
        Claim("2", "twin above b", "F1", (Check("steps", "twin", "b"),)),
        Claim("3", "twin above b by 0.5", "F1", (Check("steps", "twin", "b", above=0.5),)),
        Claim("4", "a above its twin", "F1", (Check("steps", "a", "twin", above=-1.0),)),
    )
    found = judge(claims, frame, same=same)
    assert [v.word for v in found] == ["agrees", "agrees", "agrees", "not tested"]
    assert [v.repeats for v in found] == ["", "1", "", ""]
    assert found[1].text == "agrees (same runs as 1)"
    assert found[3].needs == "other runs (a and twin are the same training)"
    # How much twins send is an answer: a policy that compressed nothing has sent no less.
    sent = Claim("5", "a sends more", "F1", (Check("payload", "a", "twin"),))
    equal = frame_of(a=[5, 5, 5], twin=[5, 5, 5]).assign(quantity="payload")
    (answered,) = judge([sent], equal, same=same)
    assert (answered.word, answered.needs) == ("differs", "")
    assert tally(found) == {"agrees": 2, "not tested": 1}
    assert by_chance(found)[2:] == pytest.approx((0.05, 0.05))


def test_the_measured_text_has_the_rows_the_interval_and_the_claimed_range() -> None:
    asked = claim(near(RATIO, 1.3, 2.0), margin=OURS)
    (found,) = judge([asked], frame_of(a=[5, 5, 6], b=[4, 4, 4]), labels={"a": "row A"})
    assert found.detail.startswith("steps, row A / b: 1.33x [1.02x, 1.73x]")
    assert found.detail.endswith("(claimed 0.65x to 2.6x, printed 1.3x)")


def test_a_difference_of_percentages_is_in_points_and_a_percentage_is_not() -> None:
    frame = frame_of(a=[7, 7, 7], b=[4, 4, 4]).assign(unit="%")
    one = Check("steps", "a", below=5.0)
    pair, single = judge([claim(ABOVE), claim(one)], frame)
    assert pair.effects[0].brief == "+3 points"
    assert single.effects[0].brief == "7 %"


def test_three_equal_outcomes_of_yes_or_no_decide_nothing() -> None:
    frame = lines(
        {"row": "a", "seed": seed, "quantity": "failed", "unit": "runs", "value": 1.0}
        for seed in range(3)
    )
    (found,) = judge([claim(Check("failed", "a", above=0.5))], frame)
    assert found.word == "inconclusive"


def test_a_premise_holds_by_its_interval_and_not_by_its_mean() -> None:
    asked = claim(ABOVE, premises=(Check("steps", "p", above=80.0),))
    found = judged(asked, a=[5, 5, 5], b=[4, 4, 4], p=[95, 95, 51])
    assert found.word == "inconclusive"
    assert "premise unclear" in found.detail


def test_seeds_in_which_neither_row_gets_there_are_counted_and_make_it_indicative() -> None:
    found = judged(claim(ABOVE), a=[9, 9, 9, INF], b=[4, 4, 4, INF])
    assert found.word == "indicative (+)"
    assert "in 1 of 4 seeds" in found.detail


def test_chance_is_told_of_agreements_and_of_differences() -> None:
    near_zero = claim(Check("steps", "a", "b", above=-2.0, below=2.0))
    found = judged(near_zero, a=[5, 5, 5], b=[5.1, 4.9, 5.0])
    assert found.word == "agrees"
    # It includes "no effect", so that no agreement is a false one. Its range has two ends to differ at.
    assert by_chance([found]) == pytest.approx((1, 0, 0.0, 0.05))
    given = judged(claim(ABOVE, assumed="a"), a=[5, 5.1, 5.3], b=[4, 4, 4])
    assert by_chance([found, given]) == pytest.approx((2, 1, 0.025, 0.075))


def test_a_claim_of_several_checks_differs_after_holm_only() -> None:
    """One check of two is outside at p = 0.04: alone it differs, and beside another it does not."""
    rows = {"a": [-1.05, -1.1, -0.54], "c": [-3, -3.1, -2.9]}
    check, other = Check("steps", "a"), Check("steps", "c", below=0.0, above=-INF)
    alone = judged(check, **rows)
    assert alone.word == "differs"
    assert alone.effects[0].p_outside == pytest.approx(0.038, abs=1e-3)
    assert judged(claim(check, other), **rows).word == "inconclusive"
    assert judged(claim(check, replace(other, above=-1.0)), **rows).word == "differs"


@pytest.mark.parametrize("flipped", [False, True])
def test_comparisons_of_one_quantity_share_a_prior(flipped: bool) -> None:
    """Six rows whose spread is 1, and one whose three values are alike by chance."""
    generator = np.random.default_rng(0)
    spread = {f"m.r{place}": list(generator.normal(10, 1, 3)) for place in range(6)}
    rows = {"m.dense": [10.0] * 3, **spread, "m.lucky": [10.0, 10.1, 10.2]}
    pairs = [("m.dense", row) if flipped else (row, "m.dense") for row in rows if row != "m.dense"]
    claims = [
        Claim(str(pair), "as said", "Table I", (Check("steps", *pair, above=-9),)) for pair in pairs
    ]
    found = judge(claims, frame_of(**rows))
    lucky = found[-1].effects[0]
    assert lucky.prior is not None
    assert lucky.prior.rows == 7
    assert lucky.high - lucky.low > 1.5 * (2 * 4.303 * 0.1 / math.sqrt(3))  # Student's
    again = judge([*claims, *(replace(one, id=f"{one.id}2") for one in claims)], frame_of(**rows))
    assert again[0].effects[0].prior == lucky.prior  # a comparison counts once
    (alone,) = judge(claims[-1:], frame_of(**rows))
    assert alone.effects[0].prior is None
    other_model = Claim("o", "as said", "Table I", (Check("steps", "n.a", "n.b"),))
    (*_, other) = judge(
        [*claims, other_model], frame_of(**rows, **{"n.a": [1, 2, 3], "n.b": [0] * 3})
    )
    assert other.effects[0].prior is None


def test_two_rows_that_guess_decide_nothing_of_quality_and_still_send_what_they_send() -> None:
    rows = {"a": [10.1, 10.0, 10.3], "b": [9, 9, 9]}
    sent = frame_of(**rows).assign(quantity="payload")
    frame = pd.concat([frame_of(**rows).assign(quantity="test accuracy"), sent])
    claims = [claim(Check(name, "a", "b")) for name in ("test accuracy", "payload")]
    both = judge(claims, frame, guesses={"a", "b"}, labels={"a": "A", "b": "B"})
    assert [one.word for one in both] == ["not tested", "agrees"]
    assert both[0].why == "A and B are no better than guessing."
    assert [one.word for one in judge(claims, frame, guesses={"b"})] == ["agrees", "agrees"]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: near(ABOVE, 1.0, "1.0"), "margin: a number, got '1.0'"),  # type: ignore[arg-type]
        (lambda: near(ABOVE, 1.0, -1.0), "margin: a number above 0, got -1.0"),
        (lambda: near(RATIO, 1.0, 0.5), "margin: a factor above 1 for a ratio, got 0.5"),
        (lambda: Check("steps", "a", "b", above=None), "above: a number, got None"),  # type: ignore[arg-type]
    ],
)
def test_a_margin_that_is_none_is_one_line(make: Callable[[], object], says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        make()
