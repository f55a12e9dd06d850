"""Studies on networks: costs against a message-by-message simulation, sums and buckets by hand."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pytest

from dgc_repro.network.profile import Network
from dgc_repro.study.allreduce import COST, CROSSOVER, Allreduce, fills_nodes
from dgc_repro.study.given import Row, Tensors, Times
from dgc_repro.study.saturation import Saturation
from dgc_repro.study.scaling import Scaling, bucketed

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "network"))

from simulated_links import (
    Algorithm,
    halving_doubling_allreduce,
    one_level,
    ring_allreduce,
    run,
)

GIGABIT = Network("1gbit", "50us", efficiency=1.0)
NODES = Network("10gbit", "50us", workers_per_node=4, node_rate="100gbit", node_latency="5us")
BETA = 8e-9  # seconds a byte


def simulated(algorithm: Algorithm, size: float, workers: int, alpha: float) -> float:
    """Seconds of an allreduce of so many bytes, message by message (tests/network/simulated_links.py).
    What travels is a multiple of all the parts that it is cut into, and its link as much slower."""
    values = 64 * workers
    vectors = [np.zeros(values) for _ in range(workers)]
    rate = 8 * values / (size * BETA)
    return run(algorithm, vectors, one_level(alpha, [rate] * workers))[0]


def rows_of(study: Allreduce, what: str) -> list[Row]:
    return [row for row in study.run(0) if row["what"] == what]


def test_seconds_are_those_of_simulated_messages() -> None:
    workers = 8
    study = Allreduce({"here": GIGABIT}, [workers], [1000, 10_000_000])
    found = {(row["algorithm"], row["bytes"]): row["seconds"] for row in rows_of(study, COST)}
    for size in (1000, 10_000_000):
        ring = simulated(ring_allreduce, size, workers, 50e-6)
        halving = simulated(halving_doubling_allreduce, size, workers, 50e-6)
        assert found["ring", size] == pytest.approx(ring)
        assert found["halving_doubling", size] == pytest.approx(halving)


def test_at_the_crossover_ring_and_tree_cost_the_same() -> None:
    workers = 24
    study = Allreduce({"here": GIGABIT}, [workers], [1])
    (where,) = (r["bytes"] for r in rows_of(study, CROSSOVER) if r["algorithm"] == "tree")
    rounds = math.ceil(math.log2(workers))
    ring = 2 * (workers - 1) * (50e-6 + where / workers * BETA)
    assert ring == pytest.approx(2 * rounds * (50e-6 + where * BETA), rel=1e-6)
    smaller = 2 * (workers - 1) * (50e-6 + where / 2 / workers * BETA)
    assert smaller > 2 * rounds * (50e-6 + where / 2 * BETA)


def test_a_ring_never_beats_halving_doubling_of_a_power_of_two_and_always_a_pair() -> None:
    study = Allreduce({"here": GIGABIT}, [2, 16, 24], [1])
    found = {(row["workers"], row["algorithm"]): row["bytes"] for row in rows_of(study, CROSSOVER)}
    assert found[2, "tree"] == found[2, "halving_doubling"] == 0
    assert math.isinf(found[16, "halving_doubling"])
    assert 1000 < found[24, "halving_doubling"] < 1e7


def test_workers_that_do_not_fill_nodes_are_left_out() -> None:
    study = Allreduce({"here": NODES}, [2, 4, 6, 8, 12], [1])
    assert sorted({row["workers"] for row in study.run(0)}) == [2, 4, 8, 12]
    assert fills_nodes(GIGABIT, 7)


SCALING = Scaling(
    {"here": GIGABIT}, [1, 2, 8], compute_ms=10.0, bucket_mb=1.0, latencies=["50us", "200us"]
)


def test_efficiency_is_compute_over_compute_and_an_allreduce_per_step_or_tensor() -> None:
    sizes = (1000, 200_000, 50)
    rows = SCALING.run(0, Tensors("m", sizes))
    found = {(r["series"], r["workers"], r["latency_us"]): r for r in rows}
    for series, messages in (("per step", (sum(sizes),)), ("per tensor", sizes)):
        for count in (1, 2, 8):
            row = found[series, count, 50]
            sync = sum(
                simulated(ring_allreduce, 4 * n, count, 50e-6) for n in messages if count > 1
            )
            assert row["messages"] == len(messages)
            assert row["sync_ms"] == pytest.approx(1e3 * sync)
            assert row["efficiency"] == pytest.approx(0.01 / (0.01 + sync))


def test_the_latency_counts_once_a_message() -> None:
    rows = SCALING.run(0, Tensors("m", (1000,) * 40))
    at = {(r["series"], r["latency_us"]): r for r in rows if r["workers"] == 8}
    for series, messages in (("per tensor", 40), ("per step", 1)):
        apart = at[series, 200]["sync_ms"] - at[series, 50]["sync_ms"]
        assert apart == pytest.approx(messages * 14 * 0.150)
    assert at["buckets", 50]["messages"] == 1


def test_buckets_are_filled_from_the_last_tensor_on() -> None:
    assert bucketed([5, 1, 2, 3], limit=4) == [3 + 2, 1 + 5]
    assert bucketed([4, 4], limit=4) == [4.0, 4.0]
    assert bucketed([1, 1], limit=100) == [2.0]


SATURATION = Saturation(
    *({"here": GIGABIT}, 8, [10, 100, 1000]),
    compute_ms=10.0, stated_ms=5.0, latencies=["0us"], steps=1, repeats=3,
)  # fmt: skip
TIMES = Times(
    Tensors("m", (100_000, 7)),
    {10.0: [9.0, 1.0, 4.0], 100.0: [3.0, 3.0, 3.0], 1000.0: [2.0, 2.0, 5.0]},
)


def test_a_step_is_compute_compress_and_one_allgather() -> None:
    rows = {(r["compress"], r["latency_us"], r["factor"]): r for r in SATURATION.run(0, TIMES)}
    assert len(rows) == 3 * 3 + 3
    for factor in (10, 100, 1000):
        # 7 rounds; of a tensor of 7 values one entry is sent at every factor
        sync = 7 * (50e-6 + 8 * (100_000 // factor + 1) * BETA)
        measured = {10: 4, 100: 3, 1000: 2}[factor]
        for series, compress in (("none", 0), ("stated", 5), ("measured", measured)):
            row = rows[series, 50, factor]
            assert row["sync_ms"] == pytest.approx(1e3 * sync)
            assert row["compress_ms"] == compress
            assert row["step_ms"] == pytest.approx(10 + compress + 1e3 * sync)
            first = rows[series, 50, 10]["step_ms"]
            assert row["throughput"] == pytest.approx(first / row["step_ms"])
    assert rows["measured", 50, 10]["compress_low"] == 2.5
    assert rows["stated", 0, 1000]["communication"] == pytest.approx(10_001 / 101)
