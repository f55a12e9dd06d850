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
    assert Probed("bits", 2).choose({"waiting": []}, energies)[1]["last"]["gain"] == gain


def test_of_nothing_all_survives() -> None:
    nothing = torch.zeros(4, dtype=torch.float64)
    assert Probed("bits", 2).choose({"waiting": []}, nothing)[1]["last"]["gain"] == 1.0


def test_a_time_belongs_to_the_gain_of_its_step() -> None:
    policy = Probed("factor", 10, spread=True)
    assert policy.watches == "spread"
    _, state = policy.choose(policy.init(), ENERGIES)
    _, state = policy.choose(state, 2 * ENERGIES)
    state = policy.after_step(state, StepReport(0, 2.0, 64.0, own_square=9.0, mean_square=5.0))
    assert state["timed"] == {
        "step": 0, "seconds": 2.0, "samples": 64.0, "throughput": 24.0,
        "own_square": 9.0, "mean_square": 5.0,
    }  # fmt: skip
    assert len(state["waiting"]) == 1


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
