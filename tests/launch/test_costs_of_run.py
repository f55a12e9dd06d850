"""The network of a run, as costs of its links."""

from __future__ import annotations

import pytest

from dgc_repro.launch.networks import modelled
from dgc_repro.launch.overrides import composed

FOUR = ("launch.workers=4", "launch.workers_per_node=2", "network.efficiency=1.0")


def test_unequal_links_of_a_two_level_run() -> None:
    config = composed([*FOUR, "network.rates=[1gbit,100mbit,500mbit,1gbit]"])
    links = modelled(config, lambda: 0)
    found = [link("allgather", 1_000_000) for link in links if link is not None]
    assert found == pytest.approx([3 * 8e6 / 1e8, 8e6 / 5e8, 8e6 / 1e8])


def test_a_run_may_stand_for_one_of_more_workers_and_longer_messages() -> None:
    """Four simulated workers as the 32 of two levels: rings cross a node's link once a round."""
    given = (
        "launch=simulated",
        "launch.workers=4",
        "network=gcp_v100_32",
        "network.efficiency=1.0",
    )
    config = composed([*given, "network.as_workers=32", "network.message_scale=50"])
    links = modelled(config, lambda: 0)
    size, beta, alpha = 50 * 1_000_000, 8 / 10e9, 50e-6
    for link in links:
        assert link is not None
        assert link("allreduce", 1_000_000) == pytest.approx(2 * 31 * (alpha + size / 32 * beta))
        assert link("allgather", 1_000_000) == pytest.approx(31 * (alpha + size * beta))


def test_two_level_runs_stand_for_as_many_nodes() -> None:
    given = ("launch=simulated", "launch.workers=8", "launch.workers_per_node=4")
    config = composed(
        [*given, "network=gcp_v100_32", "network.efficiency=1.0", "network.as_workers=32"]
    )
    _, between, inside = modelled(config, lambda: 0)
    assert between is not None
    assert inside is not None
    assert between("allgather", 1000) == pytest.approx(7 * (50e-6 + 1000 * 8 / 10e9))
    assert inside("allgather", 1000) == pytest.approx(3 * (5e-6 + 1000 * 8 / 1200e9))
