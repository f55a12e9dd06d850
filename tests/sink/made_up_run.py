"""A made-up run for the tests of sink/: formulas, clearly no measurement of anything."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from dgc_repro.sink.interface import FanOut, RunInfo, Sink, Value
from dgc_repro.sink.jsonl import Jsonl

STEPS_PER_EPOCH = 20
NUM_EPOCHS = 3


def run_info(folder: Path, start_epoch: int = 0, start_step: int | None = None) -> RunInfo:
    """A run of the dynamic paper's Table I."""
    step = start_epoch * STEPS_PER_EPOCH if start_step is None else start_step
    config = {
        "experiment": {"paper": "dynamic", "artifact": "table1", "row": "static8_ef"},
        "scale": {"name": "quick"},
        "seed": 3,
        "compressor": {"_target_": "dgc_repro.compressor.uniform.Uniform", "bits": 8},
        "wrap": ["error_feedback"],
        "wrapper": {"error_feedback": {"_target_": "x.y.Z"}, "per_layer": {"_target_": "x.y.Z"}},
        "paths": {"runs": "runs"},
        "sink": {"console": True},
        "train": {"epochs": NUM_EPOCHS},
        "policy": {"_target_": "dgc_repro.policy.fixed.Fixed"},
    }
    return RunInfo(
        folder=folder,
        name="dynamic-table1-static8_ef-quick-s3-0a1b2c3d",
        config=config,
        environment={"hardware": "synthetic"},
        num_steps=NUM_EPOCHS * STEPS_PER_EPOCH,
        num_epochs=NUM_EPOCHS,
        start_step=step,
        start_epoch=start_epoch,
    )


def step_metrics(step: int) -> dict[str, Value]:
    """The metrics of a step, numbered from 1."""
    return {
        "step": step,
        "epoch": (step - 1) // STEPS_PER_EPOCH + 1,
        "train/loss": 2.0 / step,
        "train/accuracy_percent": 100.0 - 50.0 / step,
        "policy/rung": 1,
        "policy/label": "bits=8",
        "comm/payload_bytes": 100_000 * step,
    }


def epoch_record(epoch: int) -> dict[str, Value]:
    """The record of an epoch, numbered from 1; test accuracy is best in epoch 2."""
    step = epoch * STEPS_PER_EPOCH
    return {
        **step_metrics(step),
        "lr": 0.1,
        "validation/loss": 1.0,
        "validation/accuracy_percent": 60.0,
        "test/loss": 1.0,
        "test/accuracy_percent": {1: 40.0, 2: 62.5, 3: 61.25}[epoch],
        "comm/floats": 25_000.0 * step,
        "comm/wire_bytes": 100_000 * step,
        "time/modelled_seconds": 0.5 * step,
        "time/train_seconds": 10.5 * epoch,
    }


def play(sink: Sink, first_epoch: int = 1, last_epoch: int = NUM_EPOCHS) -> None:
    """Tell ``sink`` of the steps and epochs of these epochs."""
    for epoch in range(first_epoch, last_epoch + 1):
        for step in range((epoch - 1) * STEPS_PER_EPOCH + 1, epoch * STEPS_PER_EPOCH + 1):
            sink.step(step_metrics(step))
        sink.epoch(epoch_record(epoch))


SUMMARY = {**epoch_record(NUM_EPOCHS), "status": "finished", "steps": 60, "parameters": 7}


def record(
    folder: Path, sink: Sink, first_epoch: int = 1, last_epoch: int = NUM_EPOCHS
) -> dict[str, Value]:
    """Play these epochs into the record in ``folder`` and into ``sink``, as launch/worker.py does. Returns
    the summary. A run is finished when its last epoch is played."""
    both = FanOut([Jsonl(), sink])
    run = run_info(folder, first_epoch - 1)
    both.start(run)
    both.note("something to know")
    play(both, first_epoch, last_epoch)
    summary: dict[str, Value] = dict(SUMMARY)
    if last_epoch < NUM_EPOCHS:
        summary["status"] = "stopped"
    (folder / "config.yaml").write_text(yaml.safe_dump(run.config))
    (folder / "environment.json").write_text(json.dumps(run.environment))
    (folder / "summary.json").write_text(json.dumps(summary))
    (folder / "policy.csv").write_text("epoch,rung,next_rung,label\n1,0,1,bits=8\n2,1,1,bits=8\n")
    both.finish(summary)
    both.close()
    return summary
