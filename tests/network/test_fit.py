"""The fit gives back the network that made its points."""

from __future__ import annotations

import numpy as np
import pytest

from dgc_repro.network.cost import Costs
from dgc_repro.network.fit import Point, fit, line
from dgc_repro.network.profile import Network

SIZES = [64 * 4**i for i in range(11)]
MEASURED = ("allreduce", "allgather", "alltoall", "broadcast")


def points_of(network: Network, workers: int, noise: float = 0.0) -> list[Point]:
    costs = Costs(network, workers)
    draw = np.random.default_rng(0)
    return [
        Point(c, size, costs.seconds(c, size) * float(np.exp(noise * draw.standard_normal())))
        for c in MEASURED
        for size in SIZES
    ]


@pytest.mark.parametrize("workers", [2, 4, 8])
def test_alpha_and_beta_come_back(workers: int) -> None:
    made = Network("1gbit", "80us")
    found = fit(points_of(made, workers), workers, None)
    assert found.worst_error < 1e-3
    assert found.network.outer_at(0, 2).latency == pytest.approx(80e-6, rel=1e-3)
    assert found.network.outer_at(0, 2).rate == pytest.approx(1e9, rel=1e-3)
    assert found.network.software_of("allgather").overhead == pytest.approx(0, abs=1e-7)


def test_software_comes_back_beside_the_link() -> None:
    software = {c: {"overhead": "200us"} for c in MEASURED}
    software["allreduce"]["rate"] = "3gbit"
    made = Network("10gbit", "50us", software=software)
    found = fit(points_of(made, 4), 4, None)
    assert found.worst_error < 1e-2
    costs, again = Costs(made, 4), Costs(found.network, 4)
    for size in (1, 10**5, 10**8):
        for collective in MEASURED:
            expected = costs.seconds(collective, size)
            assert again.seconds(collective, size) == pytest.approx(expected, rel=1e-2)
    assert found.network.software_of("allreduce").rate == pytest.approx(3e9, rel=1e-2)


def test_noise_of_ten_percent_moves_the_rate_by_less() -> None:
    found = fit(points_of(Network("1gbit", "80us"), 4, noise=0.1), 4, None)
    assert found.network.outer_at(0, 2).rate == pytest.approx(1e9, rel=0.1)
    assert 0.02 < found.median_error < 0.15
    assert set(found.frame["collective"]) == set(MEASURED)


def test_links_of_a_known_rate_keep_it() -> None:
    found = fit(points_of(Network("1gbit", "80us"), 2), 2, 1e9)
    assert found.network.rate == "1gbit"
    # What does not reach the links' rate is software.
    slow = fit(points_of(Network("400mbit", "80us"), 2), 2, 1e9)
    assert slow.network.outer_at(0, 2).rate == pytest.approx(4e8, rel=1e-3)


def test_another_rate_can_be_asked_of_the_same_software() -> None:
    found = fit(points_of(Network("20gbit", "80us"), 2), 2, None).network
    slower = Network("100mbit", found.latency, efficiency=found.efficiency, software=found.software)
    expected = Costs(Network("100mbit", "80us"), 2).seconds("allreduce", 10**7)
    assert Costs(slower, 2).seconds("allreduce", 10**7) == pytest.approx(expected, rel=1e-3)


def test_collectives_without_an_intercept_are_fitted_too() -> None:
    sizes = [1_000_000 * 4**i for i in range(4)]
    extra = {"allreduce": -4e-4, "allgather": 0.0, "alltoall": 3e-4, "broadcast": -2e-4}
    costs = Costs(Network("1gbit"), 4)
    points = [Point(c, s, costs.seconds(c, s) + extra[c]) for c in MEASURED for s in sizes]
    assert line(sizes, [p.seconds for p in points if p.collective == "allreduce"])[0] == 0.0
    found = fit(points, 4, None)
    assert found.network.outer_at(0, 2).rate == pytest.approx(1e9, rel=0.05)
    assert found.worst_error < 0.1


def test_one_collective_that_is_slow_to_begin_spoils_no_other() -> None:
    sizes = [1000, 64_000, 1_000_000, 4_000_000]
    costs = Costs(Network("100mbit", "300us"), 2)
    late = {"allreduce": 7e-3}
    points = [Point(c, s, costs.seconds(c, s) + late.get(c, 0.0)) for c in MEASURED for s in sizes]
    found = fit(points, 2, None)
    assert found.network.outer_at(0, 2).latency == pytest.approx(300e-6, rel=0.05)
    assert found.worst_error < 0.02


def test_one_size_is_no_line_and_a_slope_of_zero_no_rate() -> None:
    with pytest.raises(ValueError, match=r"^sizes: two of each collective"):
        fit([Point("allreduce", 64, 1e-3)], 2, None)
    sizes = (64, 256, 1024)
    flat = [Point(c, s, 1e-3) for c in MEASURED for s in sizes]
    with pytest.raises(ValueError, match=r"^sizes: no collective takes longer for more bytes"):
        fit(flat, 4, None)
    assert fit(flat, 4, 1e9).network.rate == "1gbit"
    # One flat collective among others does not make the link endless.
    falling = [Point("alltoall", s, 1e-3 - 1e-7 * s) for s in sizes]
    costs = Costs(Network("1gbit", "80us"), 4)
    rising = [Point("allgather", s, costs.seconds("allgather", s)) for s in sizes]
    assert fit([*rising, *falling], 4, None).network.outer_at(0, 2).rate == pytest.approx(
        1e9, rel=1e-2
    )


def test_coefficients_are_at_least_zero() -> None:
    assert line([1, 10, 100], [1.0, 10.0, 100.0]) == pytest.approx((0.0, 1.0), abs=1e-9)
    assert line([10, 100, 1000], [5.0, 60.0, 700.0])[0] == 0.0
    assert line([10, 100, 1000], [7.0, 6.0, 5.0])[1] == 0.0
