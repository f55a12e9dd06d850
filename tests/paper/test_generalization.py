"""Coefficients of orders against scipy and closed forms; the tables of measures on made-up runs."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats
from synthetic import words

from dgc_repro.paper.lecture import generalization, ranking
from dgc_repro.paper.records import Run

GRID = np.array(list(itertools.product((0, 1), repeat=7)))
RANDOM = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generalization, "DRAWS", 2)


def run_of(theta: np.ndarray, seed: int, gap: float, measures: dict[str, float], out: bool) -> Run:
    batch, dropout, rate, depth, lamb, decay, width = (int(value) for value in theta)
    optimizer = "lamb" if lamb else "sgd"
    config = {
        "seed": seed, "scale": {"name": "quick"}, "dataset": {"name": "digits"}, "schedule": {},
        "model": {
            "_target_": "CNN", "width": 4 + 4 * width, "layers": 2 + depth, "dropout": 0.2 * dropout
        },
        "experiment": {
            "optimizer": optimizer, "row": f"{optimizer}{batch}{dropout}{rate}{depth}{decay}{width}"
        },
        "train": {"batch_size": 8 + 8 * batch, "epochs": 9}, "launch": {"workers": 1, "kind": "simulated"},
        "optimizer": {"lr": (0.1 if lamb else 0.01) * (1 + rate), "weight_decay": 0.01 * decay},
        "stopping": {"target": 0.01, "metric": "train_cross_entropy"},
    }  # fmt: skip
    summary = {f"generalization/{name}": value for name, value in measures.items()} | {
        "generalization/accuracy_percent": 100.0, "test/accuracy_percent": 100 - 100 * gap,
        "stopping": {"reached": not out},
    }  # fmt: skip
    return Run(f"{config['experiment']}-s{seed}", config, {"data": "digits"}, summary)


def runs(sign: Callable[[str], float], out: int = 0) -> list[Run]:
    """Three seeds of a whole grid; each measure is the gap times its sign, with noise."""
    names = [row for rows in generalization.TABLES.values() for row in rows]
    found = []
    for seed in range(3):
        for number, theta in enumerate(GRID):
            gap = 0.1 + 0.02 * theta @ [1, -1, -1, 0, 1, -1, 0] + 0.02 * RANDOM.random()
            noise = 0.01 * RANDOM.normal(size=len(names))
            measures = {n: sign(n) * gap + e for n, e in zip(names, noise, strict=True)}
            found.append(run_of(theta, seed, gap, measures, out=number < out))
    return found


def as_claimed(name: str) -> float:
    if name in generalization.SHARPNESS:
        return 3.0 if "mag" in name else 0.5
    return -1.0 if name in (*generalization.NORMS, "vc_dimension", "parameters") else 0.2


def test_tau_without_ties_is_scipys_and_a_tie_is_neither_order() -> None:
    mu, g = RANDOM.normal(size=30), RANDOM.normal(size=30)
    assert ranking.tau(mu, g) == pytest.approx(stats.kendalltau(mu, g).statistic)
    assert ranking.tau([1, 2, 2], [1, 2, 3]) == pytest.approx(2 / 3)
    assert ranking.tau([1, np.inf, np.inf], [1, 2, 3]) == pytest.approx(2 / 3)


def test_psi_sees_only_networks_that_differ_in_one_hyper_parameter() -> None:
    """The measure follows the first hyper-parameter, against the order of the others."""
    g = GRID @ [1, 10, 10, 10, 10, 10, 10]
    mu = GRID @ [1, -9, -9, -9, -9, -9, -9]
    assert ranking.psi(mu, g, GRID, 0) == 1
    assert ranking.psi(mu, g, GRID, 1) == -1
    assert ranking.tau(mu, g) < 0
    assert np.isnan(ranking.psi(mu[:1], g[:1], GRID[:1], 0))


def test_the_information_of_the_gap_itself_is_all_and_of_noise_is_nothing() -> None:
    g = RANDOM.normal(size=len(GRID))
    assert ranking.conditional_information(g, g, GRID) == pytest.approx(1)
    assert ranking.conditional_information(-g, g, GRID) == pytest.approx(1)
    assert ranking.conditional_information(RANDOM.normal(size=len(GRID)), g, GRID) < 0.01
    assert ranking.conditional_information(np.ones(len(GRID)), g, GRID) == 0


def test_a_measure_that_only_knows_one_hyper_parameter_has_no_information_given_it() -> None:
    g = GRID[:, 2] + 0.1 * RANDOM.normal(size=len(GRID))
    mu = GRID[:, 2] + 0.1 * RANDOM.normal(size=len(GRID))
    assert ranking.conditional_information(mu, g, GRID, most=0) > 0.1
    assert ranking.conditional_information(mu, g, GRID, most=1) < 0.01


def test_information_is_that_of_a_known_table() -> None:
    """Of four networks, pairs agree in 4 of 6 cases: I = 1 - H(1/3) bits, H = 1 bit."""
    mu, g = [1, 2, 3, 4], [2, 1, 4, 3]
    p = np.array([1 / 3, 2 / 3])
    expected = 1 + (p * np.log2(p)).sum()
    one = np.zeros((4, 1), np.int64)
    assert ranking.conditional_information(mu, g, one) == pytest.approx(expected)


def test_claims_agree_on_networks_that_behave_as_claimed_and_differ_on_the_opposite() -> None:
    assert set(words(generalization.page(runs(as_claimed), "quick")).values()) == {"agrees"}
    found = words(generalization.page(runs(lambda name: -as_claimed(name)), "quick"))
    assert found["sharpness.positive"] == found["norms.negative"] == "differs"


def test_networks_that_do_not_reach_the_target_are_left_out_and_counted() -> None:
    page = generalization.page(runs(as_claimed, out=20), "quick")
    assert ("networks left out", "60 of 384 do not reach it") in page.facts
    assert set(generalization.frames.of(page.frame, generalization.NETWORKS, "grid")) == {108}
    many = words(generalization.page(runs(as_claimed, out=60), "quick"))
    assert set(many.values()) == {"not tested"}


def test_rates_of_each_optimizer_are_numbered_by_themselves() -> None:
    theta = generalization.settings(runs(as_claimed)[: len(GRID)])
    assert (theta == GRID).all()
