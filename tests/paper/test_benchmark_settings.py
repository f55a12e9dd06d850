"""The benchmark's settings on the recipes: each is started, at a tiny size."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest
from tiny_run import build, configured, play

from dgc_repro.launch.reproduction import runs_of
from dgc_repro.paper.benchmark.workloads import DENSE, TUNES, workloads

TINY = {
    "images": ("dataset.train_size=1280", "dataset.test_size=64", "dataset.validation=64"),
    "text": ("dataset.epoch_size=null",),
}
SIZES = ("dataset", "model")
SIGNSGD_RATE = 0.005
"""In use; the others have the recipe's."""
STEPS = 3


@pytest.mark.parametrize("workload", ["low", "gpt", "char_lstm"])
def test_grids_have_factors_of_sqrt_2_on_both_sides_of_the_rate_in_use(workload: str) -> None:
    family = "images" if workload == "low" else "text"
    config = configured(f"experiment=benchmark/{workload}", f"scale=recipe/{family}/small")
    for name, tried in config["scale"]["rates"].items():
        used = SIGNSGD_RATE if name == "signs" else config["optimizer"]["lr"]
        rates = sorted([*tried, used])
        assert rates[0] < used < rates[-1]
        factors = np.divide(rates[1:], rates[:-1])
        assert factors == pytest.approx(np.full(len(tried), np.sqrt(2)), rel=0.02), name


@pytest.mark.parametrize(
    ("workload", "examples"), [("low", 45_000), ("air", 49_500), ("char_lstm", 983_854)]
)
def test_dgc_warms_up_in_the_first_twelfth_of_a_run(workload: str, examples: int) -> None:
    family = "text" if workload == "char_lstm" else "images"
    config = configured(f"experiment=benchmark/{workload}", f"scale=recipe/{family}/small")
    train, unit = config["train"], config["dataset"].get("bptt", 1)
    steps = train["epochs"] * examples / (4 * train["batch_size"] * unit)
    for rungs in config["scale"]["warmup"].values():
        first, last = rungs[1][0], rungs[-1][0]
        assert last == pytest.approx(steps / 12, rel=0.02)
        assert first == pytest.approx(last / (len(rungs) - 1), abs=1)


def test_all_numbers_of_workers_share_the_global_batch_of_the_recipe() -> None:
    recipe = configured("recipe=low", "scale=none")
    several = [
        recipe,
        *(config for config, _ in runs_of("benchmark/workers", ["scale=small", "seed=0"])),
    ]
    assert {config["launch"]["workers"] for config in several} == {2, 4, 8, 32, 64}
    assert (
        len({config["launch"]["workers"] * config["train"]["batch_size"] for config in several})
        == 1
    )


@pytest.mark.slow
@pytest.mark.parametrize("workload", ["low", "air", "gpt", "char_lstm", "workers"])
def test_every_setting_starts_and_learns_something(workload: str) -> None:
    """Three steps of each setting on embedded data, with the recipe's optimizer, schedule and workers."""
    is_workers = workload == "workers"
    jobs = runs_of(f"benchmark/{'workers' if is_workers else 'methods'}", ["scale=small", "seed=0"])
    if not is_workers:
        jobs = [job for job in jobs if job.config["experiment"]["workload"] == workload]
    kind = "text" if workload in ("gpt", "char_lstm") else "images"
    tiny = {
        name: configured(
            f"experiment=benchmark/{'low' if is_workers else name}",
            f"scale=recipe/{kind}/quick",
            *TINY[kind],
        )
        for name in {config["experiment"]["workload"] for config, _ in jobs}
    }
    started = set()
    for config, _ in jobs:
        if TUNES in config["experiment"]["method"]:
            continue
        own = tiny[config["experiment"]["workload"]]
        # A round of ten local steps fits an epoch of half batches.
        train = {**config["train"], "batch_size": config["train"]["batch_size"] // 2}
        run = build(deepcopy({**config, **{group: own[group] for group in SIZES}, "train": train}))
        losses = play(run, until=STEPS).losses
        # A round has one loss. With fragments it ends where one of them has arrived.
        local_steps, fragments = (config["train"][key] for key in ("local_steps", "fragments"))
        first = local_steps // fragments + (config["train"]["delay_steps"] if fragments > 1 else 0)
        assert len(losses) == max(STEPS, first), config["experiment"]["row"]
        assert np.isfinite(losses[first - 1 :]).all(), config["experiment"]["row"]
        started.add(config["experiment"]["row"])
    assert {row.partition(".")[0] for row in started} <= set(workloads())
    assert all(f"{row.partition('.')[0]}.{DENSE}" in started for row in started)
