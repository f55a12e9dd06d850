"""Sharpness against batch size, of networks trained to the same cross-entropy of the training images.

Claim: Keskar, Mudigere, Nocedal, Smelyanskiy, Tang, "On large-batch training for deep learning:
generalization gap and sharp minima", 2016, arXiv:1609.04836. The measures are in
dgc_repro/study/sharpness.py. Of the learning rates of each batch size the one with the fewest steps
counts, in the mean over seeds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from dgc_repro.paper import facts, panels, plot
from dgc_repro.paper import frame as frames
from dgc_repro.paper.claims import Check
from dgc_repro.paper.frame import Column, pivot
from dgc_repro.paper.lecture.batch_size import (
    RATE,
    STEPS,
    batch_of,
    drawn,
    first,
    steps_of,
    tuned_of,
)
from dgc_repro.paper.page import Page, Section, Template, made
from dgc_repro.paper.records import Run, require_alike

WORDS = Template.read(__file__)
ALIKE = (
    *("scale.name", "dataset", "model", "stopping", "optimizer.momentum", "schedule"),
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
CLAIMS = (
    *(
        WORDS.claim(
            "sharpness", Check(label, LAST, FIRST, above=1, ratio=True), id=name,
            what=f"{label[0].upper()}{label[1:]}",
        )
        for name, label in SHARPNESS.items()
    ),
    WORDS.claim("gap", Check(GAP, LAST, FIRST)),
)  # fmt: skip


def page(runs: Sequence[Run], scale: str) -> Page:
    """The page of the finished runs of one scale. Raises UserError if they are not alike."""
    require_alike(runs, ALIKE)
    found = numbers(runs)
    columns = (
        frames.seeds(STEPS),
        Column("learning rate", RATE, first),
        Column("steps", STEPS, 0),
        Column(TEST, TEST, 1),
        Column("gap", GAP, 1),
        *(Column(name, name) for name in SHARPNESS.values()),
    )
    targets = facts.distinct(f"{run.setting('stopping.target'):g} nats" for run in runs)
    said = f"{facts.caption(runs, scale)}; mean over seeds, bars: standard deviation"
    title = "Sharpness and generalization gap against batch size, at equal training cross-entropy"
    return made(
        __file__, scale, runs, found, [Section("Sharpness", pivot(found, ROWS, columns, "batch size"))],
        CLAIMS, labels=ROWS, head=[("training cross-entropy to reach", targets)],
        figures={
            "sharpness": lambda: plot.figure(title, said, _panels(found), columns=2, legend=2)
        },
    )  # fmt: skip


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
    quantities = {"steps": (STEPS, "steps"), "rate": (RATE, ""), "reached": (REACHED, "runs")}
    quantities |= {"gap": (GAP, "%"), "test": (TEST, "%")}
    quantities |= {column: (name, "") for column, name in SHARPNESS.items()}
    return frames.longer(tuned_of(tried), quantities)


def _measures(run: Run) -> dict[str, float]:
    """Of a network that did not reach the cross-entropy, nothing."""
    summary, is_there = run.summary, math.isfinite(steps_of(run))
    found = {column: float(summary[f"generalization/{column}"]) for column in SHARPNESS}
    found["test"] = float(summary["test/accuracy_percent"])
    found["gap"] = float(summary["generalization/accuracy_percent"]) - found["test"]
    kept = found if is_there else dict.fromkeys(found, math.nan)
    return kept | {"reached": float(is_there)}


def _panels(found: pd.DataFrame) -> list[panels.Panel]:
    """Sharpness relative to the smallest batch, and the gap, by batch size."""
    rows = dict(zip(BATCHES, ROWS, strict=True))
    lines = []
    for place, name in enumerate(SHARPNESS.values()):
        share = frames.relative(found, name, FIRST, name=name)
        look: dict[str, Any] = {
            "color": plot.CYCLE[place],
            "marker": plot.MARKERS[place],
            "label": name,
        }
        lines.append(drawn(share, name, rows, **look))
    return [
        panels.panel(
            "Sharpness over that of the smallest batch", panels.rule("y", 1, color="#888888"), *lines,
            x="batch size", y="ratio", log="xy",
        ),
        panels.panel(
            "Generalization gap", drawn(found, GAP, rows, color=plot.BLACK, marker="o"),
            x="batch size", y="training less test accuracy (points)", log="x",
        ),
    ]  # fmt: skip
