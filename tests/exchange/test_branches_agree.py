"""All ranks take one branch in every step, whatever each of them would have taken alone."""

from __future__ import annotations

import pytest
from processes import World as Ranks
from straddling import EPS, branches, branches_here, slow

from dgc_repro.exchange.world import World

STEPS = 8


@pytest.mark.parametrize("decide", ["now", "last"])
def test_gradients_that_straddle_eps_take_one_branch_on_all_ranks_and_in_the_simulated_world(
    decide: str, two_workers: Ranks
) -> None:
    first, second = two_workers(branches_here, decide, STEPS)
    straddles = [
        max(one, other) >= EPS > min(one, other)
        for one, other in zip(first["own"], second["own"], strict=True)
    ]
    assert sum(straddles) >= STEPS // 2, "alone, ranks would have gone two ways"
    simulated = branches(World(2), decide, STEPS)
    for real in (first, second):
        assert real["branches"] == simulated["branches"]
        assert real["bits"] == simulated["bits"]
    assert len(set(first["branches"])) > 1


def test_a_decision_from_the_last_step_is_hardly_another_where_gradients_change_slowly() -> None:
    """Two passes of a gradient that turns from spread out to concentrated and back."""
    steps = 160
    now, last = (
        branches(World(2), decide, steps, slow, window=40)["branches"] for decide in ("now", "last")
    )
    assert len(set(now)) == len(set(last)) == 3
    same = sum(one == other for one, other in zip(now, last, strict=True))
    assert same >= 0.8 * steps
