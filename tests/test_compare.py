"""`compare`: which runs are one line, and what the x axis of its figure shows."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from matplotlib.figure import Figure

from dgc_repro import compare
from dgc_repro.paper import plot
from dgc_repro.results import Frames


def lines(*runs: dict[str, object], paper: str = "dynamic") -> dict[str, int]:
    """The lines of some runs, with their numbers of runs."""
    numbers = dict.fromkeys(("comm/floats", "comm/payload_bytes", "comm/wire_bytes"), 1.0)
    usual = {
        "run": "table1-dense-s0-0a1b2c3d", "row": "dense", "paper": paper, "seed": 0,
        "compressor": "Dense", "compressor._target_": "x.dense.Dense",
        "schedule._target_": "x.schedule.Constant", "dataset._target_": "x.digits.Digits",
        "test/accuracy_percent": 90.0, "time/train_seconds": 1.0, **numbers,
    }  # fmt: skip
    frame = pd.DataFrame([usual | run for run in runs])
    table = compare.compared(Frames(frame, pd.DataFrame(), pd.DataFrame()))
    return {str(name): len(rows) for name, rows in table.groupby("settings")}


def test_runs_of_other_components_are_other_lines() -> None:
    schedules = [{"schedule._target_": f"x.schedule.{name}"} for name in ("Constant", "Cosine")]
    expected = {"Dense schedule=Constant": 2, "Dense schedule=Cosine": 1}
    assert lines(*schedules, {"seed": 1}) == expected
    data = [{"dataset._target_": f"x.{name.lower()}.{name}"} for name in ("Cifar10", "Cifar100")]
    assert lines(*data) == {"Dense dataset=Cifar10": 1, "Dense dataset=Cifar100": 1}
    assert lines({}, {"dataset._target_": None, "seed": 1}) == {"Dense": 2}  # an older record
    other = {"compressor": "TopK", "compressor._target_": "x.topk.TopK"}
    assert lines({}, other) == {"Dense": 1, "TopK": 1}


@pytest.mark.parametrize("paper", ["dynamic", "none"])
def test_two_runs_of_one_seed_are_no_two_seeds(paper: str) -> None:
    again = {"run": "table1-dense-s0-ffffffff", "test/accuracy_percent": 80.0}
    name = "Dense" if paper == "dynamic" else "dense"
    assert lines({}, again, {"seed": 1}, paper=paper) == {
        f"{name} 0a1b2c3d": 1,
        f"{name} ffffffff": 1,
        name: 1,
    }


@pytest.mark.parametrize(
    ("payloads", "scale", "least_span"),
    [((1.0e6, 1.006e6), "linear", 1.99), ((1e6, 1e8), "log", 100)],
)
def test_nearly_equal_bytes_are_drawn_side_by_side_in_mb(
    payloads: tuple[float, float],
    scale: str,
    least_span: float,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    figures: list[Figure] = []
    monkeypatch.setattr(plot, "save", lambda figure, *_: figures.append(figure))
    numbers = {"quality": (90.0, 91.0), "payload_bytes": payloads}
    table = pd.DataFrame(
        {"settings": ("topk", "blocks"), "metric": "test/accuracy_percent", **numbers}
    )
    compare.draw(table, "payload_bytes", tmp_path)
    (axes,) = figures[0].axes
    low, high = axes.get_xlim()
    assert low < 1 < payloads[1] / 1e6 < high  # MB
    assert high / low > least_span
    assert (axes.get_xscale(), axes.get_xlabel()) == (scale, "payload of one worker (MB)")
