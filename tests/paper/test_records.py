"""Reading a run's record back: what is skipped, what is refused, and in which words."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from synthetic import write_run

from dgc_repro.errors import UserError
from dgc_repro.paper.facts import used
from dgc_repro.paper.records import Run, read_run, read_runs, require_alike


def test_a_record_is_read_back(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path, "static8", 3))
    assert (run.row, run.seed, run.scale) == ("static8", 3, "quick")
    assert list(run.epochs["epoch"]) == list(range(1, 10))
    assert run.setting("launch.workers") == 2
    assert run.setting("no.such.key") is None


def test_an_epoch_written_twice_by_a_resumed_run_counts_once_and_the_later_one(
    tmp_path: Path,
) -> None:
    folder = write_run(tmp_path, "none", 0)
    path = folder / "metrics.jsonl"
    second = path.read_text().splitlines()[2]
    path.write_text(path.read_text() + second.replace('"lr": 0.1', '"lr": 0.7') + "\n")
    epochs = read_run(folder).epochs
    assert list(epochs["epoch"]) == list(range(1, 10))
    assert epochs["lr"][1] == 0.7


def test_an_unfinished_run_is_left_out_with_a_message(tmp_path: Path) -> None:
    done = write_run(tmp_path, "none", 0)
    stopped = write_run(tmp_path, "none", 1, status="stopped")
    fresh = tmp_path / "just-started"
    fresh.mkdir()
    runs, skipped = read_runs([done, stopped, fresh])
    assert [run.id for run in runs] == ["none-seed0"]
    assert skipped == [f"{folder}: not finished, left out" for folder in (stopped, fresh)]


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("config.yaml", "a: [1", "config.yaml: YAML"),
        ("config.yaml", "a: 1", "with a seed"),
        ("config.yaml", "\udcff", "config.yaml: YAML"),
        ("summary.json", "\udcff", "summary.json: JSON"),
        ("metrics.jsonl", "\udcff", "metrics.jsonl: line 1 is not a JSON object"),
        ("policy.csv", "a,b\n1,2,3\n4,5,6,7\n", "policy.csv: a table"),
        ("summary.json", "{", "summary.json: JSON"),
        ("environment.json", "[]", "a JSON object, got list"),
        ("metrics.jsonl", "", "at least one epoch, got none"),
        ("metrics.jsonl", '{"kind": "epoch", "epoch": 1}', "no train/loss"),
    ],
)
def test_a_broken_file_is_named_in_one_line_and_its_run_is_left_out(
    tmp_path: Path, name: str, content: str, says: str
) -> None:
    folder, whole = (write_run(tmp_path, "none", seed) for seed in (0, 1))
    (folder / name).write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(UserError, match=says) as caught:
        read_run(folder)
    assert "\n" not in str(caught.value)
    runs, skipped = read_runs([folder, whole])
    assert [run.id for run in runs] == [whole.name]
    assert skipped == [f"left out: {caught.value}"]


def test_an_empty_policy_trace_is_no_error(tmp_path: Path) -> None:
    folder = write_run(tmp_path, "none", 0)
    (folder / "policy.csv").write_text("")
    assert read_run(folder).trace.empty


def test_rows_of_unlike_lengths_are_refused_with_the_key_and_both_runs(tmp_path: Path) -> None:
    runs, _ = read_runs(
        [write_run(tmp_path, "none", 0, epochs=9), write_run(tmp_path, "static8", 0, epochs=4)]
    )
    with pytest.raises(UserError, match="^train.epochs: .*9 in none-seed0, 4 in static8-seed0"):
        require_alike(runs, ["train.epochs"])


def test_the_folder_of_the_data_and_the_order_of_keys_may_differ(tmp_path: Path) -> None:
    runs, _ = read_runs([write_run(tmp_path, "none", seed) for seed in (0, 1)])
    assert runs[0].setting("dataset.root") != runs[1].setting("dataset.root")
    model = runs[1].config["model"]
    runs[1].config["model"] = dict(reversed(model.items()))
    assert list(model) != list(runs[1].config["model"])
    require_alike(runs, ["dataset", "model"])


def test_a_row_with_a_seed_twice_is_refused(tmp_path: Path) -> None:
    first = write_run(tmp_path, "none", 0)
    again = write_run(tmp_path / "again", "none", 0)
    again = again.rename(again.with_name("none-again"))
    runs, _ = read_runs([first, again])
    with pytest.raises(UserError, match="one run for row none and seed 0"):
        require_alike(runs, [])


def test_a_wrappers_settings_are_said_of_the_rows_that_it_is_in(tmp_path: Path) -> None:
    wrapper = {"wrapper": {"error_feedback": {"_target_": "a.b.ErrorFeedback", "decay": 1.0}}}
    folders = [
        write_run(tmp_path, row, 0, settings=wrapper) for row in ("none", "static8", "dynamic_ef")
    ]
    runs = [read_run(folder) for folder in folders]
    key = "wrapper.error_feedback"
    assert used(runs, key) == "dynamic_ef: ErrorFeedback(decay=1)"
    assert used(runs[2:], key) == "ErrorFeedback(decay=1)"
    assert used(runs[:2], key) == "-"


def test_a_name_that_no_epoch_has_is_refused_with_the_names_there_are() -> None:
    run = Run("r", {}, {}, {}, epochs=pd.DataFrame({"epoch": [1], "train/loss": [0.5]}))
    assert run.last("train/loss") == 0.5
    with pytest.raises(UserError, match=r"^r: no test/loss in its epochs; there are epoch, train/"):
        run.last("test/loss")
