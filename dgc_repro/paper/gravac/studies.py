"""What the pages of GraVAC's modelled figures share: lines of a study, curves, the head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from dgc_repro.paper import facts, panels, plot
from dgc_repro.paper.artifact import Shown, built
from dgc_repro.paper.gravac import LSTM, MODELS, RESNET101, VGG16
from dgc_repro.paper.plot import Look
from dgc_repro.paper.records import Run

ASSUMED = "compute times and latencies"
"""Nobody has measured these inputs of modelled seconds: verdicts hold given them."""
LOOKS = {
    RESNET101: Look(MODELS[RESNET101], plot.BLUE, "o"),
    VGG16: Look(MODELS[VGG16], plot.GREEN, "s"),
    LSTM: Look(MODELS[LSTM], plot.ORANGE, "^"),
}


def lines(run: Run, **where: Any) -> pd.DataFrame:
    """The lines of a run whose columns have these values, at the network's own latency: the first line's."""
    chosen = run.lines["latency_us"] == run.lines["latency_us"].iloc[0]
    for column, value in where.items():
        chosen &= run.lines[column] == value
    found: pd.DataFrame = run.lines[chosen]
    return found


def by_model(
    runs: Sequence[Run], x: str, y: str, label: str, dashes: str, **where: Any
) -> panels.Draw:
    """A line for each model through the column ``y`` of its `lines` by ``x``."""

    def draw(axes: Axes) -> None:
        for run in runs:
            found, look = lines(run, **where), LOOKS[run.row]
            look = replace(look, label=f"{look.label}, {label}", dashes=dashes)
            axes.plot(found[x], found[y], **look.line)

    return draw


def head(shown: Shown) -> list[tuple[str, str]]:
    """The network with its source, and the assumed compute times, in place of the facts of trained runs."""
    computes = (f"{MODELS[r.row]} {r.setting('study.compute_ms', 0):g} ms" for r in shown.runs)
    nodes = (run.setting("study.networks", {}).items() for run in shown.runs)
    network = facts.distinct(f"{name}: {node['source']}" for one in nodes for name, node in one)
    workers = facts.distinct(facts.short(run.setting("study.workers")) for run in shown.runs)
    seconds = f"communication modelled; compute of a step assumed: {', '.join(computes)}"
    said = {"workers": f"{workers}, modelled", "network": network, "seconds": seconds}
    return list((dict(built(shown)) | said).items())
