"""Steps to a target against batch size: the fit, the noise scale, tuning, and verdicts on made-up runs."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from dgc_repro.paper.lecture import batch_size
from dgc_repro.paper.records import Run

BATCHES = (8, 16, 32, 64, 128, 256)
RATES = (0.005, 0.01, 0.02)


def run_of(row: str, batch: int, rate: float, seed: int, steps: float, workers: int = 1) -> Run:
    reached = math.isfinite(steps)
    config = {
        "seed": seed, "scale": {"name": "quick"}, "dataset": {"name": "digits"}, "schedule": {},
        "model": {"_target_": "dgc_repro.model.cnn.CNN", "width": 4},
        "experiment": {"paper": "lecture", "artifact": "batch_size", "row": f"cnn_digits.{row}"},
        "train": {"batch_size": batch // workers, "accumulate": 1, "epochs": 9},
        "launch": {"workers": workers, "kind": "simulated"},
        "optimizer": {"lr": rate, "momentum": 0.9}, "stopping": {"target": 95.0, "metric": "accuracy"},
    }  # fmt: skip
    stopping = {"target": 95.0, "reached": reached, **({"step": steps} if reached else {})}
    return Run(f"{row}-s{seed}", config, {"data": "digits"}, {"stopping": stopping})


def noisy(seed: int, own: float, mean: float) -> Run:
    run = run_of("b16x1x8_lr0.01", 128, 0.01, seed, 40, workers=8)
    run.decisions["own_square"], run.decisions["mean_square"] = [own] * 3, [mean] * 3
    return run


def runs(steps: Callable[[int], float], best: float = 0.01) -> list[Run]:
    """Three seeds; the best rate needs ``steps``, the others twice as many."""
    found = [
        run_of(f"b{batch}x1_lr{rate}", batch, rate, seed, steps(batch) * (1 if rate == best else 2))
        for batch in BATCHES
        for rate in RATES
        for seed in range(3)
    ]
    return found + [noisy(seed, 2.0, 1.0) for seed in range(3)]


def words(found: list[Run]) -> dict[str, str]:
    return {v.claim.id: v.word for v in batch_size.page(found, "quick").verdicts}


def curved(batch: int) -> float:
    return 50 * (1 + 40 / batch)


def test_the_fit_finds_the_curve_that_made_the_points() -> None:
    least, critical = batch_size.fitted(BATCHES, [curved(batch) for batch in BATCHES])
    assert (least, critical) == (pytest.approx(50, rel=1e-4), pytest.approx(40, rel=1e-4))


@pytest.mark.parametrize("steps", [lambda b: 8000 / b, lambda b: 100, lambda b: 8000 / b**1.05])
def test_a_critical_batch_size_outside_what_was_measured_is_no_number(
    steps: Callable[[int], float],
) -> None:
    found = batch_size.fitted(BATCHES, [steps(batch) for batch in BATCHES])
    assert np.isnan(found).all()


def test_the_noise_scale_is_that_of_known_moments() -> None:
    """|G|^2 = 3, tr(Sigma) = 80: |g_i|^2 = 3 + 80 / 16 = 8, |mean|^2 = 3 + 80 / 128 = 3.625."""
    assert batch_size.noise_scale(noisy(0, 8.0, 3.625)) == pytest.approx(80 / 3)


def test_a_rate_at_an_edge_of_its_grid_is_marked_and_nothing_is_judged() -> None:
    own = {k: v for k, v in words(runs(curved, best=0.02)).items() if k.startswith("cnn_digits.")}
    assert set(own.values()) == {"not tested"}
    tried = pd.DataFrame(
        {"batch": 8, "rate": rate, "seed": 0, "steps": steps}
        for rate, steps in zip(RATES, (90.0, 50.0, math.inf), strict=True)
    )
    (line,) = batch_size.tuned_of(tried).to_dict("records")
    assert (line["rate"], line["steps"], line["tried"], line["at_edge"]) == (0.01, 50, 3, False)


def test_a_rate_that_only_seed_0_tried_is_not_chosen_but_shows_what_was_missed() -> None:
    tried = pd.DataFrame(
        {"batch": 8, "rate": rate, "seed": seed, "steps": steps}
        for rate, of_seeds in {
            0.005: (40.0,),
            0.01: (50, 60, 70),
            0.02: (60, 70, 70),
            0.1: (90,),
        }.items()
        for seed, steps in enumerate(of_seeds)
    )
    found = batch_size.tuned_of(tried)
    assert (list(found["rate"]), list(found["at_edge"])) == ([0.01] * 3, [True] * 3)
    found = batch_size.tuned_of(tried.assign(steps=tried["steps"].replace(40.0, 51.0)))
    assert (set(found["rate"]), set(found["at_edge"]), set(found["tried"])) == (
        {0.01},
        {False},
        {4},
    )


def test_a_curve_that_bends_agrees_and_one_that_does_not_differs() -> None:
    def bends(batch: int) -> float:
        return 60 + 2 * max(0, 6400 / batch - 60)

    bent, straight = words(runs(bends)), words(runs(lambda batch: 8000 / batch))
    assert (bent["cnn_digits.perfect"], bent["cnn_digits.plateau"]) == ("agrees", "agrees")
    assert (straight["cnn_digits.perfect"], straight["cnn_digits.plateau"]) == ("agrees", "differs")
    assert words(runs(lambda batch: 100))["cnn_digits.perfect"] == "differs"


def test_the_noise_scale_is_judged_against_the_critical_batch_size() -> None:
    """Noise scale: 16 (2 x 128 - 128) / ... of squares 2 and 1 with 16 and 128 images; critical: 40."""
    assert words(runs(curved))["cnn_digits.noise"] == "agrees"
    far = [run for run in runs(curved) if batch_size.is_timed(run)]
    far += [noisy(seed, 1000.0, 126.0) for seed in range(3)]
    assert words(far)["cnn_digits.noise"] == "differs"
