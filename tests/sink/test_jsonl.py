"""The record: lines, what is not JSON, replay; and several sinks as one."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any
from unittest.mock import Mock, call

import pandas as pd
import pytest
import yaml
from made_up_run import STEPS_PER_EPOCH, epoch_record, play, run_info, step_metrics
from omegaconf import OmegaConf

from dgc_repro.paper.records import read_run
from dgc_repro.sink.interface import FanOut, Sink
from dgc_repro.sink.jsonl import Jsonl, replay


def lines(path: Path) -> list[dict[str, Any]]:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return [json.loads(line, parse_constant=refuse) for line in path.read_text().splitlines()]


def started(folder: Path, every_steps: int) -> Jsonl:
    sink = Jsonl(every_steps)
    sink.start(run_info(folder))
    return sink


@pytest.mark.parametrize("every_steps", [10, 0])
def test_every_epoch_and_every_tenth_step_is_a_line(every_steps: int, tmp_path: Path) -> None:
    sink = started(tmp_path, every_steps)
    play(sink)
    sink.close()
    sink.close()  # does nothing
    epochs = [{"kind": "epoch", **epoch_record(epoch)} for epoch in (1, 2, 3)]
    steps = [{"kind": "step", **step_metrics(step)} for step in (10, 20, 30, 40, 50, 60)]
    assert lines(tmp_path / "metrics.jsonl") == epochs
    assert (tmp_path / "steps.jsonl").exists() == bool(every_steps)
    assert not every_steps or lines(tmp_path / "steps.jsonl") == steps


def test_a_number_that_is_not_finite_is_null_and_comes_back_as_nan(tmp_path: Path) -> None:
    sink = started(tmp_path, 1)
    sink.step({**step_metrics(1), "train/loss": math.inf})
    sink.epoch(epoch_record(1))
    sink.epoch({**epoch_record(2), "train/loss": math.nan, "test/loss": -math.inf})
    # Each line is on the disk before the next one is written, and before the record is closed.
    assert lines(tmp_path / "steps.jsonl")[0]["train/loss"] is None
    assert lines(tmp_path / "metrics.jsonl")[1]["test/loss"] is None
    sink.close()
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"seed": 0}))
    for name in ("environment.json", "summary.json"):
        (tmp_path / name).write_text("{}")
    epochs = read_run(tmp_path).epochs
    assert pd.isna(epochs["train/loss"][1])
    assert epochs["train/loss"].dtype == float


def test_a_record_is_passed_on_as_it_was_written(tmp_path: Path) -> None:
    decided = {"decision/branch": "dense", "decision/candidate": None}
    sink = started(tmp_path, 2)
    sink.note("begins")
    for step in range(1, STEPS_PER_EPOCH + 1):
        sink.step({**step_metrics(step), "train/loss": math.nan, **decided})  # type: ignore[dict-item]
    sink.epoch(epoch_record(1))
    sink.step(step_metrics(STEPS_PER_EPOCH + 2))
    sink.close()
    other = Mock()
    replay(tmp_path, other)
    assert [name for name, *_ in other.mock_calls] == ["note", *["step"] * 10, "epoch", "step"]
    first = other.step.call_args_list[0].args[0]
    assert math.isnan(first.pop("train/loss"))
    expected = {**step_metrics(2), **decided}
    del expected["train/loss"]
    assert first == expected
    assert other.epoch.call_args.args[0] == epoch_record(1)
    assert other.step.call_args.args[0] == step_metrics(STEPS_PER_EPOCH + 2)


def test_all_sinks_are_told_everything_in_order_and_the_last_is_closed_first(
    tmp_path: Path,
) -> None:
    two = Mock()
    two.b.close.side_effect = OSError("b")
    both: Sink = FanOut([two.a, two.b])
    calls = {"start": run_info(tmp_path), "step": {}, "epoch": {}, "note": "x", "finish": {}}
    for name, argument in calls.items():
        getattr(both, name)(argument)
    assert two.mock_calls == [
        getattr(getattr(call, sink), name)(argument)
        for name, argument in calls.items()
        for sink in "ab"
    ]
    two.reset_mock()
    with pytest.raises(OSError, match="b"):
        both.close()
    assert two.mock_calls == [call.b.close(), call.a.close()]


@pytest.mark.parametrize(
    ("name", "console", "mirrored"),
    [("console", True, False), ("none", False, False), ("wandb", True, True)],
)
def test_each_overlay_says_what_runs_beside_the_record(
    repository: Path, name: str, console: bool, mirrored: bool
) -> None:
    path = repository / "conf" / "sink" / f"{name}.yaml"
    plain: Any = OmegaConf.to_container(OmegaConf.load(path), resolve=True)
    assert (plain["console"], plain["mirror"] is not None) == (console, mirrored)
    assert Jsonl(every_steps=plain["every_steps"]) == Jsonl()
