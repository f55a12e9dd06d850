"""Waiting for the slowest: theory against published order statistics and an independent sampler."""

from __future__ import annotations

import math
import random

import pytest

from dgc_repro.study.waiting import EXPONENTIAL, GAUSSIAN, Waiting, expected_largest

# Expected largest of K standard normal values: Harter, "Expected values of normal order statistics",
# Biometrika 48, 1961, table 1.
HARTER = {2: 0.56419, 3: 0.84628, 5: 1.16296, 10: 1.53875, 20: 1.86748, 50: 2.24907, 100: 2.50759}


@pytest.mark.parametrize(("count", "expected"), HARTER.items())
def test_the_expected_largest_gaussian_delay_is_the_tabulated_one(
    count: int, expected: float
) -> None:
    assert expected_largest(GAUSSIAN, count) == pytest.approx(expected, abs=2e-5)


def test_one_worker_waits_for_itself() -> None:
    assert expected_largest(GAUSSIAN, 1) == 0
    assert expected_largest(EXPONENTIAL, 1) == 1


@pytest.mark.parametrize("law", [GAUSSIAN, EXPONENTIAL])
@pytest.mark.parametrize("count", [3, 17])
def test_theory_is_what_another_generator_gives(law: str, count: int) -> None:
    """Python's Mersenne twister, inverting the distribution of the largest: u^(1/K)."""
    generator = random.Random(7)
    trials, total, squares = 20_000, 0.0, 0.0
    for _ in range(trials):
        if law == EXPONENTIAL:
            delay = -math.log(1 - generator.random() ** (1 / count))
        else:
            delay = max(generator.gauss(0, 1) for _ in range(count))
        total, squares = total + delay, squares + delay**2
    mean = total / trials
    error = math.sqrt((squares / trials - mean**2) / trials)
    assert abs(mean - expected_largest(law, count)) < 4 * error


def test_the_simulation_agrees_with_theory_and_its_interval_is_that_of_its_trials() -> None:
    rows = Waiting([1, 8, 64], 20_000, 100.0, 10.0).run(3)
    assert [(row["law"], row["workers"]) for row in rows] == [
        (law, count) for law in (GAUSSIAN, EXPONENTIAL) for count in (1, 8, 64)
    ]
    for row in rows:
        half = (row["high"] - row["low"]) / 2
        assert abs(row["slowest"] - row["theory"]) < 2.5 * half
        assert 0.3 / math.sqrt(20_000) < half < 3 / math.sqrt(20_000)


def test_the_share_lost_is_the_wait_over_the_step_with_the_wait() -> None:
    study = Waiting([4], 1000, 80.0, 20.0)
    assert study.share_lost(1.0) == pytest.approx(20 / 100)
    for row in study.run(0):
        mean = 1.0 if row["law"] == EXPONENTIAL else 0.0
        assert row["lost"] == pytest.approx(row["slowest"] - mean)
        assert row["share_lost"] == pytest.approx(20 * row["lost"] / (80 + 20 * row["lost"]))


def test_a_seed_gives_the_same_numbers_and_another_seed_others() -> None:
    study = Waiting([2, 4], 500, 1.0, 1.0)
    assert study.run(1) == study.run(1)
    assert study.run(1) != study.run(2)
