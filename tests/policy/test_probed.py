"""A static setting whose every step is written down."""

from __future__ import annotations

import math

import pytest
import torch

from dgc_repro.policy.interface import EpochReport, StepReport
from dgc_repro.policy.probed import Probed

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
