"""The network of a run, as costs of its collectives."""

from __future__ import annotations

import pytest

from dgc_repro.launch.networks import modelled
from dgc_repro.launch.overrides import composed


def test_a_run_may_stand_for_one_of_more_workers_and_longer_messages() -> None:
    """Four simulated workers as the 32 of two levels: rings cross a node's link once a round."""
    given = (
        "launch=simulated",
        "launch.workers=4",
        "network=gcp_v100_32",
        "network.efficiency=1.0",
    )
    config = composed([*given, "network.as_workers=32", "network.message_scale=50"])
    cost = modelled(config, lambda: 0)
    assert cost is not None
    size, beta, alpha = 50 * 1_000_000, 8 / 10e9, 50e-6
    assert cost("allreduce", 1_000_000) == pytest.approx(2 * 31 * (alpha + size / 32 * beta))
    assert cost("allgather", 1_000_000) == pytest.approx(31 * (alpha + size * beta))
