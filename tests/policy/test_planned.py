"""Policies that plan by the epoch: fixed, scheduled, warm-up, Accordion's critical regimes by layer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dgc_repro import Fixed, Scheduled, Warmup
from dgc_repro.policy.accordion import Accordion
from dgc_repro.policy.interface import EpochReport, Plan, State


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


# Accordion.


def accordion(**settings: Any) -> Accordion:
    return Accordion(**{"field": "density", "values": (0.1, 0.01)} | settings)


def epoch(
    policy: Accordion, state: State, number: int, norms: dict[str, float], next_lr: float = 1.0
) -> State:
    report = EpochReport(number, 1.0, 1.0, 50.0, (1.0, next_lr), norms)
    return policy.observe(state, report)


def rungs(policy: Accordion, state: State, *names: str) -> list[int | None]:
    return [policy.plan(state, 0).for_tensor(name) for name in names]


def test_it_begins_with_low_compression() -> None:
    policy = accordion()
    state = policy.init()
    assert rungs(policy, state, "a", "b") == [1, 1]
    state = epoch(policy, state, 1, {"a": 4.0, "b": 4.0})
    assert rungs(policy, state, "a", "b") == [1, 1]


def test_each_layer_is_judged_by_itself() -> None:
    policy = accordion()
    state = epoch(policy, policy.init(), 1, {"a": 4.0, "b": 4.0, "c": 4.0})
    state = epoch(policy, state, 2, {"a": 2.0, "b": 2.1, "c": 6.0})
    assert rungs(policy, state, "a", "b", "c") == [1, 2, 1]  # 50 %, 47.5 %, 50 % (upwards)
    state = epoch(policy, state, 3, {"a": 2.0, "b": 0.5, "c": 6.0})
    assert rungs(policy, state, "a", "b", "c") == [2, 1, 2]


def test_a_learning_rate_about_to_decay_is_critical() -> None:
    policy = accordion()
    state = epoch(policy, policy.init(), 1, {"a": 4.0})
    state = epoch(policy, state, 2, {"a": 4.0})
    assert rungs(policy, state, "a") == [2]
    state = epoch(policy, state, 3, {"a": 4.0}, next_lr=0.1)
    assert rungs(policy, state, "a") == [1]
    assert state["trace"][-1]["reason"] == "the learning rate decays"
    assert rungs(policy, epoch(policy, state, 4, {"a": 4.0}, next_lr=0.97), "a") == [2]  # cosine
    edge = accordion(decay=0.5)
    for next_lr, rung in ((0.5, 2), (0.499, 1)):  # a decay is below, not at, this share
        state = epoch(edge, epoch(edge, edge.init(), 1, {"a": 4.0}), 2, {"a": 4.0}, next_lr=next_lr)
        assert rungs(edge, state, "a") == [rung]
    blind = accordion(decay=None)
    state = epoch(blind, epoch(blind, blind.init(), 1, {"a": 4.0}), 2, {"a": 4.0}, next_lr=0.1)
    assert rungs(blind, state, "a") == [2]


def test_it_compares_an_epoch_with_the_one_an_interval_before() -> None:
    """As the published code does with its switch_freq: after epochs 1, 1 + interval, and so on."""
    policy = accordion(interval=2)
    state, judged = policy.init(), []
    for number, norm in enumerate((4.0, 99.0, 4.0, 99.0, 1.0, 99.0), 1):
        state = epoch(policy, state, number, {"a": norm})
        judged += rungs(policy, state, "a")
    assert judged == [1, 1, 2, 2, 1, 1]  # 4 against 4, 1 against 4: epochs between are not compared
    assert [entry["epoch"] for entry in state["trace"]] == [1, 3, 5]
