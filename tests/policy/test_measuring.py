"""Policies that measure every step: a probe writes it down, ScaDLES compresses where the norm survives."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch

from dgc_repro.policy.interface import EpochReport, State, StepReport
from dgc_repro.policy.probed import Probed
from dgc_repro.policy.scadles import ScaDLES

ENERGIES = torch.tensor([4.0, 3.0, 3.0, 2.0], dtype=torch.float64)


def test_with_a_ladder_it_measures_and_always_takes_the_same_rung() -> None:
    policy = Probed("factor", 10)
    plan = policy.plan(policy.init(), 0)
    assert policy.chooses
    assert policy.watches is None
    assert tuple(policy.values) == (10,)
    assert (plan.rung, plan.candidates, plan.norms) == (None, (1, 1), True)
    for energies in (ENERGIES, torch.zeros(4, dtype=torch.float64)):
        assert policy.choose(policy.init(), energies)[0] == 1


def test_a_step_is_written_down_as_gravac_does() -> None:
    policy = Probed("factor", 10)
    _, state = policy.choose(policy.init(), ENERGIES)
    last = state["last"]
    assert (last["branch"], last["rung"], last["theta_min"], last["candidate"]) == (
        "theta_min", 1, 10, 10,
    )  # fmt: skip
    assert last["gain"] == last["gain_theta_min"] == last["gain_candidate"] == 0.75
    assert last["energies"] == [4.0, 3.0, 3.0, 2.0]


@pytest.mark.parametrize(("kept", "gain"), [(-1.0, -0.25), (3.0, 0.75), (0.0, 0.0)])
def test_a_gain_is_not_clipped(kept: float, gain: float) -> None:
    energies = torch.tensor([4.0, kept, kept, 4.0], dtype=torch.float64)
    policy = Probed("bits", 2)
    assert policy.choose(policy.init(), energies)[1]["last"]["gain"] == gain


def test_a_ladder_measures_its_other_settings_too_in_every_thinning_of_the_steps() -> None:
    policy = Probed("factor", 100, ladder=[10, 100, 1000])
    state, tried = policy.init(), []
    for step in range(200):
        plan = policy.plan(state, step)
        rung, state = policy.choose(state, torch.tensor([4.0, 2.0, 1.0], dtype=torch.float64))
        last = state["last"]
        assert (rung, last["theta_min"], last["gain"], last["gain_candidate"]) == (
            2,
            100,
            0.5,
            0.25,
        )
        assert plan.candidates == (2, {10: 1, 1000: 3}[last["candidate"]])
        tried.append(last["candidate"])
    for every in (1, 2, 3, 5, 8):
        share = tried[::every].count(10) / len(tried[::every])
        assert 0.35 < share < 0.65, every


def test_a_ladder_holds_the_setting_that_is_sent() -> None:
    with pytest.raises(ValueError, match="ladder: must hold value"):
        Probed("factor", 10, ladder=[100, 1000])


def test_without_a_ladder_it_plans_the_compressor_as_it_is_and_records_squares() -> None:
    policy = Probed()
    assert not policy.chooses
    assert policy.watches == "spread"
    assert policy.field is None
    assert tuple(policy.values) == ()
    assert policy.plan(policy.init(), 3).rung == 0
    state = policy.after_step(policy.init(), StepReport(7, 0.0, 64.0, 9.0, 5.0))
    assert (state["timed"]["own_square"], state["timed"]["mean_square"]) == (9.0, 5.0)
    assert math.isnan(state["timed"]["throughput"])
    assert state["last"] == {}
    assert policy.observe(state, EpochReport(1, 0.0, 0.0, 0.0)) == state


# ScaDLES.


def scadles(**settings: Any) -> ScaDLES:
    return ScaDLES(**{"field": "density", "values": (0.1,)} | settings)


def chosen(policy: ScaDLES, state: State, norm: float, raw: float = 1.0) -> tuple[int, State]:
    """One step: norms of the compressed gradient and of the raw one, of an error-fed one of norm 2."""
    energies = torch.tensor([4.0, norm**2, norm**2, raw, norm, norm], dtype=torch.float64)
    return policy.choose(state, energies)


@pytest.mark.parametrize(
    ("norm", "raw", "rung"),
    # The example of the code: | ||g|| - ||C(g)|| | / ||g|| <= 0.3, more than the norm counts as less.
    [(0.71, 1.0, 1), (0.69, 1.0, 0), (1.29, 1.0, 1), (1.31, 1.0, 0), (1.5, 2.0, 1), (0.0, 0.0, 1)],
)
def test_a_step_is_compressed_where_the_norm_changes_by_delta_at_most(
    norm: float, raw: float, rung: int
) -> None:
    policy = scadles()
    plan = policy.plan(policy.init(), 0)
    assert (plan.rung, plan.candidates, plan.norms) == (None, (1, 1), True)
    assert chosen(policy, policy.init(), norm, raw)[0] == rung


def test_changes_are_averaged_over_an_epoch() -> None:
    policy = scadles()
    state, rungs = policy.init(), []
    for norm in (0.5, 0.8, 1.0, 0.6):  # averages 0.5, 0.35, 0.233, 0.275
        rung, state = chosen(policy, state, norm)
        rungs.append(rung)
    assert rungs == [0, 0, 1, 1]
    assert state["last"]["average_change"] == pytest.approx(0.275)
    state = policy.observe(state, EpochReport(1, 0.0, 0.0, 0.0))
    assert chosen(policy, state, 0.6)[0] == 0


def test_its_decision_is_recorded() -> None:
    _, state = chosen(scadles(), scadles().init(), 0.8)
    last = state["last"]
    assert (last["branch"], last["rung"], last["candidate"]) == ("theta_min", 1, 0.1)
    assert (last["gain"], last["change"]) == pytest.approx((0.16, 0.2))
    assert json.loads(json.dumps(state)) == state
    _, state = chosen(scadles(), scadles().init(), 0.1)
    assert (state["last"]["branch"], state["last"]["gain"]) == ("dense", 1.0)
