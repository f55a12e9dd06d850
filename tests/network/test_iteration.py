"""A step's time by hand: nothing overlaps, or only the link works beside the processor."""

from __future__ import annotations

import math

import pytest

from dgc_repro.network.cost import Costs
from dgc_repro.network.iteration import (
    CONSTANT,
    LINEAR,
    OF_OWNERS,
    TO_OWNERS,
    Growth,
    Part,
    Step,
    break_even_rate,
)
from dgc_repro.network.profile import Network

# Two workers, 8 Mbit/s: an allgather of m bytes takes m microseconds.
COSTS = Costs(Network("8mbit", efficiency=1.0), 2)


def part(ready: float, compress: float, decompress: float, size: int, later: int = 0) -> Part:
    asked = {"allgather": (1.0, float(later))} if later else {}
    return Part(ready, compress, decompress, {"allgather": (1.0, float(size))}, asked)


def test_without_overlap_a_step_is_the_sum_of_its_parts() -> None:
    step = Step(5.0, [part(2.0, 0.5, 0.25, 10**6), part(4.0, 0.5, 0.25, 2 * 10**6, 10**6)], {})
    assert step.communicate(COSTS) == pytest.approx(4.0)
    assert step.after_backward(COSTS) == pytest.approx(5.0 + 1.0 + 4.0 + 0.5)


def test_the_link_works_while_backward_goes_on() -> None:
    # Ready at 2, compressed at 2.5, on the link until 3.5; the second ready at 4.5 (the processor
    # has compressed in between), out at 5, landed at 6; decompressed 6.25; the optimizer takes 1.
    step = Step(5.0, [part(2.0, 0.5, 0.25, 10**6), part(4.0, 0.5, 0.25, 10**6)], {})
    # The first is decompressed from 5 to 5.25.
    assert step.per_bucket(COSTS) == pytest.approx(6.25 + 1.0)


def test_a_busy_link_makes_parts_wait() -> None:
    step = Step(5.0, [part(2.0, 0.0, 0.0, 5 * 10**6), part(5.0, 0.0, 0.0, 10**6)], {})
    assert step.per_bucket(COSTS) == pytest.approx(2 + 5 + 1)


def test_what_is_asked_afterwards_is_not_hidden() -> None:
    step = Step(5.0, [part(2.0, 0.0, 0.5, 10**6, later=10**6), part(5.0, 0.0, 0.5, 10**6)], {})
    # first parts landed at 3 and 6; later of the first from 5 to 6, decompressed at 6.5, then 7.
    assert step.per_bucket(COSTS) == pytest.approx(7.0)


def test_signals_and_calls_cost_latency() -> None:
    costs = Costs(Network("8mbit", "1ms", efficiency=1.0), 2)
    step = Step(
        1.0, [Part(1.0, 0.0, 0.0, {"allgather": (3.0, 30.0)}, {})], {"allreduce": (1.0, 8.0)}
    )
    assert step.communicate(costs) == pytest.approx(3e-3 + 30e-6 + 2e-3 + 8e-6)


@pytest.mark.parametrize(
    ("basis", "law"),
    [
        (CONSTANT, lambda n: 7.0),
        (LINEAR, lambda n: 3 + 2 * n),
        (TO_OWNERS, lambda n: (1 - 1 / n) * (100 + 2 * n)),
        (OF_OWNERS, lambda n: 100 / n + 2),
    ],
)
def test_what_was_measured_for_few_workers_grows_as_its_kind_does(basis: str, law: object) -> None:
    assert callable(law)
    growth = Growth({n: law(n) for n in (2, 4, 8)}, basis)
    assert growth.at(4) == law(4)
    assert growth.at(256) == pytest.approx(law(256))


# ResNet18 of width 16, top-k 1 %: bytes of rank 0 (`AllToAll`) and of the longest average, on real gradients.
SENT = {2: 22416.0, 4: 32728.0, 8: 41208.0, 16: 48784.0, 32: 61848.0}
AVERAGES = {2: 21984.0, 4: 11736.0, 8: 6888.0, 16: 4640.0, 32: 3152.0}


@pytest.mark.parametrize(("basis", "truth"), [(TO_OWNERS, SENT), (OF_OWNERS, AVERAGES)])
@pytest.mark.parametrize("workers", [16, 32])
def test_shards_of_a_sparsifier_are_within_12_percent(
    basis: str, truth: dict[int, float], workers: int
) -> None:
    measured = {n: truth[n] for n in (2, 4, 8)}
    assert Growth(measured, basis).at(workers) == pytest.approx(truth[workers], rel=0.12)
    assert Growth(measured, basis).at(256) > 0


def test_noise_that_falls_with_the_workers_is_no_growth() -> None:
    assert 1.0 < Growth({2: 3.0, 8: 1.0}, LINEAR).at(64) < 3.0
    assert Growth({2: 1.0, 8: 3.0}, LINEAR).at(64) > 20


def test_one_number_of_workers_tells_no_slope() -> None:
    assert Growth({2: 50.0}, TO_OWNERS).at(8) == pytest.approx(87.5)
    assert Growth({2: 50.0}, OF_OWNERS).at(8) == pytest.approx(12.5)
    assert Growth({2: 0.0}, LINEAR).at(8) == 0.0


def test_break_even_is_where_the_gain_ends() -> None:
    assert break_even_rate(lambda rate: 1e9 - rate) == pytest.approx(1e9, rel=2e-3)
    assert break_even_rate(lambda rate: 1.0) == math.inf
    assert break_even_rate(lambda rate: -1.0) is None
