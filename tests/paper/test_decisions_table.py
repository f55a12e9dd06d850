"""Decisions by step: from the lines that a run leaves to the table of a run."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from dgc_repro.errors import UserError
from dgc_repro.paper import decisions


def line(step: int, branch: str = "candidate", **more: Any) -> dict[str, Any]:
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


def written(folder: Path, lines: list[dict[str, Any]]) -> Path:
    path = folder / decisions.LINES_FILE
    path.write_text("".join(f"{json.dumps(one)}\n" for one in lines))
    return path


def test_the_factor_and_the_norm_are_those_of_what_was_sent(tmp_path: Path) -> None:
    branches = ["candidate", "theta_min", "dense"]
    path = written(tmp_path, [line(step, b) for step, b in enumerate(branches, start=1)])
    table = decisions.table_of(path)
    assert list(table["factor"]) == [40.0, 10.0, 1.0]
    assert list(table["norm_after"]) == pytest.approx([1.6, 1.8, 2.0])
    assert list(table["norm_before"]) == [2.0, 2.0, 2.0]
    assert table["raw_norms"].isna().all()


def test_a_time_stands_with_its_own_step(tmp_path: Path) -> None:
    table = decisions.table_of(written(tmp_path, [line(step) for step in range(1, 5)]))
    assert list(table["step"]) == [1, 2, 3, 4]
    # Step 1 is timed in the line of step 2; the last step's time is never told.
    assert list(table["seconds"][:3]) == [1.0, 1.5, 2.0]
    assert math.isnan(table["seconds"][3])
    assert table["throughput"][0] == 200.0


def test_sums_of_norms_are_there_if_the_policy_asked_for_them(tmp_path: Path) -> None:
    numbers = [4.0, 3.0, 2.0, 9.0, 8.0, 7.0]
    lines = [
        line(step, branch, energies=numbers)
        for step, branch in enumerate(("theta_min", "candidate", "dense"), 1)
    ]
    table = decisions.table_of(written(tmp_path, lines))
    assert list(table["raw_norms"]) == [9.0, 9.0, 9.0]
    assert list(table["sent_norms"][:2]) == [8.0, 7.0]
    assert math.isnan(table["sent_norms"][2])


def test_a_policy_that_only_watches_has_squares_and_no_branch(tmp_path: Path) -> None:
    told = {"timed_step": 0, "timed_own_square": 5.0, "timed_mean_square": 2.0}
    watched = [{"kind": "decision", "decision": 2, **{f"decision/{k}": v for k, v in told.items()}}]
    table = decisions.table_of(written(tmp_path, watched))
    assert list(table["step"]) == [1, 2]
    assert (table["own_square"][0], table["mean_square"][0]) == (5.0, 2.0)
    assert table["branch"].isna().all()


def test_a_long_run_is_thinned_to_evenly_spaced_steps(tmp_path: Path) -> None:
    path = written(tmp_path, [line(step) for step in range(1, 2501)])
    steps = list(decisions.table_of(path)["step"])
    assert steps == list(range(1, 2501, 3))
    assert len(decisions.table_of(path, most=10)) <= 10


def test_a_broken_line_is_named(tmp_path: Path) -> None:
    path = written(tmp_path, [line(1)])
    path.write_text(path.read_text() + '{"kind": "deci')
    with pytest.raises(UserError, match=r"decisions\.jsonl: line 2 is not a JSON object"):
        decisions.table_of(path)
