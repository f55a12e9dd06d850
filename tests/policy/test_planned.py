"""Policies that plan without looking: fixed, scheduled, warm-up; and what a plan says."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dgc_repro import EpochReport, Fixed, Scheduled, Warmup
from dgc_repro.policy.interface import Plan


def epochs(policy: Any, num_epochs: int) -> tuple[list[int | None], list[tuple[Any, ...]]]:
    """The rung of each epoch of four steps, and the trace, through checkpoints."""
    state, rungs = policy.init(), []
    for epoch in range(1, num_epochs + 1):
        (rung,) = {policy.plan(state, step).rung for step in (4 * epoch - 4, 4 * epoch - 1)}
        rungs.append(rung)
        state = policy.observe(state, EpochReport(epoch, 1.0, 1.0, 50.0))
        state = json.loads(json.dumps(state))  # as a checkpoint keeps it
    told = [(e["epoch"], e["rung"], e["next_rung"], e["reason"]) for e in state.get("trace", [])]
    return rungs, told


def test_fixed_is_the_strongest_unless_a_rung_is_given_and_nothing_moves_it() -> None:
    assert Fixed().plan({}, 0) == Plan(0)
    for settings, rung in (({}, 2), ({"rung": 0}, 0), ({"rung": 1}, 1)):
        policy = Fixed("bits", (8, 4), **settings)
        assert policy.plan({}, 10**6) == Plan(rung)
        assert epochs(policy, 3) == ([rung] * 3, [])


def test_a_schedule_by_epoch_and_by_step() -> None:
    policy = Scheduled("density", (0.1, 0.01), rungs=[(0, 1), (3, 2), (4, 0)])
    rungs, told = epochs(policy, 6)
    assert rungs == [1, 1, 1, 2, 0, 0]
    assert [reason for *_, reason in told] == ["", "", "schedule", "schedule", "", ""]
    by_step = Scheduled("density", (0.1, 0.01), by="step", rungs=[[0, 0], [10, 1], [12, 2]])
    planned = [by_step.plan(by_step.init(), step).rung for step in (0, 9, 10, 11, 12, 500)]
    assert planned == [0, 0, 1, 1, 2, 2]


def test_the_papers_sparsities_follow_one_another_and_the_last_stays() -> None:
    policy = Warmup("density", (0.25, 0.0625, 0.015625, 0.004, 0.001))
    assert policy.chooses is False
    rungs, _ = epochs(policy, 7)
    assert rungs == [1, 2, 3, 4, 5, 5, 5]
    sparsities = [1 - policy.values[rung - 1] for rung in rungs if rung]
    assert sparsities == pytest.approx([0.75, 0.9375, 0.984375, 0.996, 0.999, 0.999, 0.999])


def test_a_setting_may_stay_for_several_epochs_and_the_trace_tells_when_it_changes() -> None:
    rungs, told = epochs(Warmup("density", [0.5, 0.1, 0.01], epochs_each=2), 6)
    assert rungs == [1, 1, 2, 2, 3, 3]
    assert told[:3] == [(1, 1, 1, ""), (2, 1, 2, "warm-up"), (3, 2, 2, "")]


def test_a_plan_may_except_tensors() -> None:
    plan = Plan(2, {"fc.weight": 0})
    assert (plan.for_tensor("fc.weight"), plan.for_tensor("conv.weight")) == (0, 2)
