"""Sharpness against batch size: tuning, networks that miss the target, and verdicts on made-up runs."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

from synthetic import words

from dgc_repro.paper import page as pages
from dgc_repro.paper.lecture import sharpness
from dgc_repro.paper.records import Run

RATES = (0.01, 0.02)


def run_of(batch: int, rate: float, seed: int, steps: float, value: float, gap: float) -> Run:
    reached = math.isfinite(steps)
    config = {
        "seed": seed, "scale": {"name": "quick"}, "dataset": {"name": "digits"}, "schedule": {},
        "model": {"_target_": "dgc_repro.model.cnn.CNN", "width": 4},
        "experiment": {"row": f"cnn.b{batch}_lr{rate}"}, "stopping": {"target": 0.01},
        "train": {"batch_size": batch, "accumulate": 1}, "optimizer": {"lr": rate, "momentum": 0.9},
        "launch": {"workers": 1, "kind": "simulated"},
    }  # fmt: skip
    summary = {f"generalization/{name}": value for name in sharpness.SHARPNESS} | {
        "generalization/accuracy_percent": 100.0, "test/accuracy_percent": 100 - gap,
        "stopping": {"reached": reached, **({"step": steps} if reached else {})},
    }  # fmt: skip
    return Run(f"b{batch}-{rate}-s{seed}", config, {"data": "digits"}, summary)


def runs(
    value: Callable[[int], float], reaches: Callable[[int], bool] = lambda _: True
) -> list[Run]:
    """Three seeds; the larger rate needs more steps and is far sharper."""
    return [
        run_of(
            batch, rate, seed, 50 * (1 + place) if reaches(batch) else math.inf,
            value(batch) * (1 + 0.1 * seed) * (1 + 99 * place), 5 * value(batch) + 0.1 * seed,
        )
        for batch in sharpness.BATCHES
        for place, rate in enumerate(RATES)
        for seed in range(3)
    ]  # fmt: skip


def test_growth_with_the_batch_size_agrees_and_a_fall_differs() -> None:
    grows = sharpness.page(runs(lambda batch: batch**0.5), "quick")
    assert set(words(grows).values()) == {"agrees"}
    falls = sharpness.page(runs(lambda batch: batch**-0.5), "quick")
    assert set(words(falls).values()) == {"differs"}


def test_a_network_that_does_not_reach_the_cross_entropy_is_not_judged(tmp_path: Path) -> None:
    page = sharpness.page(runs(lambda batch: batch, lambda batch: batch < 256), "quick")
    assert set(words(page).values()) == {"not run"}
    pages.write(page, tmp_path)
    assert "| batch size 256 | 3 | 0.01 | never |" in (tmp_path / "table.md").read_text()
    assert (tmp_path / "sharpness.png").is_file()
