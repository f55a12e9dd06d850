"""The record: lines, resume, and what is not JSON."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pandas as pd
import pytest
import yaml
from made_up_run import STEPS_PER_EPOCH, epoch_record, play, run_info, step_metrics

from dgc_repro.errors import UserError
from dgc_repro.paper.records import read_run
from dgc_repro.sink.jsonl import Jsonl, replay


def lines(path: Path) -> list[dict[str, Any]]:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return [json.loads(line, parse_constant=refuse) for line in path.read_text().splitlines()]


def written(
    folder: Path,
    last_epoch: int = 3,
    start_epoch: int = 0,
    start_step: int | None = None,
    note: str = "",
    every_steps: int = 10,
) -> None:
    """A run that begins after ``start_epoch`` and is killed after ``last_epoch``."""
    sink = Jsonl(every_steps)
    sink.start(run_info(folder, start_epoch, start_step))
    play(sink, start_epoch + 1, last_epoch)
    if note:
        sink.note(note)
    sink.close()


def epochs_in(folder: Path) -> list[int]:
    return [line["epoch"] for line in lines(folder / "metrics.jsonl")]


def test_every_epoch_and_every_tenth_step_is_a_line(tmp_path: Path) -> None:
    written(tmp_path)
    epochs = [{"kind": "epoch", **epoch_record(epoch)} for epoch in (1, 2, 3)]
    steps = [{"kind": "step", **step_metrics(step)} for step in (10, 20, 30, 40, 50, 60)]
    assert lines(tmp_path / "metrics.jsonl") == epochs
    assert lines(tmp_path / "steps.jsonl") == steps


def test_a_line_is_on_the_disk_before_the_next_one_is_written(tmp_path: Path) -> None:
    sink = Jsonl(every_steps=1)
    sink.start(run_info(tmp_path))
    sink.step(step_metrics(1))
    sink.epoch(epoch_record(1))
    assert len(lines(tmp_path / "steps.jsonl")) == len(lines(tmp_path / "metrics.jsonl")) == 1
    sink.close()


def test_zero_every_steps_writes_no_steps(tmp_path: Path) -> None:
    written(tmp_path, every_steps=0)
    assert not (tmp_path / "steps.jsonl").exists()


def test_a_resumed_run_drops_what_its_checkpoint_does_not_cover(tmp_path: Path) -> None:
    written(tmp_path)
    sink = Jsonl()
    sink.start(run_info(tmp_path, start_epoch=1, start_step=30))
    assert epochs_in(tmp_path) == [1]
    assert [line["step"] for line in lines(tmp_path / "steps.jsonl")] == [10, 20, 30]
    play(sink, first_epoch=2)
    sink.close()
    assert epochs_in(tmp_path) == [1, 2, 3]
    assert not list(tmp_path.glob("*.tmp"))


def test_a_half_written_line_is_dropped_on_resume(tmp_path: Path) -> None:
    written(tmp_path, last_epoch=2)
    path = tmp_path / "metrics.jsonl"
    path.write_text(path.read_text()[:-9])
    written(tmp_path, start_epoch=1)
    assert epochs_in(tmp_path) == [1, 2, 3]


def test_a_record_that_lacks_an_epoch_of_the_checkpoint_is_an_error(tmp_path: Path) -> None:
    written(tmp_path, last_epoch=1)
    with pytest.raises(UserError, match=r"metrics.jsonl: .* got none for 2, 3; delete the run"):
        Jsonl().start(run_info(tmp_path, start_epoch=3))


def test_a_run_that_goes_on_from_another_folder_has_only_its_own_epochs(tmp_path: Path) -> None:
    for start_epoch in (1, 2):  # the second time, of its own checkpoint
        written(tmp_path, start_epoch + 1, start_epoch)
    assert epochs_in(tmp_path) == [2, 3]


def test_notes_stay_on_resume_and_nothing_stays_from_the_beginning(tmp_path: Path) -> None:
    written(tmp_path, 1, note="stopped by a signal")
    written(tmp_path, 1, start_epoch=1)
    assert [line["kind"] for line in lines(tmp_path / "metrics.jsonl")] == ["epoch", "note"]
    written(tmp_path, 0)
    assert lines(tmp_path / "metrics.jsonl") == lines(tmp_path / "steps.jsonl") == []


def test_a_number_that_is_not_finite_is_null_and_comes_back_as_nan(tmp_path: Path) -> None:
    sink = Jsonl(every_steps=1)
    sink.start(run_info(tmp_path))
    sink.step({**step_metrics(1), "train/loss": math.inf})
    sink.epoch(epoch_record(1))
    sink.epoch({**epoch_record(2), "train/loss": math.nan, "test/loss": -math.inf})
    sink.close()
    assert lines(tmp_path / "steps.jsonl")[0]["train/loss"] is None
    assert lines(tmp_path / "metrics.jsonl")[1]["test/loss"] is None
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"seed": 0}))
    for name in ("environment.json", "summary.json"):
        (tmp_path / name).write_text("{}")
    epochs = read_run(tmp_path).epochs
    assert pd.isna(epochs["train/loss"][1])
    assert epochs["train/loss"].dtype == float


def test_closing_twice_or_unstarted_does_nothing(tmp_path: Path) -> None:
    sink = Jsonl()
    sink.close()
    sink.start(run_info(tmp_path))
    sink.close()
    sink.close()
    assert (tmp_path / "metrics.jsonl").exists()


def test_a_record_is_passed_on_as_it_was_written(tmp_path: Path) -> None:
    decided = {"decision/branch": "dense", "decision/candidate": None}
    sink = Jsonl(every_steps=2)
    sink.start(run_info(tmp_path))
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
