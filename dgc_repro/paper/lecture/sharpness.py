"""Sharpness against batch size, of networks trained to the same cross-entropy of the training images.

Claim: Keskar, Mudigere, Nocedal, Smelyanskiy, Tang, "On large-batch training for deep learning:
generalization gap and sharp minima", 2016, arXiv:1609.04836. The measures are in
dgc_repro/study/sharpness.py. Of the learning rates of each batch size the one with the fewest steps
counts, in the mean over seeds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from dgc_repro.paper import panels
from dgc_repro.paper.artifact import BARS, Artifact, Shown, drawing, looks_of
from dgc_repro.paper.claims import Check
from dgc_repro.paper.frame import Column, longer, of, relative, seeds
from dgc_repro.paper.lecture import cross_entropy, first
from dgc_repro.paper.lecture.tuning import NAMES, RATE, STEPS, tried_of, tuned_of
from dgc_repro.paper.page import Template
from dgc_repro.paper.records import Run

WORDS = Template.read(__file__)
BATCHES = (8, 32, 128, 256)
ROWS = {f"cnn.b{batch}": f"batch size {batch}" for batch in BATCHES}
SMALLEST, LARGEST = f"cnn.b{BATCHES[0]}", f"cnn.b{BATCHES[-1]}"
SHARPNESS = {
    "sharpness_flatness": "worst-case sharpness",
    "sharpness_mag_flatness": "worst-case sharpness, magnitude-aware",
    "pac_bayes_flatness": "PAC-Bayes sharpness",
    "pac_bayes_mag_flatness": "PAC-Bayes sharpness, magnitude-aware",
}
"""The measures 1 / scale^2."""
GAP, TEST = "generalization gap", "test accuracy"
UNITS = {name: NAMES[name] for name in ("steps", "rate")} | {"gap": (GAP, "%"), "test": (TEST, "%")}
UNITS |= {column: (name, "") for column, name in SHARPNESS.items()}


def numbers(runs: Sequence[Run]) -> pd.DataFrame:
    """The frame: by batch size, steps and learning rate, and of each network that reached the cross-entropy
    its sharpness and gap."""
    measures = {name: f"generalization/{name}" for name in (*SHARPNESS, "accuracy_percent")}
    measures["test"] = "test/accuracy_percent"
    tried = tried_of(
        runs,
        **{name: lambda run, key=key: float(run.summary[key]) for name, key in measures.items()},
    )
    tried["gap"] = tried["accuracy_percent"] - tried["test"]
    tried.loc[~tried["steps"].map(math.isfinite), [*SHARPNESS, "test", "gap"]] = math.nan
    tuned = tuned_of(tried)
    return longer(tuned.assign(row="cnn.b" + tuned["setting"], setting=""), UNITS)


def _ratios(shown: Shown) -> list[panels.Panel]:
    """Sharpness relative to the smallest batch, by batch size."""
    lines = []
    for name, look in looks_of({name: name for name in SHARPNESS.values()}).items():
        share = relative(shown.frame, name, SMALLEST, name=name)
        values = {float(batch): of(share, name, f"cnn.b{batch}") for batch in BATCHES}
        lines.append(panels.series(values, **look.line))
    y = "sharpness / smallest batch's"
    return [panels.panel("", *lines, x="batch size", y=y, log="xy")]


page = Artifact(
    __file__,
    rows=ROWS,
    numbers=numbers,
    tables={
        "Sharpness": (
            *(seeds(STEPS), Column(RATE, RATE, first), Column("steps", STEPS, 0)),
            *(Column(name, name, 1) for name in (TEST, GAP)),
            *(Column(name, name) for name in SHARPNESS.values()),
        )
    },
    claims=(
        *(
            WORDS.claim(
                "sharpness", Check(label, LARGEST, SMALLEST, above=1, ratio=True), id=name,
                what=f"{label[0].upper()}{label[1:]}",
            )
            for name, label in SHARPNESS.items()
        ),
        WORDS.claim("gap", Check(GAP, LARGEST, SMALLEST)),
    ),
    figures={
        "sharpness": drawing(
            "Sharpness against batch size, at equal training cross-entropy",
            _ratios,
            BARS,
            size=(6.4, 4.4),
            legend=2,
        )
    },
    head=cross_entropy,
    alike=(
        *("scale.name", "dataset", "model", "stopping", "optimizer.momentum", "schedule"),
        "generalization",
    ),
)  # fmt: skip
