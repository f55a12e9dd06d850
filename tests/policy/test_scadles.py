"""ScaDLES: compressed while the gradient's norm survives it, else dense."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from dgc_repro.policy.interface import EpochReport, State
from dgc_repro.policy.scadles import ScaDLES


def scadles(**settings: Any) -> ScaDLES:
    return ScaDLES(**{"field": "density", "values": (0.1,)} | settings)


def step(policy: ScaDLES, state: State, norm: float, raw: float = 1.0) -> tuple[int, State]:
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
    assert step(policy, policy.init(), norm, raw)[0] == rung


def test_changes_are_averaged_over_an_epoch() -> None:
    policy = scadles()
    state, rungs = policy.init(), []
    for norm in (0.5, 0.8, 1.0, 0.6):  # averages 0.5, 0.35, 0.233, 0.275
        rung, state = step(policy, state, norm)
        rungs.append(rung)
    assert rungs == [0, 0, 1, 1]
    assert state["last"]["average_change"] == pytest.approx(0.275)
    state = policy.observe(state, EpochReport(1, 0.0, 0.0, 0.0))
    assert step(policy, state, 0.6)[0] == 0


def test_its_decision_is_recorded() -> None:
    _, state = step(scadles(), scadles().init(), 0.8)
    last = state["last"]
    assert (last["branch"], last["rung"], last["candidate"]) == ("theta_min", 1, 0.1)
    assert (last["gain"], last["change"]) == pytest.approx((0.16, 0.2))
    assert json.loads(json.dumps(state)) == state
    _, state = step(scadles(), scadles().init(), 0.1)
    assert (state["last"]["branch"], state["last"]["gain"]) == ("dense", 1.0)
