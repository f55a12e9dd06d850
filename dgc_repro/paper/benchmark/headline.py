"""The README's picture: a few named settings on one workload, loss of quality against bytes in one panel.

``headline`` of an artifact in conf/paper/benchmark.yaml lists the settings.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dgc_repro.errors import UserError
from dgc_repro.paper import panels, plot
from dgc_repro.paper.benchmark.classes import Shown
from dgc_repro.paper.benchmark.workloads import artifacts, workloads

SIZE = (7.6, 4.6)
COLOURS = (plot.BLACK, plot.PURPLE, plot.BLUE, plot.ORANGE, plot.GREEN, plot.YELLOW, plot.SKY)
"""Of the families, in order: black for the first one, dense training's."""
STEP_ASIDE = 1.04
"""Smallest ratio of the bytes of two points as drawn, so that their bars do not cover each other."""
TICKS = (1, 2, 5, 10, 20, 50, 100, 200)
"""Of the y axis, in margins; it is linear up to two margins."""


class Headline(NamedTuple):
    """A workload, and names and colours of its settings."""

    workload: str
    names: dict[str, str]
    colours: dict[str, str]


class Point(NamedTuple):
    """A setting: how many times fewer bytes than dense training, and its loss."""

    times: float
    loss: Shown


def stated(present: Collection[str]) -> Headline | None:
    """The headline of the first artifact whose headline's workload is present; None for none."""
    for node in artifacts():
        own = node.get("headline", {})
        if own.get("workload") in present:
            families = own["families"].values()
            names = {key: name for settings in families for key, name in settings.items()}
            coloured = zip(families, COLOURS, strict=False)
            colours = {key: colour for settings, colour in coloured for key in settings}
            return Headline(own["workload"], names, colours)
    return None


def figure(own: Headline, points: Mapping[str, Point], caption: str) -> Figure:
    """Draw the settings of ``points``. ``caption``: scale, model, data, n. Raises UserError where the names
    do not fit."""
    workload = workloads()[own.workload]
    margin, unit = workload.margin, workload.unit_in_words
    drawn: dict[str, Point] = {}
    last = 0.0
    for key, point in sorted(points.items(), key=lambda item: item[1].times):
        if np.isfinite(point.loss.mean):
            last = max(point.times, STEP_ASIDE * last)
            drawn[key] = point._replace(times=last)
    lost = ", ".join(own.names[key] for key in points if key not in drawn)
    said = f"{caption}; bars: 95 % interval of the loss; grey: a loss within ±{margin:g} {unit}; "
    said += "equal bytes side by side"
    said += f"; diverged in a seed: {lost}" if lost else ""

    def draw(axes: Axes) -> None:
        axes.axhspan(-margin, margin, color="#EDEDED", zorder=0)
        for key, (times, loss) in drawn.items():
            bars = [[bar] for bar in loss.bars]
            axes.errorbar(times, loss.mean, yerr=bars, fmt="o", color=own.colours[key])
        axes.margins(x=0.12)
        axes.set_yscale("symlog", linthresh=2 * margin)
        ends = [end for _, loss in drawn.values() for end in (loss.low, loss.high)]
        low, high = min([*ends, -2 * margin]), max([*ends, 2 * margin])
        axes.set_ylim(1.25 * low, 1.25 * high)
        plot.plain_ticks(
            axes.yaxis, [0.0, *(sign * margin * step for step in TICKS for sign in (-1, 1))]
        )

    panel = panels.panel(
        "", draw, x="times fewer bytes than without compression",
        y=f"loss of quality, {unit} (lower is better)", log="x", unit="x",
    )  # fmt: skip
    title = f"What fewer bytes cost: {workload.title}"
    drawing = plot.figure(title, said, [panel], legend=0, size=SIZE)
    is_named = plot.name_points(
        drawing.axes[0],
        {own.names[key]: (point.times, point.loss.mean) for key, point in drawn.items()},
        {own.names[key]: own.colours[key] for key in drawn},
        {own.names[key]: (0.0, max(point.loss.bars)) for key, point in drawn.items()},
        fontsize=10,
    )
    if not is_named:
        raise UserError("headline: no place for a name in the figure; list fewer settings")
    return drawing
