"""Waiting for the slowest: theory against published order statistics and the simulation."""

from __future__ import annotations

import math

import pytest

from dgc_repro.study.waiting import EXPONENTIAL, GAUSSIAN, Waiting, expected_largest

# Expected largest of K standard normal values: Harter, "Expected values of normal order statistics",
# Biometrika 48, 1961, table 1.
HARTER = {
    1: 0.0,
    2: 0.56419,
    3: 0.84628,
    5: 1.16296,
    10: 1.53875,
    20: 1.86748,
    50: 2.24907,
    100: 2.50759,
}


def test_the_expected_largest_gaussian_delay_is_the_tabulated_one() -> None:
    found = {count: expected_largest(GAUSSIAN, count) for count in HARTER}
    assert found == pytest.approx(HARTER, abs=2e-5)
    assert expected_largest(EXPONENTIAL, 1) == 1


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
