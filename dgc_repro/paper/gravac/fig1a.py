"""GraVAC's figure 1a: throughput against cluster size relative to ideal, modelled."""

from __future__ import annotations

import math
from collections.abc import Callable
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
TITLE = "GraVAC, figure 1a: throughput against cluster size"
in_percent = partial(percent, unit="")
WORDS = Template.read(__file__)


def share(workers: int, series: str = PER_STEP) -> str:
    """The quantity of a throughput."""
    return f"throughput over ideal, {series}, N = {workers}"


def sync(series: str) -> str:
    """The quantity of the communication of a step of all workers."""
    return f"communication {series}"


def _of(column: str, series: str = PER_STEP, workers: int = WORKERS) -> Callable[[Run], float]:
    """Reads a column of a run's line, NaN without such a line."""

    def read(run: Run) -> float:
        found = g.lines(run, series=series, workers=workers)[column]
        return float(found.iloc[0]) if len(found) else math.nan

    return read


def _panels(shown: Shown) -> list[Panel]:
    drawn = [
        g.by_model(shown.runs, "workers", "efficiency", series, dashes, series=series)
        for series, dashes in DASHES.items()
    ]
    return [panel("", *drawn, x="workers", y="throughput over ideal", log="xy", xticks=COUNTS)]


_scales = Check(share(WORKERS), LSTM, RESNET101, above=1.0, ratio=True)
page = Artifact(
    __file__,
    rows=g.LOOKS,
    quantities={
        COMPUTE: Quantity("ms", _of("compute_ms"), "modelled"),
        **{sync(one): Quantity("ms", _of("sync_ms", one), "modelled") for one in DASHES},
        **{f"{name} {OVER}": Relative(name, LSTM) for name in (COMPUTE, *map(sync, DASHES))},
        **{share(n, one): Quantity("", _of("efficiency", one, n)) for one in DASHES for n in COUNTS},
    },
    tables={
        "Throughput, % of ideal": (
            *(Column(f"N = {n}", share(n), in_percent) for n in COUNTS),
            Column("compute", f"{COMPUTE} {OVER}"),
            Column("communication", f"{sync(PER_STEP)} {OVER}"),
            Column(f"per tensor: N = {WORKERS}", share(WORKERS, PER_TENSOR), in_percent),
            Column("per tensor: communication", f"{sync(PER_TENSOR)} {OVER}"),
        )
    },
    claims=[WORDS.claim("lstm", _scales, assumed=g.ASSUMED, workers=WORKERS)],
    figures={"fig1a": drawing(TITLE, _panels, size=(5.6, 3.9), legend=2)},
    head=g.head,
    said=lambda shown: {"workers": WORKERS},
    alike=("scale.name", "study.networks", "study.workers", "study.latencies"),
    first="model",
    modelled=True,
)  # fmt: skip
