"""Fixed: one rung for the whole run, and what it refuses."""

from __future__ import annotations

import re
from typing import Any

import pytest

from dgc_repro.policy.fixed import Fixed
from dgc_repro.policy.interface import EpochReport, Plan, label


def test_the_rung_is_the_strongest_unless_it_is_given() -> None:
    assert Fixed().plan({}, 0) == Plan(0)
    assert Fixed("bits", (8, 4)).plan({}, 3) == Plan(2)
    assert Fixed("bits", (8, 4), rung=0).plan({}, 3) == Plan(0)
    assert Fixed("bits", (8, 4), rung=1).plan({}, 3) == Plan(1)


def test_nothing_it_sees_moves_it() -> None:
    policy = Fixed("bits", (8, 4))
    state = policy.init()
    assert policy.observe(state, EpochReport(1, 0.1, 0.1, 99.0)) == state == {}
    assert policy.plan(state, 10**6) == policy.plan(state, 0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"field": "bits"}, "field: names the compressor's setting that values are for"),
        ({"values": (8, 4)}, "field: names the compressor's setting that values are for"),
        (
            {"field": "bits", "values": (8, 8)},
            "values: a list of settings (numbers or words), weakest first, each once, got (8, 8)",
        ),
        ({"field": "bits", "values": (8, 4), "rung": 3}, "rung: 0 (dense) to 2"),
        ({"field": "bits", "values": (8, 4), "rung": -1}, "rung: 0 (dense) to 2"),
        ({"rung": 1}, "rung: 0 (dense) to 0"),
    ],
)
def test_a_wrong_setting_is_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        Fixed(**settings)


def test_a_rung_is_named_in_words() -> None:
    policy = Fixed("bits", (8, 4))
    assert [label(policy, rung) for rung in (0, 1, 2, None)] == [
        "dense",
        "bits=8",
        "bits=4",
        "chosen by gradient",
    ]
    assert label(Fixed(), 0) == "fixed"


def test_a_plan_may_except_tensors() -> None:
    plan = Plan(2, {"fc.weight": 0})
    assert plan.for_tensor("fc.weight") == 0
    assert plan.for_tensor("conv.weight") == 2
