"""Rungs that are written down."""

from __future__ import annotations

import re
from typing import Any

import pytest

from dgc_repro.policy.interface import EpochReport
from dgc_repro.policy.scheduled import Scheduled


def scheduled(**settings: Any) -> Scheduled:
    return Scheduled(
        **{"field": "density", "values": (0.1, 0.01), "rungs": [[0, 1], [3, 2]]} | settings
    )


def test_by_epoch() -> None:
    policy, rungs = scheduled(rungs=[(0, 1), (3, 2), (4, 0)]), []
    state = policy.init()
    for epoch in range(1, 7):
        rungs.append(policy.plan(state, 100 * epoch).rung)
        state = policy.observe(state, EpochReport(epoch, 1.0, 1.0, 50.0))
    assert rungs == [1, 1, 1, 2, 0, 0]
    assert [entry["reason"] for entry in state["trace"]] == ["", "", "schedule", "schedule", "", ""]


def test_by_step() -> None:
    policy = scheduled(by="step", rungs=[[0, 0], [10, 1], [12, 2]])
    state = policy.init()
    assert [policy.plan(state, step).rung for step in (0, 9, 10, 11, 12, 500)] == [0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"rungs": [[1, 1]]},
            "rungs: pairs of a rung's first step (or epoch) and the rung, the first from 0",
        ),
        (
            {"rungs": [[0, 1], [0, 2]]},
            "rungs: pairs of a rung's first step (or epoch) and the rung, the first from 0",
        ),
        (
            {"rungs": [1]},
            "rungs: pairs of a rung's first step (or epoch) and the rung, the first from 0",
        ),
        (
            {"rungs": {0: 1}},
            "rungs: pairs of a rung's first step (or epoch) and the rung, the first from 0",
        ),
        ({"rungs": [[0, 3]]}, "rungs: 0 (dense) to 2"),
        (
            {"rungs": [[0, -1]]},
            "rungs: pairs of a rung's first step (or epoch) and the rung, the first from 0",
        ),
        (
            {"rungs": [[0, 1], ["a", 1]]},
            "rungs: pairs of a rung's first step (or epoch) and the rung, the first from 0",
        ),
        ({"by": "day"}, "by: one of step, epoch, got 'day'"),
        ({"values": ()}, "values: a list of one or more settings"),
    ],
)
def test_a_wrong_setting_is_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        scheduled(**settings)
