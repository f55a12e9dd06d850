"""GraVAC that decides from the last step's gains, and over settings that are no factors."""

from __future__ import annotations

import json
from typing import Any

import torch

from dgc_repro.policy.gravac import GraVAC
from dgc_repro.policy.interface import ENERGIES, State, StepReport, label, measures

Gains = tuple[float, float]


def gravac(**settings: Any) -> GraVAC:
    given = {"window": 2, "smoothing": 1.0, "omega": 0.0, "decide": "last"}
    return GraVAC(**given | settings)


def energies_of(gains: Gains) -> torch.Tensor:
    return torch.tensor([1.0, *gains], dtype=torch.float64)


def sent(policy: GraVAC, gains: list[Gains], state: State | None = None) -> list[int]:
    """The rung of each step, of which these shares of the gradient survive theta_min and the candidate."""
    state, rungs = state or policy.init(), []
    for step, of_step in enumerate(gains):
        plan = policy.plan(state, step)
        decided, state = policy.choose(state, energies_of(of_step))
        rungs.append(plan.rung if plan.rung is not None else decided)
        state = policy.after_step(state, StepReport(step, 1.0 + step, 64.0))
    return rungs


def test_its_plan_is_known_before_the_step_and_asks_for_energies_after_it() -> None:
    policy = gravac()
    assert not policy.chooses
    assert policy.watches == ENERGIES
    assert measures(policy)
    plan = policy.plan(policy.init(), 0)
    assert (plan.rung, plan.measures, plan.candidates) == (0, True, (1, 1))
    assert label(policy, plan.rung) == "dense"
    now = gravac(decide="now")
    assert (now.chooses, now.watches, measures(now)) == (True, None, True)
    assert (now.plan(now.init(), 0).rung, now.plan(now.init(), 0).measures) == (None, False)


def test_each_step_is_sent_as_the_one_before_decides() -> None:
    """The same gains: the branches are those of a decision at once, a step later, after a dense first."""
    gains = [(0.9, 0.9), (0.9, 0.8), (0.9, 0.6), (0.5, 0.5), (0.9, 0.75), (0.9, 0.6), (0.8, 0.7)]
    at_once, later = sent(gravac(decide="now", window=100), gains), sent(gravac(window=100), gains)
    assert later == [0, *at_once[:-1]]
    assert set(later) == {0, 1}


def test_the_record_has_the_branch_that_was_sent_and_the_gains_that_were_seen() -> None:
    policy = gravac(window=100)
    _, state = policy.choose(policy.init(), energies_of((0.9, 0.9)))
    assert (state["last"]["branch"], state["last"]["gain"]) == ("dense", 1.0)
    assert state["last"]["gain_theta_min"] == 0.9
    rung, state = policy.choose(state, energies_of((0.4, 0.4)))
    assert (state["last"]["branch"], state["last"]["gain"]) == ("theta_min", 0.4)
    assert rung == policy.plan(state, 2).rung == 0


def test_a_window_ends_between_decision_and_step_without_harm() -> None:
    """theta_min and candidate move on; what is sent is one of the two that are watched."""
    policy = gravac(window=1, eps=0.5)
    assert sent(policy, [(0.9, 0.9)] * 6) == [0, 1, 2, 3, 4, 5]  # each candidate becomes theta_min
    assert sent(policy, [(0.9, 0.6)] * 6) == [0, 1, 1, 1, 1, 5]  # none does; the last one stays


def test_any_setting_can_be_its_ladder() -> None:
    policy = GraVAC(field="bits", ladder=[16, 8, 4], window=1, smoothing=1.0, omega=0.01)
    assert tuple(policy.values) == (16, 8, 4)
    assert label(policy, 3) == "bits=4"
    state = {**policy.init(), "candidate": 1, "throughputs": {"16": 57.6}}
    rung, state = policy.choose(state, energies_of((0.9, 0.9)))
    assert rung == 2
    state = policy.after_step(state, StepReport(0, 1.0, 64.0))  # 57.6 of bits=8 too: 16 is ideal
    assert state["trace"][-1]["reason"] == (
        "theta_min is bits=8: its gain is as high; bits=16 is as fast as any"
    )
    assert (state["theta_min"], state["candidate"]) == (1, 1)  # 16 lies below the new theta_min
    assert json.loads(state["trace"][-1]["throughputs"]) == {"16": 57.6, "8": 57.6}
