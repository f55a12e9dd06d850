"""Recipes: what dense training reaches on small, fast workloads, and how many minutes of a core it takes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pandas as pd

from dgc_repro.paper import facts, frame, panels
from dgc_repro.paper.artifact import BANDS, Artifact, Shown, drawing
from dgc_repro.paper.frame import Column, Quantity, pivot
from dgc_repro.paper.records import Run, require_alike

ROWS = ("low", "air", "fashion", "gpt", "char_lstm")
"""Recipes (conf/recipe), in order."""
LABELS = {
    "low": "CIFAR-10, recipe low",
    "air": "CIFAR-10, recipe air",
    "fashion": "Fashion-MNIST",
    "gpt": "GPT, characters",
    "char_lstm": "LSTM, characters",
}
"""In the figure."""
TEXTS = frozenset({"gpt", "char_lstm"})
"""Recipes for texts, which are measured by their loss in nats a token."""
ACCURACY, LOSS, MINUTES = "test accuracy", "test loss", "core-minutes"
METRICS = {ACCURACY: "test/accuracy_percent", LOSS: "test/loss"}
WORKLOAD = ("dataset", "model", "optimizer", "schedule", "train", "launch.workers", "launch.kind")


def core_minutes(run: Run) -> float:
    """User and system time of the whole run: start, reading, training, evaluation. NaN without a record."""
    return float(run.summary.get("time/cpu_seconds", math.nan)) / 60


def _quality(run: Run, name: str) -> float:
    """The number that a recipe is measured by; NaN for the other one."""
    is_its_own = (name == LOSS) == (run.row in TEXTS)
    return run.last(METRICS[name]) if is_its_own else math.nan


def numbers(runs: Sequence[Run]) -> pd.DataFrame:
    """The frame. Raises UserError if the runs of a recipe are not alike."""
    for row in ROWS:
        require_alike([run for run in runs if run.row == row], WORKLOAD)
    units = {ACCURACY: "%", LOSS: "nats"}
    quantities = {
        name: Quantity(unit, partial(_quality, name=name)) for name, unit in units.items()
    }
    return frame.measure(
        runs, {**quantities, MINUTES: Quantity("minutes", core_minutes, "measured")}
    )


def _table(shown: Shown) -> pd.DataFrame:
    own = {row: [run for run in shown.runs if run.row == row] for row in ROWS}
    own = {row: runs for row, runs in own.items() if runs}
    columns = [
        Column("test accuracy %", ACCURACY, 2),
        Column("test loss, nats a token", LOSS, 3),
        Column(MINUTES, MINUTES, 2),
    ]
    table = pivot(shown.frame, {row: row for row in own}, columns, "recipe")
    table.insert(1, "data", [facts.data_text(runs) for runs in own.values()])
    table.insert(2, "model", [facts.model_text(runs[0]) for runs in own.values()])
    lengths = [f"{run.setting('train.epochs')} x {facts.batch_of(run)}" for run, *_ in own.values()]
    table.insert(3, "epochs x global batch", lengths)
    return table.assign(n=[len(runs) for runs in own.values()])


def _figure(shown: Shown) -> list[panels.Panel]:
    """Quality by epoch, of images and of texts."""
    labels = {ACCURACY: "test accuracy (%)", LOSS: "test loss (nats a token)"}
    found = []
    for name, label in labels.items():
        if own := [run for run in shown.runs if (run.row in TEXTS) == (name == LOSS)]:
            looks = {
                row: replace(look, label=LABELS[row])
                for row, look in shown.looks.items()
                if row in {run.row for run in own}
            }
            curves = panels.curves(own, METRICS[name], looks, x="epoch")
            found.append(panels.panel("", curves, x="epoch", y=label))
    return found


page = Artifact(
    __file__,
    rows={row: row for row in ROWS},
    numbers=numbers,
    tables={"Recipes": _table},
    head=lambda shown: [("model", "see the table")],
    alike=("scale.name",),
    figures={
        "recipes": drawing(
            "What each recipe reaches with training without compression",
            _figure,
            BANDS,
            size=(6.4, 3.8),
            legend=5,
        )
    },
)
