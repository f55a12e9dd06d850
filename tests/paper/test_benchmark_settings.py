"""The settings of the benchmark's second edition: each is started, at a tiny size."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest
from tiny_run import build, configured, play

from dgc_repro.launch.reproduce import runs_of
from dgc_repro.paper.benchmark import methods
from dgc_repro.paper.benchmark.workloads import workloads

TINY = {
    "images": ("dataset.train_size=256", "dataset.test_size=64", "dataset.validation=64"),
    "text": ("dataset.epoch_size=null",),
}
SIZES = ("dataset", "model")
STEPS = 3


@pytest.mark.slow
@pytest.mark.parametrize("artifact", ["images", "text", "workers"])
def test_every_setting_starts_and_learns_something(artifact: str) -> None:
    """Three steps of each setting on embedded data, with the recipe's optimizer, schedule and workers."""
    jobs = runs_of(f"benchmark/{artifact}", ["scale=small", "seed=0"])
    tiny = {
        workload: configured(
            f"experiment=benchmark/{workload.partition('_')[0] if artifact == 'workers' else workload}",
            f"scale=recipe/{'text' if artifact == 'text' else 'images'}/quick",
            *TINY["text" if artifact == "text" else "images"],
        )
        for workload in {config["experiment"]["workload"] for config, _ in jobs}
    }
    started = set()
    for config, _ in jobs:
        if methods.TUNES in config["experiment"]["method"]:
            continue
        own = tiny[config["experiment"]["workload"]]
        run = build(deepcopy({**config, **{group: own[group] for group in SIZES}}))
        losses = play(run, until=STEPS).losses
        assert len(losses) == STEPS, config["experiment"]["row"]
        assert np.isfinite(losses).all(), config["experiment"]["row"]
        started.add(config["experiment"]["row"])
    assert {row.partition(".")[0] for row in started} <= set(workloads())
    assert all(f"{row.partition('.')[0]}.{methods.DENSE}" in started for row in started)
