"""GraVAC's figure 3: throughput (a) and communication speedup (b) by compression factor, modelled.

A step sends all tensors' entries in one allgather. Three series differ in the time of compressing: none, that
of Table III (a V100), and that measured on this machine.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import pandas as pd

from dgc_repro.paper.artifact import Artifact, Shown, drawing
from dgc_repro.paper.claims import Check, Claim, Printed, within
from dgc_repro.paper.frame import Column, Quantity
from dgc_repro.paper.gravac import LSTM, RESNET101, VGG16, fig1a
from dgc_repro.paper.gravac import studies as g
from dgc_repro.paper.page import Template
from dgc_repro.paper.panels import Panel, panel, rule
from dgc_repro.paper.records import Run

NONE, STATED, MEASURED = "none", "stated", "measured"
SERIES = {NONE: "free", STATED: "as Table III (V100)", MEASURED: "measured (this CPU)"}
DASHES = {NONE: ":", STATED: "-", MEASURED: "--"}
THROUGHPUT = {series: f"throughput saturates, compressing {of}" for series, of in SERIES.items()}
COMMUNICATION = "communication saturates"
EARLIER = 500
"""Where the paper sees the throughput of two models saturate."""
REACHED = f"share of the largest factor's throughput at {EARLIER}x, compressing {SERIES[STATED]}"
PRINTED = Printed(
    "figure 3",
    {THROUGHPUT[STATED]: "x", COMMUNICATION: "x"},
    {RESNET101: (500, 500), VGG16: (500, 500), LSTM: (1000, 1000)},
)
"""Where the paper sees throughput and communication speedup saturate."""
SATURATED = 0.95
"""Saturated: this share of the value at the largest factor."""
COMPRESSING = "compute times, latencies and times of compressing"
"""Inputs of the modelled throughput that nobody has measured."""
GRID_STEP = 2.6
"""A little more than a step of the factors 10, 20, 50, ...: tolerance of a factor of saturation."""
WORDS = Template.read(__file__)
SAID = {"share": f"The smallest factor with {100 * SATURATED:.0f} % of the"}


def saturation(values: pd.Series) -> float:
    """The smallest factor with `SATURATED` of the value at the largest factor (``values``: by factor)."""
    values = values.sort_index()
    return float(values.index[values >= SATURATED * values.iloc[-1]][0])


def _saturates(column: str, series: str) -> Quantity:
    return Quantity(
        "x", lambda run: saturation(g.lines(run, compress=series).set_index("factor")[column])
    )


def _reached(run: Run) -> float:
    """The throughput at `EARLIER` over that at the largest factor; NaN where no larger factor was tried."""
    values = g.lines(run, compress=STATED).set_index("factor")["throughput"]
    last = values.index.max()
    return float(values.get(EARLIER, math.nan) / values[last]) if last > EARLIER else math.nan


def _claims() -> Iterator[Claim]:
    for name, quantity, assumed in (
        ("saturates", THROUGHPUT[STATED], COMPRESSING),
        ("communication", COMMUNICATION, "latencies of the network"),
    ):
        for model, look in g.LOOKS.items():
            at = PRINTED(model, quantity)
            check = within(Check(quantity, model), at, GRID_STEP)
            said = {"model": look.label, "at": at, **SAID}
            yield WORDS.claim(name, check, of=model, ours=True, assumed=assumed, **said)
    for model in (RESNET101, VGG16):
        later = Check(REACHED, model, LSTM, above=1.0, ratio=True)
        yield WORDS.claim(model, later, of="lstm.after", assumed=COMPRESSING)


def _panels(shown: Shown) -> list[Panel]:
    """Vertical lines: where the paper sees saturation."""

    def one(name: str, column: str, *series: str) -> Panel:
        drawn = [
            g.by_model(shown.runs, "factor", column, SERIES[s], DASHES[s], compress=s)
            for s in series
        ]
        marks = [
            rule("x", row[0], color=g.LOOKS[model].colour, alpha=0.6)
            for model, row in PRINTED.rows.items()
        ]
        y = f"{column}, of that at 10x"
        return panel(name, *drawn, *marks, x="compression factor", y=y, log="xy")

    return [
        one("a: throughput", "throughput", *SERIES),
        one("b: communication", "communication", STATED),
    ]


page = Artifact(
    __file__,
    rows=g.LOOKS,
    quantities={
        COMMUNICATION: _saturates("communication", STATED),
        **{name: _saturates("throughput", series) for series, name in THROUGHPUT.items()},
        REACHED: Quantity("", _reached),
    },
    tables={
        "Factors of saturation": [
            Column(name, name, 0) for name in (COMMUNICATION, *THROUGHPUT.values())
        ]
    },
    claims=tuple(_claims()),
    printed=PRINTED,
    figures={
        "fig3": drawing(
            "GraVAC, figure 3: throughput and communication by compression factor", _panels,
            "All times are modelled. Vertical lines are the paper's points of saturation. The time of "
            "compressing is zero (free), that of Table III on a V100, or that measured on this CPU; the "
            "communication is the same with each.",
            size=(4.7, 4.0), legend=3,
        )
    },
    choices=fig1a.WORDS.choices,
    head=g.head,
    said=lambda shown: SAID,
    alike=("scale.name", *map("study.{}".format, ("networks", "workers", "factors", "repeats", "steps"))),
    first="model",
    modelled=True,
)  # fmt: skip
