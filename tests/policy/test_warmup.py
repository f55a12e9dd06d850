"""Sparsity warm-up: which setting in which epoch, and what it refuses."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from dgc_repro.policy.interface import EpochReport
from dgc_repro.policy.warmup import Warmup

DGC = (0.25, 0.0625, 0.015625, 0.004, 0.001)


def densities(policy: Warmup, num_epochs: int) -> list[float]:
    """The setting of each epoch."""
    state, used = policy.init(), []
    for epoch in range(1, num_epochs + 1):
        rungs = {policy.plan(state, step).rung for step in (4 * epoch - 4, 4 * epoch - 1)}
        (rung,) = rungs  # the same in all steps of an epoch
        assert rung is not None
        used.append(policy.values[rung - 1])
        state = policy.observe(state, EpochReport(epoch, 1.0, 1.0, 50.0))
        state = json.loads(json.dumps(state))  # as a checkpoint keeps it
    return used


def test_the_papers_sparsities_follow_one_another_and_the_last_stays() -> None:
    sparsities = [1 - density for density in densities(Warmup("density", DGC), 7)]
    assert sparsities == pytest.approx([0.75, 0.9375, 0.984375, 0.996, 0.999, 0.999, 0.999])


def test_a_setting_may_stay_for_several_epochs() -> None:
    used = densities(Warmup("density", [0.5, 0.1, 0.01], epochs_each=2), 7)
    assert used == [0.5, 0.5, 0.1, 0.1, 0.01, 0.01, 0.01]


def test_it_plans_before_the_step_and_never_dense() -> None:
    policy = Warmup("density", DGC)
    assert policy.chooses is False
    assert policy.plan(policy.init(), 0).rung == 1


def test_the_trace_tells_when_the_setting_changed() -> None:
    policy = Warmup("density", [0.5, 0.1])
    state = policy.init()
    for epoch in (1, 2):
        state = policy.observe(state, EpochReport(epoch, 1.0, 1.0, 50.0))
    told = [(e["epoch"], e["rung"], e["next_rung"], e["reason"]) for e in state["trace"]]
    assert told == [(1, 1, 2, "warm-up"), (2, 2, 2, "")]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"values": []},
            "values: a list of one or more settings (numbers or words), weakest first",
        ),
        ({"field": None}, "field: a word, got None"),
        ({"values": [0.1, 0.1]}, "values: a list of one or more settings"),
        ({"epochs_each": 0}, "epochs_each: a whole number from 1, got 0"),
        ({"epochs_each": 1.5}, "epochs_each: a whole number from 1, got 1.5"),
        ({"epochs_each": True}, "epochs_each: a whole number from 1, got True"),
    ],
)
def test_a_wrong_setting_is_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        Warmup(**({"field": "density", "values": DGC} | settings))
