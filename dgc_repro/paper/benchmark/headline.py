"""The README's picture: a few named settings on one workload, loss of quality against bytes in one panel.

``headline`` of an artifact in conf/paper/benchmark.yaml lists the settings.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dgc_repro.errors import UserError
from dgc_repro.paper import plot
from dgc_repro.paper.benchmark.classes import Shown
from dgc_repro.paper.benchmark.workloads import artifacts, workloads

SIZE = (7.6, 4.6)
LINEAR_MARGINS = 2
"""The y axis is linear up to so many margins."""
STEP_ASIDE = 1.04
"""Smallest ratio of the bytes of two points as drawn."""
BAND = "#EDEDED"


class Headline(NamedTuple):
    """Names of settings by setting, families by setting. The losses within the workload's margin are in the
    grey band."""

    workload: str
    names: dict[str, str]
    families: dict[str, str]

    @property
    def margin(self) -> float:
        """The largest loss in the grey band."""
        return workloads()[self.workload].margin


class Point(NamedTuple):
    """A setting: how many times fewer bytes than dense training, and its loss."""

    times: float
    loss: Shown


def stated(present: Collection[str]) -> Headline | None:
    """The headline of the first artifact whose headline's workload is present; None for none."""
    nodes = (node["headline"] for node in artifacts() if "headline" in node)
    for node in nodes:
        if node["workload"] in present:
            own = [
                (setting, name, family)
                for family, settings in node["families"].items()
                for setting, name in settings.items()
            ]
            names = {setting: name for setting, name, _ in own}
            families = {setting: family for setting, _, family in own}
            return Headline(node["workload"], names, families)
    return None


def figure(own: Headline, points: Mapping[str, Point], caption: str) -> Figure:
    """Draw the settings of ``points``. ``caption``: scale, model, data, n. Raises UserError where the names
    do not fit."""
    workload = workloads()[own.workload]
    unit = workload.unit_in_words
    lost = [own.names[setting] for setting, point in points.items() if np.isinf(point.loss.mean)]
    said = (
        f"{caption}; bars: 95 % interval of the loss; grey: a loss within ±{own.margin:g} {unit}; "
        "equal bytes side by side" + (f"; diverged in a seed: {', '.join(lost)}" if lost else "")
    )
    drawn = _aside({key: point for key, point in points.items() if np.isfinite(point.loss.mean)})
    panel = partial(_panel, own, drawn, unit)
    title = f"What fewer bytes cost: {workload.title}"
    drawing = plot.figure(title, said, [("", panel)], legend=0, size=SIZE)
    is_named = plot.name_points(
        drawing.axes[0],
        {own.names[key]: (point.times, point.loss.mean) for key, point in drawn.items()},
        {own.names[key]: colour for key, colour in _colours(own, drawn).items()},
        {own.names[key]: (0.0, max(point.loss.bars)) for key, point in drawn.items()},
        fontsize=10,
    )
    if not is_named:
        raise UserError("headline: no place for a name in the figure; list fewer settings")
    return drawing


def _aside(points: Mapping[str, Point]) -> dict[str, Point]:
    """The points, with those of nearly equal bytes moved apart by `STEP_ASIDE`, so that their bars do not
    cover each other."""
    found: dict[str, Point] = {}
    last = 0.0
    for key, point in sorted(points.items(), key=lambda item: item[1].times):
        last = max(point.times, last * STEP_ASIDE)
        found[key] = point._replace(times=last)
    return {key: found[key] for key in points}


def _colours(own: Headline, drawn: Mapping[str, Point]) -> dict[str, str]:
    """A colour for each family; black for the first, dense training's."""
    order = (plot.BLACK, plot.PURPLE, plot.BLUE, plot.ORANGE, plot.GREEN, plot.YELLOW, plot.SKY)
    families = list(dict.fromkeys(own.families.values()))
    return {key: order[families.index(own.families[key]) % len(order)] for key in drawn}


def _panel(own: Headline, drawn: Mapping[str, Point], unit: str, axes: Axes) -> None:
    axes.axhspan(-own.margin, own.margin, color=BAND, zorder=0)
    for key, colour in _colours(own, drawn).items():
        times, loss = drawn[key]
        bars = [[bar] for bar in loss.bars]
        look: dict[str, Any] = {"fmt": "o", "markersize": 6, "color": colour, "elinewidth": 1.2}
        axes.errorbar(times, loss.mean, yerr=bars, **look)
    axes.set_xscale("log")
    axes.margins(x=0.12)
    plot.plain_log(axes.xaxis, unit="x")
    axes.set_xlabel("times fewer bytes than without compression")
    axes.set_ylabel(f"loss of quality, {unit} (lower is better)")
    ends = [end for point in drawn.values() for end in (point.loss.low, point.loss.high)]
    low, high = min([*ends, -2 * own.margin]), max([*ends, 2 * own.margin])
    axes.set_yscale("symlog", linthresh=LINEAR_MARGINS * own.margin)
    axes.set_ylim(1.25 * low, 1.25 * high)
    steps = [own.margin * step for step in (1, 2, 5, 10, 20, 50, 100, 200)]
    plot.plain_ticks(axes.yaxis, [*(-step for step in steps), 0, *steps])
