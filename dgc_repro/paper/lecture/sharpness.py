"""Sharpness against batch size, of networks trained to the same cross-entropy of the training images.

Claim: Keskar, Mudigere, Nocedal, Smelyanskiy, Tang, "On large-batch training for deep learning:
generalization gap and sharp minima", 2016, arXiv:1609.04836. The measures are in
dgc_repro/generalization/sharpness.py. Of the learning rates of each batch size the one with the fewest steps
counts, in the mean over seeds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dgc_repro.paper import facts, plot
from dgc_repro.paper import frame as frames
from dgc_repro.paper.claims import Check, Claim
from dgc_repro.paper.frame import Column, pivot
from dgc_repro.paper.lecture.batch_size import RATE, STEPS, batch_of, steps_of, tuned_of
from dgc_repro.paper.page import Page, Section, made
from dgc_repro.paper.records import Run, require_alike

ALIKE = (
    "scale.name",
    "dataset",
    "model",
    "stopping",
    "optimizer.momentum",
    "schedule",
    "generalization",
)
BATCHES = (8, 32, 128, 256)
ROWS = {f"cnn.b{batch}": f"batch size {batch}" for batch in BATCHES}
FIRST, LAST = f"cnn.b{BATCHES[0]}", f"cnn.b{BATCHES[-1]}"
SHARPNESS = {
    "sharpness_flatness": "worst-case sharpness",
    "sharpness_mag_flatness": "worst-case sharpness, magnitude-aware",
    "pac_bayes_flatness": "PAC-Bayes sharpness",
    "pac_bayes_mag_flatness": "PAC-Bayes sharpness, magnitude-aware",
}
"""The measures 1 / scale^2."""
GAP, TEST, REACHED = "generalization gap", "test accuracy", "reach the cross-entropy"
_source = "sharpness against batch size; Keskar et al., 2016"

CLAIMS = (
    *(
        Claim(
            name, f"{label[0].upper()}{label[1:]} grows with the batch size.", _source,
            (Check(label, LAST, FIRST, above=1, ratio=True),),
            f"Of the largest batch over that of the smallest ({BATCHES[-1]} and {BATCHES[0]}).",
        )
        for name, label in SHARPNESS.items()
    ),
    Claim(
        "gap", "The generalization gap grows with the batch size.", _source, (Check(GAP, LAST, FIRST),),
        f"At the largest batch less that at the smallest ({BATCHES[-1]} and {BATCHES[0]}).",
    ),
)  # fmt: skip


def page(runs: Sequence[Run], scale: str) -> Page:
    """The page of the finished runs of one scale. Raises UserError if they are not alike."""
    require_alike(runs, ALIKE)
    found = numbers(runs)
    return made(
        __file__,
        scale,
        runs,
        found,
        _sections(found),
        CLAIMS,
        labels=ROWS,
        head=[
            (
                "training cross-entropy to reach",
                facts.distinct(f"{run.setting('stopping.target'):g} nats" for run in runs),
            )
        ],
        figures={"sharpness": lambda: _figure(found, runs, scale)},
    )


def numbers(runs: Sequence[Run]) -> pd.DataFrame:
    """The frame: by batch size, steps and learning rate, and of each network that reached the cross-entropy
    its sharpness and gap."""
    tried = pd.DataFrame(
        {
            "row": f"cnn.b{batch_of(run)}", "batch": batch_of(run), "seed": run.seed,
            "rate": float(run.setting("optimizer.lr")), "steps": steps_of(run), **_measures(run),
        }
        for run in runs
    )  # fmt: skip
    tuned = tuned_of(tried)
    quantities = {"steps": (STEPS, "steps"), "rate": (RATE, ""), "reached": (REACHED, "runs")}
    quantities |= {"gap": (GAP, "%"), "test": (TEST, "%")}
    quantities |= {column: (name, "") for column, name in SHARPNESS.items()}
    return frames.longer(tuned, quantities)


def _measures(run: Run) -> dict[str, float]:
    """Of a network that did not reach the cross-entropy, nothing."""
    summary, is_there = run.summary, math.isfinite(steps_of(run))
    found = {column: float(summary[f"generalization/{column}"]) for column in SHARPNESS}
    found["test"] = float(summary["test/accuracy_percent"])
    found["gap"] = float(summary["generalization/accuracy_percent"]) - found["test"]
    kept = found if is_there else dict.fromkeys(found, math.nan)
    return kept | {"reached": float(is_there)}


def _sections(found: pd.DataFrame) -> list[Section]:
    columns = (
        frames.seeds(STEPS),
        Column("learning rate", RATE, lambda values: f"{values[0]:g}" if values else "-"),
        Column("steps", STEPS, 0),
        Column(TEST, TEST, 1),
        Column("gap", GAP, 1),
        *(Column(name, name) for name in SHARPNESS.values()),
    )
    return [Section("Sharpness", pivot(found, ROWS, columns, "batch size"))]


def _figure(found: pd.DataFrame, runs: Sequence[Run], scale: str) -> Figure:
    """Sharpness relative to the smallest batch, and the gap, by batch size."""
    panels: plot.Panels = [
        ("Sharpness over that of the smallest batch", partial(_sharpness, found)),
        ("Generalization gap", partial(_gap, found)),
    ]
    said = f"{facts.caption(runs, scale)}; mean over seeds, bars: standard deviation"
    title = "Sharpness and generalization gap against batch size, at equal training cross-entropy"
    return plot.figure(title, said, panels, columns=2, legend=2)


def _sharpness(found: pd.DataFrame, axes: Axes) -> None:
    axes.axhline(1, color="#888888", linewidth=0.8)
    for (name, colour), marker in zip(
        zip(SHARPNESS.values(), plot.CYCLE, strict=False), plot.MARKERS, strict=False
    ):
        share = frames.relative(found, name, FIRST, name=name)
        _points(axes, share, name, color=colour, marker=marker, label=name)
    plot.name_axes(axes, "batch size", "ratio", "xy")


def _gap(found: pd.DataFrame, axes: Axes) -> None:
    _points(axes, found, GAP, color=plot.BLACK, marker="o")
    plot.name_axes(axes, "batch size", "training less test accuracy (points)", "x")


def _points(axes: Axes, found: pd.DataFrame, name: str, **line: object) -> None:
    """Mean and standard deviation over seeds at each batch size."""
    values = [
        (batch, frames.of(found, name, row)) for row, batch in zip(ROWS, BATCHES, strict=True)
    ]
    kept = [(batch, v) for batch, v in values if v]
    if kept:
        spread = [np.std(v, ddof=1) if len(v) > 1 else 0.0 for _, v in kept]
        axes.errorbar([b for b, _ in kept], [np.mean(v) for _, v in kept], yerr=spread, **line)  # type: ignore[arg-type]
