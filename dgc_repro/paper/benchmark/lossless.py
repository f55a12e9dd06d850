"""Lossless coders on gradients: bits a value under zstd, and the bound of an ANS coder of order 0."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from dgc_repro.paper import facts
from dgc_repro.paper.artifact import Artifact, Rows, Shown
from dgc_repro.paper.frame import Column, longer, study_of
from dgc_repro.paper.records import Run

WORKLOADS = {"low": "images", "gpt": "GPT"}
FORMS = ("float32", "bf16", "bf16 exponent", "8 bits", "4 bits", "top-k", "top-k places, int32")
ROWS = {f"{row}, {form}": f"{name}: {form}" for row, name in WORKLOADS.items() for form in FORMS}
CODERS = ("none", "zstd 1", "zstd 19", "planes, zstd 1", "planes, zstd 19", "bound")
MEAN = ""
"""The setting of the mean over the steps; the other settings are steps."""


def numbers(runs: Sequence[Run]) -> pd.DataFrame:
    """The frame: a quantity is a coder."""
    table = study_of(runs)
    table = table.assign(
        row=table["of"] + ", " + table["form"], setting="step " + table["step"].astype(str)
    )
    table = pd.concat([table, table.assign(setting=MEAN)])
    keys = ["row", "setting", "seed"]
    wide = table.pivot_table(index=keys, columns="coder", values="bits", sort=False).reset_index()
    found: pd.DataFrame = longer(wide, {coder: (coder, "bits a value") for coder in CODERS})
    return found.dropna(subset=["value"])


def _said(shown: Shown) -> dict[str, str]:
    """Numbers of the first sentence, means over steps and seeds."""
    frame = shown.frame[shown.frame["setting"] == MEAN]
    mean = frame.groupby(["row", "quantity"])["value"].mean()
    said = {
        f"{row}_{name}": f"{mean.get((f'{row}, {form}', coder), float('nan')):.2f}"
        for row in WORKLOADS
        for name, (form, coder) in {
            "raw": ("bf16", "zstd 19"),
            "bf16": ("bf16", "planes, zstd 19"),
            "bound": ("bf16", "bound"),
            "exponent": ("bf16 exponent", "bound"),
            "float32": ("float32", "planes, zstd 19"),
            "codes8": ("8 bits", "zstd 19"),
            "codes4": ("4 bits", "zstd 19"),
            "sent8": ("8 bits", "none"),
            "sent4": ("4 bits", "none"),
        }.items()
    }
    steps = sorted({int(step) for run in shown.runs for step in run.lines["step"]})
    said["steps"] = ", ".join(map(str, steps))
    said["n"] = str(len({run.seed for run in shown.runs}))
    return said | {"scale": facts.scale_text(shown.scale)}


page = Artifact(
    __file__,
    rows=ROWS,
    numbers=numbers,
    tables={
        "Bits a value": Rows(ROWS, [Column(name, name, 2) for name in CODERS], "what is coded")
    },
    said=_said,
    head=lambda shown: [
        ("model", facts.distinct(facts.model_text(run) for run in shown.runs)),
        ("seconds", ""),  # none are told
    ],
    alike=(),
)
