"""Recipes: what dense training reaches on small, fast workloads, and how many minutes of a core it takes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

from matplotlib.figure import Figure

from dgc_repro.errors import UserError
from dgc_repro.paper import facts, frame, panels, plot
from dgc_repro.paper.frame import Column, Quantity, pivot
from dgc_repro.paper.page import Page, Section, made
from dgc_repro.paper.records import Run, of_rows, require_alike

ROWS = ("low", "air", "fashion", "gpt", "char_lstm")
"""Recipes (conf/recipe), in order."""
TEXTS = frozenset({"gpt", "char_lstm"})
"""Recipes for texts, which are measured by their loss in nats a token."""
ACCURACY, LOSS, MINUTES = "test accuracy", "test loss", "core-minutes"
METRICS = {ACCURACY: "test/accuracy_percent", LOSS: "test/loss"}
WORKLOAD = ("dataset", "model", "optimizer", "schedule", "train", "launch.workers", "launch.kind")


def page(runs: Sequence[Run], scale: str) -> Page:
    """The page of the finished runs of one scale. Raises UserError if the runs of a recipe are not alike."""
    rows = {row: row for row in ROWS if any(run.row == row for run in runs)}
    if not rows:
        raise UserError(f"experiment.row: one of {', '.join(ROWS)}, got no finished run of them")
    runs = of_rows(runs, rows)
    require_alike(runs, ("scale.name",))
    own = {row: [run for run in runs if run.row == row] for row in rows}
    for row in rows:
        require_alike(own[row], WORKLOAD)
    quantities = {
        ACCURACY: Quantity("%", partial(_quality, name=ACCURACY)),
        LOSS: Quantity("nats", partial(_quality, name=LOSS)),
        MINUTES: Quantity("minutes", core_minutes, "measured"),
    }
    found = frame.measure(runs, quantities)
    columns = [
        Column("test accuracy %", ACCURACY, 2),
        Column("test loss, nats a token", LOSS, 3),
        Column(MINUTES, MINUTES, 2),
    ]
    table = pivot(found, rows, columns, "recipe").assign(n=[len(own[row]) for row in rows])
    words: dict[str, Callable[[Sequence[Run]], str]] = {
        "data": facts.data_text,
        "model": lambda of: facts.model_text(of[0]),
        "epochs x global batch": lambda of: _length(of[0]),
    }
    for place, (name, text) in enumerate(words.items(), start=1):
        table.insert(place, name, [text(own[row]) for row in rows])
    return made(
        __file__, scale, runs, found, [Section("Recipes", table)], head=[("model", "see the table")],
        figures={"recipes": partial(_curves, runs, scale)},
    )  # fmt: skip


def core_minutes(run: Run) -> float:
    """User and system time of the whole run: start, reading, training, evaluation. NaN without a record."""
    return float(run.summary.get("time/cpu_seconds", math.nan)) / 60


def _quality(run: Run, name: str) -> float:
    """The number that a recipe is measured by; NaN for the other one."""
    is_its_own = (name == LOSS) == (run.row in TEXTS)
    return run.last(METRICS[name]) if is_its_own else math.nan


def _length(run: Run) -> str:
    keys = ("train.batch_size", "train.accumulate", "launch.workers")
    batch = math.prod(int(run.setting(key)) for key in keys)
    return f"{run.setting('train.epochs')} x {batch}"


def _curves(runs: Sequence[Run], scale: str) -> Figure:
    """Quality by epoch, of images and of texts."""
    shown = [row for row in ROWS if any(run.row == row for run in runs)]
    looks = {
        row: plot.Look(row, colour, marker)
        for row, colour, marker in zip(shown, plot.CYCLE, plot.MARKERS, strict=False)
    }

    shown_panels = []
    for name, label, of_texts in (
        (ACCURACY, "test accuracy (%)", False),
        (LOSS, "test loss (nats a token)", True),
    ):
        if own := {row: looks[row] for row in shown if (row in TEXTS) == of_texts}:
            curves = panels.curves(runs, METRICS[name], own, x="epoch")
            shown_panels.append(panels.panel("", curves, x="epoch", y=label))
    caption = facts.caption(runs, scale)
    return plot.figure("Recipes", caption, shown_panels, size=(6.4, 3.8), legend=5)
