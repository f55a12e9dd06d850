"""Equivalent steps: the share that is read off a calibration, and how often its interval covers."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from dgc_repro.paper.benchmark.equivalent import Calibration, Share
from dgc_repro.paper.benchmark.workloads import Workload
from dgc_repro.paper.records import Run

TEXT = Workload("text", "loss", 1.0)
A, B, SD = 0.088, 0.02, 0.0018
"""Of the curve, and of the losses, as in the pilot on images."""
STEPS = 1000


def run(method: str, seed: int, loss: float, fraction: float = 1.0, kind: str = "x") -> Run:
    epochs = pd.DataFrame({"test/loss": [loss]})
    config = {"experiment": {"row": f"gpt.{method}"}, "seed": seed}
    summary = {"steps": round(STEPS * fraction)}
    return Run(f"{method}-{seed}-{kind}", config, {"hardware": kind}, summary, epochs)


def loss_at(share: float) -> float:
    at = -math.log(1 - share)
    return 1.5 + A * at + B * at**2


def dense(noise: np.random.Generator, sd: float = SD, kinds: str = "x") -> list[Run]:
    """Five seeds of each fraction, and fifteen of whole trainings; kinds differ by a constant."""
    return [
        run(
            "dense" if f == 1 else f"dense_{f}",
            seed,
            loss_at(1 - f) + 0.05 * (kind == "y") + noise.normal(0, sd),
            f,
            kind,
        )
        for f, count in ((1.0, 15), (0.9, 5), (0.8, 5), (0.6, 5))
        for seed in range(count)
        for kind in kinds
    ]


@pytest.mark.parametrize("share", [0.01, 0.02, 0.1, 0.3])
def test_without_noise_the_share_is_exact(share: float) -> None:
    calibration = Calibration(dense(np.random.default_rng(0), 1e-9), TEXT)
    assert calibration.curve == pytest.approx((A, B), rel=1e-5)
    found = calibration.share([run("a", seed, loss_at(share)) for seed in range(3)])
    assert found is not None
    assert found.mean == pytest.approx(100 * share, abs=0.03)


def test_the_schedule_has_rounded_steps_whose_true_fraction_counts() -> None:
    runs = [run("dense", s, loss_at(0.0)) for s in range(3)]
    runs += [run(f"dense_{f}", s, loss_at(1 - f), f) for f in (0.8335, 0.6667) for s in range(3)]
    assert sorted(set(Calibration(runs, TEXT).fractions)) == [0.667, 0.834, 1.0]


def test_kinds_of_processors_have_levels_of_their_own() -> None:
    calibration = Calibration(dense(np.random.default_rng(0), 1e-9, "xy"), TEXT)
    runs = [
        run("a", seed, loss_at(0.1) + 0.05 * (seed > 2), kind="xy"[seed > 2]) for seed in range(5)
    ]
    found = calibration.share([*runs, run("a", 9, 99.0, kind="z")])
    assert found is not None
    assert found.mean == pytest.approx(10, abs=0.03)
    assert calibration.share([run("a", seed, 1.5, kind="z") for seed in range(3)]) is None


def test_a_cost_outside_the_calibration_is_called_so() -> None:
    calibration = Calibration(dense(np.random.default_rng(0)), TEXT)
    found = calibration.share([run("a", seed, 2.0) for seed in range(3)])
    assert found is not None
    assert (found.mean, found.text) == (math.inf, "> 40")
    better = calibration.share([run("a", seed, 1.4) for seed in range(3)])
    assert better is not None
    assert (better.text, better.net(10.0)) == ("< 0", (10.0, 10.0, 10.0))
    level = calibration.share([run("a", seed, 1.5) for seed in range(3)])
    assert level is not None
    assert level.text.endswith(" (< 0 to 2)")
    assert calibration.share([run("a", seed, 1.5) for seed in range(2)]) is None
    assert calibration.share([run("a", seed, math.inf) for seed in range(3)]) is None
    with pytest.raises(ValueError, match="too few runs"):
        Calibration([run(f"dense_{f}", 0, loss_at(1 - f), f) for f in (1, 0.8, 0.6)], TEXT)
    with pytest.raises(ValueError, match="fractions"):
        Calibration([run("dense", seed, 1.5) for seed in range(5)], TEXT)


def test_the_net_speedup_is_that_of_a_step_less_the_share() -> None:
    assert Share(10.0, 5.0, 20.0, 40.0).net(10.0) == pytest.approx((9.0, 8.0, 9.5))
    assert Share(math.inf, 35.0, math.inf, 40.0).net(10.0) == pytest.approx((0.0, 0.0, 6.5))


@pytest.mark.parametrize(
    ("share", "sd"),
    [(0.0, SD), (0.15, SD), (0.0, 3 * SD), (0.05, 3 * SD)],
    ids=["no-effect", "as-dense", "noisier-no-effect", "noisier-than-dense"],
)
def test_intervals_cover(share: float, sd: float) -> None:
    """93 to 97 % of 300 worlds, with a scatter of 1.3 % (one standard error)."""
    noise, hits, reps = np.random.default_rng(1), 0, 300
    for _ in range(reps):
        calibration = Calibration(dense(noise), TEXT)
        own = [run("a", seed, loss_at(share) + noise.normal(0, sd)) for seed in range(4)]
        found = calibration.share(own)
        assert found is not None
        hits += found.low <= 100 * share <= found.high
    assert 0.93 - 0.03 < hits / reps < 0.97 + 0.02, hits / reps
