"""AdaQS: precision grows as the gradient sinks into its noise."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest

from dgc_repro.policy.adaqs import AdaQS, ratio_of
from dgc_repro.policy.interface import State, StepReport


def adaqs(**settings: Any) -> AdaQS:
    given = {"field": "bits", "values": (16, 8, 4), "smoothing": 1.0, "least_steps": 2} | settings
    return AdaQS(**given)


def report(ratio: float, step: int = 0) -> StepReport:
    """Squares with this mean-to-standard-deviation ratio."""
    return StepReport(step, 1.0, 64.0, own_square=ratio**2 + 1, mean_square=ratio**2)


def after(policy: AdaQS, ratios: list[float]) -> tuple[list[int | None], State]:
    state, rungs = policy.init(), []
    for step, ratio in enumerate(ratios):
        rungs.append(policy.plan(state, step).rung)
        state = policy.after_step(state, report(ratio, step))
    return [*rungs, policy.plan(state, len(ratios)).rung], state


def test_the_ratio_is_of_means_to_spread() -> None:
    assert ratio_of(StepReport(0, 1.0, 1.0, own_square=10.0, mean_square=9.0)) == 3.0
    assert ratio_of(StepReport(0, 1.0, 1.0, own_square=9.0, mean_square=9.0)) == math.inf


def test_it_begins_with_the_strongest_and_moves_when_the_ratio_has_halved() -> None:
    rungs, state = after(adaqs(), [4.0, 4.0, 3.0, 2.1, 2.0, 2.0, 2.0, 0.9, 0.1])
    assert rungs == [3, 3, 3, 3, 3, 2, 2, 2, 1, 1]
    assert [entry["step"] for entry in state["trace"]] == [5, 8]


def test_it_stays_where_the_ratio_rises_or_the_workers_are_one() -> None:
    assert after(adaqs(), [1.0, 2.0, 4.0, 8.0])[0] == [3] * 5
    policy = adaqs()
    alone = StepReport(0, 1.0, 64.0, own_square=1.0, mean_square=1.0)
    assert policy.after_step(policy.init(), alone) == policy.init()


def test_the_ratio_is_averaged() -> None:
    _, state = after(adaqs(smoothing=0.25), [4.0, 2.0])
    assert state["average"] == pytest.approx(3.5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"falls_by": 1}, "falls_by: a fraction above 0 and below 1, got 1"),
        ({"falls_by": 0}, "falls_by: a fraction above 0"),
        ({"smoothing": 2}, "smoothing: a fraction above 0"),
        ({"least_steps": 0}, "least_steps: a whole number from 1, got 0"),
    ],
)
def test_a_wrong_setting_is_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        adaqs(**settings)
