"""The alpha-beta model against collectives that run message by message (simulated_links.py)."""

from __future__ import annotations

import numpy as np
import pytest
from simulated_links import (
    Algorithm,
    Links,
    concurrent_broadcast,
    direct_alltoall,
    dissemination_barrier,
    halving_doubling_allreduce,
    one_level,
    ring_allgather,
    ring_allreduce,
    ring_reduce_scatter,
    run,
    tree_allreduce,
    two_levels,
)

from dgc_repro.network import cost
from dgc_repro.network.cost import Costs
from dgc_repro.network.profile import COLLECTIVES, Network

NETWORK = Network("100mbit", "70us", efficiency=0.9)
ALPHA, RATE = 70e-6, 0.9 * 100e6 / 8
VALUES = 5040  # divisible by every number of workers here, and by every number less one
NUM_BYTES = 8 * VALUES

ALGORITHMS: dict[tuple[str, str], Algorithm] = {
    ("allreduce", "ring"): ring_allreduce,
    ("allreduce", "tree"): tree_allreduce,
    ("allreduce", "halving_doubling"): halving_doubling_allreduce,
    ("reduce_scatter", ""): ring_reduce_scatter,
    ("allgather", ""): ring_allgather,
    ("alltoall", ""): direct_alltoall,
    ("broadcast", ""): concurrent_broadcast,
    ("barrier", ""): dissemination_barrier,
}
EXPECTED = {
    "allreduce": lambda vectors, rank: sum(vectors),
    "reduce_scatter": lambda vectors, rank: np.split(sum(vectors), len(vectors))[rank],
    "allgather": lambda vectors, rank: np.concatenate(vectors),
    "broadcast": lambda vectors, rank: vectors[0],
}


def simulated(collective: str, algorithm: Algorithm, workers: int, links: Links) -> float:
    """Seconds, message by message; what the workers end with is checked."""
    vectors = [np.random.default_rng(rank).standard_normal(VALUES) for rank in range(workers)]
    seconds, results = run(algorithm, vectors, links)
    if collective in EXPECTED:
        for rank, result in enumerate(results):
            np.testing.assert_allclose(result, EXPECTED[collective](vectors, rank), atol=1e-12)
    return seconds


def modelled(network: Network, workers: int, collective: str, algorithm: str) -> float:
    chosen = {collective: algorithm} if algorithm else {}
    return Costs(network, workers, **chosen).seconds(collective, NUM_BYTES)


@pytest.mark.parametrize("workers", [2, 3, 4, 5, 7, 8])
@pytest.mark.parametrize(("collective", "name"), ALGORITHMS)
def test_a_collective_costs_what_its_messages_cost(
    collective: str, name: str, workers: int
) -> None:
    links = one_level(ALPHA, [RATE] * workers)
    seconds = simulated(collective, ALGORITHMS[collective, name], workers, links)
    model = modelled(NETWORK, workers, collective, name)
    if name == "tree" and workers & (
        workers - 1
    ):  # the last worker of a tree may lie on a shorter path
        assert seconds <= model * (1 + 1e-9)
        assert model <= seconds * (1 + 1 / cost.doublings(workers)) * (1 + 1e-9)
    else:
        assert model == pytest.approx(seconds, rel=1e-9)


@pytest.mark.parametrize("workers", [2, 4, 6])
@pytest.mark.parametrize(
    ("collective", "name"),
    [("allreduce", "ring"), ("allgather", ""), ("reduce_scatter", ""), ("alltoall", "")],
)
def test_of_unequal_links_the_slowest_counts(collective: str, name: str, workers: int) -> None:
    rates = [RATE] * workers
    rates[1] = RATE / 10
    slow = Network(
        rates=["10mbit" if rank == 1 else "100mbit" for rank in range(workers)],
        latency="70us",
        efficiency=0.9,
    )
    seconds = simulated(collective, ALGORITHMS[collective, name], workers, one_level(ALPHA, rates))
    assert modelled(slow, workers, collective, name) == pytest.approx(seconds, rel=1e-9)


@pytest.mark.parametrize("workers", [4, 8, 16])
@pytest.mark.parametrize(
    ("collective", "name"), [key for key in ALGORITHMS if key not in (("barrier", ""),)]
)
def test_the_workers_of_a_node_share_its_link(collective: str, name: str, workers: int) -> None:
    network = Network(
        "100mbit",
        "70us",
        workers_per_node=4,
        node_rate="10gbit",
        node_latency="5us",
        efficiency=0.9,
    )
    links = two_levels(4, (ALPHA, RATE), (5e-6, 10e9 / 8))
    seconds = simulated(collective, ALGORITHMS[collective, name], workers, links)
    model = modelled(network, workers, collective, name)
    # The model takes a level after the other and rounds in step; the messages overlap a little.
    assert seconds <= model * (1 + 1e-9)
    assert model <= seconds * 1.02


def test_the_papers_formulas_are_the_models() -> None:
    """GraVAC, section II: 2 alpha log N + 2 beta M log N; 2 (N-1) alpha + 2 beta M (N-1)/N."""
    size, beta = 1e6, 1 / RATE
    for workers in (2, 4, 8, 32):
        rounds, n = workers.bit_length() - 1, workers
        formulas = {
            "tree": 2 * rounds * (ALPHA + size * beta),
            "ring": 2 * (n - 1) * ALPHA + 2 * size * beta * (n - 1) / n,
            "halving_doubling": 2 * rounds * ALPHA + 2 * size * beta * (n - 1) / n,
        }
        for name, seconds in formulas.items():
            model = Costs(NETWORK, workers, allreduce=name).seconds("allreduce", size)
            assert model == pytest.approx(seconds, rel=1e-12)


def test_software_is_added_a_call_and_bounds_the_rate() -> None:
    software = {"allreduce": {"overhead": "1ms", "rate": "10mbit"}, "allgather": {"rate": "1gbit"}}
    costs = Costs(Network("100mbit", efficiency=1.0, software=software), 2)
    assert costs.seconds("allreduce", 1e6) == pytest.approx(1e-3 + 1e6 * 8 / 10e6)
    assert costs.seconds("allgather", 1e6) == pytest.approx(1e6 * 8 / 100e6)  # the link is slower
    assert costs.seconds("alltoall", 1e6) == pytest.approx(1e6 * 8 / 100e6)


def test_a_schedule_changes_the_rate_at_its_step() -> None:
    network = Network("100mbit", efficiency=1.0, schedule=[{"step": 10, "rate": "10mbit"}])
    before, after = (Costs(network, 2, step=step).seconds("allgather", 1e6) for step in (9, 10))
    assert after == pytest.approx(10 * before)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_one_worker_waits_for_nobody(collective: str) -> None:
    assert Costs(NETWORK, 1).seconds(collective, 1e6) == 0.0


def test_an_unknown_collective_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^collective: one of allreduce"):
        Costs(NETWORK, 2).seconds("gossip", 1)
