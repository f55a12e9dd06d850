"""``train.profile=true`` leaves a trace of a few steps in the run folder, with the clock's spans."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from tiny_run import PLAIN, STEPS_PER_EPOCH, UNIFORM4_EF, built, play

from dgc_repro.exchange.clock import SPANS
from dgc_repro.train.loop import steps_left
from dgc_repro.train.profile import SKIPPED_STEPS, TRACED_STEPS, profiled
from dgc_repro.train.step import train_step

FED_BACK = (*PLAIN, *UNIFORM4_EF)


def traced(folder: Path, epochs: int, *overrides: str) -> list[str]:
    """Train with the profiler on; the names of all events of the trace."""
    run = built(*FED_BACK, f"train.epochs={epochs}", "train.profile=true", *overrides)
    with profiled(run, folder) as after_step:
        for _ in range(epochs):
            for batches in steps_left(run):
                train_step(run, batches)
                after_step()
            run.progress.epoch += 1
    text = gzip.decompress((folder / "trace-0.json.gz").read_bytes())
    return [event.get("name", "") for event in json.loads(text)["traceEvents"]]


@pytest.mark.parametrize("epochs", [1, 4])
def test_a_trace_has_the_steps_and_the_spans(tmp_path: Path, epochs: int) -> None:
    names = traced(tmp_path, epochs)
    steps = {name for name in names if name.startswith("ProfilerStep")}
    enough = epochs * STEPS_PER_EPOCH >= SKIPPED_STEPS + TRACED_STEPS
    assert len(steps) == (TRACED_STEPS if enough else epochs * STEPS_PER_EPOCH - 1)
    assert {"compute", "compress", "decompress"} <= set(names) & set(SPANS)
    assert "aten::" in (tmp_path / "profile-0.txt").read_text()


def test_profiling_changes_no_number(tmp_path: Path) -> None:
    plain, other = built(*FED_BACK), built(*FED_BACK, "train.profile=true")
    with profiled(other, tmp_path):
        assert play(other).losses == play(plain).losses
