"""ScaDLES-style: strong compression where it loses little, or where data streams in too fast."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import torch

from dgc_repro.policy.interface import State, StepReport
from dgc_repro.policy.scadles import ScaDLES


def scadles(**settings: Any) -> ScaDLES:
    given = {"field": "density", "values": (0.1, 0.01), "smoothing": 1.0, "rate": 100.0}
    return ScaDLES(**given | {"patience": 50.0} | settings)


def step(policy: ScaDLES, state: State, high: float, seconds: float = 0.5) -> tuple[int, State]:
    """One step of 50 samples, of which the high compression keeps a share ``high``."""
    energies = torch.tensor([1.0, 0.95, high], dtype=torch.float64)
    rung, state = policy.choose(state, energies)
    return rung, policy.after_step(state, StepReport(0, seconds, 50.0))


def test_what_loses_little_is_compressed_strongly() -> None:
    policy = scadles()
    assert policy.plan(policy.init(), 0).candidates == (1, 2)
    assert step(policy, policy.init(), 0.92)[0] == 2
    assert step(policy, policy.init(), 0.88)[0] == 1


def test_samples_that_wait_are_counted_and_make_it_hurry() -> None:
    policy = scadles()
    state, rungs, waiting = policy.init(), [], []
    for seconds in (0.5, 1.0, 1.0, 0.1, 0.1):  # 50, 100, 100, 10, 10 arrive, 50 are learnt from
        rung, state = step(policy, state, 0.6, seconds)
        rungs.append(rung)
        waiting.append(state["waiting"])
    assert waiting == [0.0, 50.0, 100.0, 60.0, 20.0]
    assert rungs == [1, 1, 1, 2, 2]  # as it was when the step began: 0, 0, 50, 100, 60
    assert state["last"]["reason"] == "catches up"
    assert step(policy, state, 0.6)[0] == 1


def test_no_hurry_sends_less_than_the_least_share() -> None:
    state = {**scadles().init(), "waiting": 1e9}
    assert step(scadles(), state, 0.6)[0] == 2
    assert step(scadles(), state, 0.4)[0] == 1


def test_its_gain_is_smoothed_as_a_ratio_of_averages_and_recorded() -> None:
    policy = scadles(smoothing=0.5)
    _, state = step(policy, policy.init(), 1.0)
    _, state = step(policy, state, 0.5)
    assert state["last"]["gain_candidate"] == pytest.approx((0.25 + 0.25) / 0.75)
    assert state["last"]["gain_theta_min"] == pytest.approx(0.95)
    assert json.loads(json.dumps(state)) == state


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"values": (0.1,)}, "values: the low compression and the high one, got [0.1]"),
        ({"rate": -1}, "rate: samples a second from 0, got -1"),
        ({"patience": "few"}, "patience: samples from 0, got 'few'"),
        ({"eps": 0}, "eps: above 0 and at most 1, got 0"),
        ({"least": 0.95}, "least: at most eps, got 0.95 above 0.9"),
        ({"smoothing": 2}, "smoothing: above 0 and at most 1, got 2"),
    ],
)
def test_a_wrong_setting_is_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        scadles(**settings)
