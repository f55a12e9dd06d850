"""GraVAC's figure 1a: throughput against cluster size relative to ideal, modelled."""

from __future__ import annotations

import math
from functools import partial

from dgc_repro.paper.artifact import Artifact, Shown, drawing
from dgc_repro.paper.claims import Check
from dgc_repro.paper.frame import Column, Quantity, Relative, percent
from dgc_repro.paper.gravac import LSTM, RESNET101, WORKERS
from dgc_repro.paper.gravac import studies as g
from dgc_repro.paper.page import Template
from dgc_repro.paper.panels import Panel, panel
from dgc_repro.paper.records import Run

PER_STEP, PER_TENSOR = "per step", "per tensor"
DASHES = {PER_STEP: "-", PER_TENSOR: ":"}
COUNTS = (1, 2, 4, 8, 16, WORKERS)
COMPUTE, OVER = "compute of a step", "times the LSTM's"
SYNC = {series: f"communication {series}" for series in DASHES}
SHARES = {
    (n, series): f"throughput over ideal, {series}, N = {n}" for series in DASHES for n in COUNTS
}
in_percent = partial(percent, unit="")
WORDS = Template.read(__file__)


def _of(column: str, unit: str, series: str = PER_STEP, workers: int = WORKERS) -> Quantity:
    """A column of a run's line, NaN without such a line."""

    def read(run: Run) -> float:
        found = g.lines(run, series=series, workers=workers)[column]
        return float(found.iloc[0]) if len(found) else math.nan

    return Quantity(unit, read, "modelled" if unit else "")


def _panels(shown: Shown) -> list[Panel]:
    drawn = [
        g.by_model(shown.runs, "workers", "efficiency", series, dashes, series=series)
        for series, dashes in DASHES.items()
    ]
    return [panel("", *drawn, x="workers", y="throughput over ideal", log="xy", xticks=COUNTS)]


_scales = Check(SHARES[WORKERS, PER_STEP], LSTM, RESNET101, above=1.0, ratio=True)
page = Artifact(
    __file__,
    rows=g.LOOKS,
    quantities={
        COMPUTE: _of("compute_ms", "ms"),
        **{name: _of("sync_ms", "ms", series) for series, name in SYNC.items()},
        **{f"{name} {OVER}": Relative(name, LSTM) for name in (COMPUTE, *SYNC.values())},
        **{name: _of("efficiency", "", series, n) for (n, series), name in SHARES.items()},
    },
    tables={
        "Throughput, % of ideal": (
            *(Column(f"N = {n}", SHARES[n, PER_STEP], in_percent) for n in COUNTS),
            Column("compute", f"{COMPUTE} {OVER}"),
            Column("communication", f"{SYNC[PER_STEP]} {OVER}"),
            Column(f"per tensor: N = {WORKERS}", SHARES[WORKERS, PER_TENSOR], in_percent),
            Column("per tensor: communication", f"{SYNC[PER_TENSOR]} {OVER}"),
        )
    },
    claims=[WORDS.claim("lstm", _scales, assumed=g.ASSUMED, workers=WORKERS)],
    figures={
        "fig1a": drawing(
            "GraVAC, figure 1a: throughput against cluster size",
            _panels,
            "Throughput is modelled, over N times that of one worker. Solid lines have one allreduce of all "
            "tensors a step, dotted lines one for each tensor.",
            size=(6.4, 4.2),
            legend=2,
        )
    },
    head=g.head,
    said=lambda shown: {"workers": WORKERS},
    alike=("scale.name", "study.networks", "study.workers", "study.latencies"),
    first="model",
    modelled=True,
)
