"""More workers than cores: slow, and to the end. Eight gloo ranks, one thread each."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from processes import World
from tiny_run import PLAIN, configured, play, without_times
from told import told_here

from dgc_repro.launch.build import build_run

WORKERS = 8
PATIENCE_SECONDS = 280
"""For what takes 25 on two idle cores: each rank imports torch for 5 seconds of them."""
RUN = (
    *(f"launch.workers={WORKERS}", "launch.device=cpu", "sink=none", *PLAIN, "train.epochs=1"),
    *("dataset=digits", "dataset.train_size=256", "dataset.validation=51", "dataset.test_size=53"),
    *("train.batch_size=8", "compressor.density=0.1", "compressor=topk", "wrap=[error_feedback]"),
)  # 4 steps

pytestmark = [pytest.mark.slow, pytest.mark.timeout(PATIENCE_SECONDS + 20)]


def test_eight_real_workers_end_and_do_what_eight_simulated_ones_do(tmp_path: Path) -> None:
    jobs = {"gather": RUN, "sharded": (*RUN, "exchange.aggregation=sharded")}
    world = World(WORKERS)
    try:
        real = {
            name: world(told_here, configured("launch=local", *job), tmp_path / name)
            for name, job in jobs.items()
        }
    finally:
        world.stop()
    for name, job in jobs.items():
        told = real[name]
        assert len({rank["parameters"] for rank in told}) == 1, name
        assert len(told[0]["losses"]) == 4
        simulated = play(
            build_run(configured("launch=simulated", *job), torch.device("cpu")),
            folder=tmp_path / "simulated" / name,
        )
        assert told[0]["losses"] == pytest.approx(simulated.losses, rel=1e-4)
        ours, theirs = told[0]["records"][-1], without_times(simulated.records[-1])
        for key in ("comm/payload_bytes", "comm/wire_bytes"):
            assert ours[key] == theirs[key], name
