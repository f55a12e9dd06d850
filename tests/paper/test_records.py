"""Reading a run's record back: what is skipped, what is refused, and in which words."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from synthetic import write_run

from dgc_repro.errors import UserError
from dgc_repro.paper.decisions import DECISIONS_FILE, decisions_of
from dgc_repro.paper.facts import used
from dgc_repro.paper.records import Run, counted_line, read_run, read_runs, require_alike


def test_an_epoch_written_twice_by_a_resumed_run_counts_once_and_the_later_one(
    tmp_path: Path,
) -> None:
    folder = write_run(tmp_path, "none", 0)
    path = folder / "metrics.jsonl"
    second = path.read_text().splitlines()[2]
    path.write_text(path.read_text() + second.replace('"lr": 0.1', '"lr": 0.7') + "\n")
    (folder / "policy.csv").write_text("")  # no error
    run = read_run(folder)
    assert list(run.epochs["epoch"]) == list(range(1, 10))
    assert run.epochs["lr"][1] == 0.7
    assert run.trace.empty
    assert (run.setting("launch.workers"), run.setting("no.such.key")) == (2, None)


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
        (DECISIONS_FILE, '{"decision": 1}\n{"deci', "decisions.jsonl: line 2 is not a JSON object"),
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


def test_rows_of_unlike_lengths_are_refused_with_the_key_and_both_runs(tmp_path: Path) -> None:
    lengths = {"none": 9, "static8": 4}
    runs = [read_run(write_run(tmp_path, row, 0, epochs=n)) for row, n in lengths.items()]
    with pytest.raises(UserError, match="^train.epochs: .*9 in none-seed0, 4 in static8-seed0"):
        require_alike(runs, ["train.epochs"])


def test_the_folder_of_the_data_and_the_order_of_keys_may_differ(tmp_path: Path) -> None:
    runs = [read_run(write_run(tmp_path, "none", seed)) for seed in (0, 1)]
    assert runs[0].setting("dataset.root") != runs[1].setting("dataset.root")
    runs[1].config["model"] = dict(reversed(runs[1].config["model"].items()))
    require_alike(runs, ["dataset", "model"])


def test_a_row_with_a_seed_twice_is_refused(tmp_path: Path) -> None:
    runs = [read_run(write_run(tmp_path / place, "none", 0)) for place in ("one", "another")]
    with pytest.raises(UserError, match="one run for row none and seed 0"):
        require_alike(runs, [])


def test_a_wrappers_settings_are_said_of_the_rows_that_it_is_in(tmp_path: Path) -> None:
    wrapper = {"wrapper": {"error_feedback": {"_target_": "a.b.ErrorFeedback", "decay": 1.0}}}
    rows = ("none", "static8", "dynamic_ef")
    runs = [read_run(write_run(tmp_path, row, 0, settings=wrapper)) for row in rows]
    key = "wrapper.error_feedback"
    assert used(runs, key) == "dynamic_ef: ErrorFeedback(decay=1)"
    assert used(runs[2:], key) == "ErrorFeedback(decay=1)"
    assert used(runs[:2], key) == "-"


def test_a_name_that_no_epoch_has_is_refused_with_the_names_there_are() -> None:
    run = Run("r", {}, {}, {}, epochs=pd.DataFrame({"epoch": [1], "train/loss": [0.5]}))
    assert run.last("train/loss") == 0.5
    with pytest.raises(UserError, match=r"^r: no test/loss in its epochs; there are epoch, train/"):
        run.last("test/loss")


def test_the_line_of_a_run_has_interface_and_ledger(tmp_path: Path) -> None:
    assert counted_line(tmp_path) is None
    sent = {"net/tx_bytes": 1.01e6, "net/expected_tx_bytes": 1e6, "comm/total_wire_bytes": 9e5}
    (tmp_path / "summary.json").write_text(json.dumps(sent))
    line = "network: 1.01 MB sent a worker by its interface, 1 MB by the ledger with headers"
    assert counted_line(tmp_path) == f"{line} (+1.00 %; 900 kB without)"


# -- decisions by step


def decision(step: int, branch: str = "candidate", **more: Any) -> dict[str, Any]:
    """A line of decisions.jsonl as the trainer writes it."""
    told = {
        "branch": branch,
        "rung": 2,
        "theta_min": 10.0,
        "candidate": 40.0,
        "gain_theta_min": 0.9,
        "gain_candidate": 0.8,
        "gain": {"candidate": 0.8, "theta_min": 0.9}.get(branch, 1.0),
        "energies": [4.0, 3.24, 2.56],
        **more,
    }
    if step > 1:
        told |= {"timed_step": step - 2, "timed_seconds": 0.5 * step, "timed_samples": 128.0}
        told |= {"timed_throughput": 100.0 * step}
    found = {f"decision/{key}": value for key, value in told.items() if value is not None}
    return {"kind": "decision", "decision": step, **found}


def read_back(folder: Path, lines: Iterable[dict[str, Any]]) -> pd.DataFrame:
    (folder / DECISIONS_FILE).write_text("".join(f"{json.dumps(one)}\n" for one in lines))
    return decisions_of(folder)


def test_the_factor_and_the_norm_are_those_of_what_was_sent(tmp_path: Path) -> None:
    branches = ["candidate", "theta_min", "dense"]
    table = read_back(tmp_path, (decision(step, b) for step, b in enumerate(branches, start=1)))
    assert list(table["factor"]) == [40.0, 10.0, 1.0]
    assert list(table["norm_after"]) == pytest.approx([1.6, 1.8, 2.0])
    assert list(table["norm_before"]) == [2.0, 2.0, 2.0]
    assert table["raw_norms"].isna().all()


def test_a_time_stands_with_its_own_step(tmp_path: Path) -> None:
    table = read_back(tmp_path, map(decision, range(1, 5)))
    assert list(table["step"]) == [1, 2, 3, 4]
    # Step 1 is timed in the line of step 2; the last step's time is never told.
    assert list(table["seconds"][:3]) == [1.0, 1.5, 2.0]
    assert math.isnan(table["seconds"][3])
    assert table["throughput"][0] == 200.0


def test_sums_of_norms_are_there_if_the_policy_asked_for_them(tmp_path: Path) -> None:
    numbers = [4.0, 3.0, 2.0, 9.0, 8.0, 7.0]
    lines = [
        decision(step, branch, energies=numbers)
        for step, branch in enumerate(("theta_min", "candidate", "dense"), 1)
    ]
    table = read_back(tmp_path, lines)
    assert list(table["raw_norms"]) == [9.0, 9.0, 9.0]
    assert list(table["sent_norms"][:2]) == [8.0, 7.0]
    assert math.isnan(table["sent_norms"][2])


def test_a_policy_that_only_watches_has_squares_and_no_branch(tmp_path: Path) -> None:
    told = {"timed_step": 0, "timed_own_square": 5.0, "timed_mean_square": 2.0}
    watched = [{"kind": "decision", "decision": 2, **{f"decision/{k}": v for k, v in told.items()}}]
    table = read_back(tmp_path, watched)
    assert list(table["step"]) == [1, 2]
    assert (table["own_square"][0], table["mean_square"][0]) == (5.0, 2.0)
    assert table["branch"].isna().all()


def test_a_long_run_is_thinned_to_evenly_spaced_steps(tmp_path: Path) -> None:
    table = read_back(tmp_path, map(decision, range(1, 2501)))
    assert list(table["step"]) == list(range(1, 2501, 3))
