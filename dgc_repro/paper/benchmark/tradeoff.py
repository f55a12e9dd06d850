"""Loss of quality against bytes: the README's picture, with a few named settings in one panel, and the figure
of a workload, with all settings in a panel for each way to count bytes.

``headline`` of an artifact in conf/paper/benchmark.yaml has the settings of the README's picture and their
names.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from dgc_repro.errors import UserError
from dgc_repro.paper import panels, plot
from dgc_repro.paper.benchmark.classes import Shown
from dgc_repro.paper.benchmark.workloads import Workload, artifacts, workloads

FAMILIES: dict[str, tuple[str, ...]] = {
    plot.BLACK: ("dense",),
    plot.PURPLE: ("bf16", "fp16"),
    plot.BLUE: (
        *("uniform", "qsgd", "natural", "terngrad", "loco", "adaqs", "stepwise"),
        *("blockfloat", "eden", "drive"),
    ),
    plot.ORANGE: (
        *("topk", "magnitude", "randomk", "dgc", "threshold", "redsync", "sidco", "sparseloco"),
        *("accordion", "scadles", "gravac"),
    ),
    plot.GREEN: ("powersgd",),
    plot.SKY: ("ef_signsgd", "onebit", "signsgd"),
    plot.YELLOW: (
        *("demo", "diloco", "streaming", "adam", "onebit_adam"),
        *("muon", "muloco", "dion"),
    ),
}
"""Beginnings of names by colour: uncompressed, casts, quantizers, sparsifiers, low rank, signs, others."""

OTHERS = "#777777"
STEP_ASIDE = 1.04
"""Smallest ratio of the bytes of two points as drawn, so that their bars do not cover each other."""

TICKS = (1, 2, 5, 10, 20, 50, 100, 200)
"""Of the y axis, in margins; it is linear up to two margins."""

OWN_SIZE, OWN_FONT_SIZES = (7.6, 4.6), (10.0, 8.0)
"""Inches of a panel of one's own runs, and sizes of its names, as tried."""
MOST_NAMES = 12
"""Of settings whose names are written beside their points; more are listed."""

FONT_SIZES = (6.5, 5.5, 4.5)
"""Of the names of all settings: the first with which each has a place."""


class Headline(NamedTuple):
    """A workload, and the names of its settings."""

    workload: str
    names: dict[str, str]


class Cloud(NamedTuple):
    """Settings of one's own runs. ``size``: inches of a panel that has a list of the ``names`` beside it."""

    title: str
    workload: Workload
    points: Mapping[str, Point]
    names: Mapping[str, str]
    size: tuple[float, float]


class Point(NamedTuple):
    """A setting: its bytes, or how many times fewer they are, and its loss."""

    size: float
    loss: Shown


def stated(present: Collection[str]) -> Headline | None:
    """The headline of the first artifact whose headline's workload is present; None for none."""
    for node in artifacts():
        own = node.get("headline", {})
        if own.get("workload") in present:
            return Headline(own["workload"], dict(own["names"]))
    return None


def is_of(setting: str, method: str) -> bool:
    """Whether a setting is of a method: ``topk_0.01`` is of ``topk``."""
    return setting == method or setting.startswith(f"{method}_")


def colour_of(setting: str) -> str:
    """The colour of a setting's family; that of the longest name that it begins with."""
    fitting = [
        (len(name), colour)
        for colour, names in FAMILIES.items()
        for name in names
        if is_of(setting, name)
    ]
    return max(fitting, default=(0, OTHERS))[1]


def front(points: Mapping[str, Point]) -> list[str]:
    """The settings that no other one beats in both bytes (fewer) and mean loss, fewest bytes first."""
    found: list[str] = []
    ordered = sorted(points, key=lambda key: (points[key].size, points[key].loss.mean))
    for key in ordered:
        if not found or points[key].loss.mean < points[found[-1]].loss.mean:
            found.append(key)
    return found


def picture(own: Headline, points: Mapping[str, Point], caption: str) -> Figure:
    """Draw the settings of ``points`` (times fewer bytes). ``caption``: scale, model, data, n. Raises
    UserError where the names do not fit."""
    workload = workloads()[own.workload]
    lost = ", ".join(own.names[key] for key in points if not _is_drawn(points[key]))
    said = f"{caption}; {_bars(workload)}"
    said += f"; diverged in a seed: {lost}" if lost else ""
    panel = _panel(
        "", points, workload, x="payload: times fewer bytes than without compression", unit="x"
    )
    title = f"What fewer bytes cost: {workload.title}"
    drawing = plot.figure(title, said, [panel], legend=0, size=(7.6, 4.6))
    if not _name(drawing.axes[0], points, own.names, 10):
        raise UserError("headline: no place for a name in the figure; list fewer settings")
    return drawing


def clouds(title: str, said: Sequence[str], several: Sequence[Cloud], x: str) -> Figure:
    """Draw a panel like the README's picture for each cloud. Its names stand beside the points; where one of
    them has no place, numbers stand there, and a list of the names beside the panel. ``said``: facts for the
    caption."""
    parts = [_panel(one.title, one.points, one.workload, x=x, unit="x") for one in several]
    names = [
        {key: one.names[key] for key, point in one.points.items() if _is_drawn(point)}
        for one in several
    ]
    drawing = plot.figure(title, "; ".join(said), parts, columns=1, legend=0, size=OWN_SIZE)
    if max(map(len, names)) <= MOST_NAMES and all(
        any(_name(axes, one.points, own, size) for size in OWN_FONT_SIZES)
        for axes, one, own in zip(drawing.axes, several, names, strict=True)
    ):
        return drawing
    numbers = [{key: str(place) for place, key in enumerate(own, 1)} for own in names]
    lists = [
        {f"{number}  {own[key]}": colour_of(key) for key, number in numbered.items()}
        for own, numbered in zip(names, numbers, strict=True)
    ]
    parts = [
        (name, partial(_with_list, draw, listed))
        for (name, draw), listed in zip(parts, lists, strict=True)
    ]
    size = max(one.size[0] for one in several), max(one.size[1] for one in several)
    drawing = plot.figure(title, "; ".join(said), parts, columns=1, legend=0, size=size)
    for axes, one, numbered in zip(drawing.axes, several, numbers, strict=True):
        if not any(_name(axes, one.points, numbered, size) for size in OWN_FONT_SIZES):
            axes.set_title(f"{one.title} (no place for the numbers)", loc="left", fontweight="bold")
    return drawing


def _with_list(draw: Callable[[Axes], None], listed: Mapping[str, str], axes: Axes) -> None:
    """Draw a panel with a list of names beside it. ``listed``: their colours."""
    draw(axes)
    marks = [
        Line2D([], [], linestyle="", marker="o", color=colour, label=name)
        for name, colour in listed.items()
    ]
    axes.legend(handles=marks, **plot.BESIDE)


def figure(workload: Workload, several: Mapping[str, Mapping[str, Point]], caption: str) -> Figure:
    """Draw all settings of a workload: a panel for each way to count bytes (``several``: by its title, the
    points by setting), with the Pareto front of the means."""
    first = next(iter(several.values()))
    lost = ", ".join(key for key, point in first.items() if not _is_drawn(point))
    said = f"{caption}; {_bars(workload)}; line: settings that no other one beats in bytes and in mean loss"
    said += f"; diverged in a seed: {lost}" if lost else ""
    drawn = [
        _panel(title, _in_kb(points), workload, x="kB a step and worker", with_front=True)
        for title, points in several.items()
    ]
    drawing = plot.figure(
        f"Loss of quality against bytes: {workload.title}", said, drawn,
        columns=2, size=(7.4, 5.4), legend=0,
    )  # fmt: skip
    for axes, (title, points) in zip(drawing.axes, several.items(), strict=True):
        names = {key: key for key in points}
        if not any(_name(axes, _in_kb(points), names, size) for size in FONT_SIZES):
            axes.set_title(f"{title} (no place for the names)", loc="left", fontweight="bold")
    return drawing


def _in_kb(points: Mapping[str, Point]) -> dict[str, Point]:
    return {key: point._replace(size=point.size / 1e3) for key, point in points.items()}


def _is_drawn(point: Point) -> bool:
    return bool(np.isfinite(point.loss.mean) and np.isfinite(point.size) and point.size > 0)


def _bars(workload: Workload) -> str:
    return (
        "bars: 95 % interval of the loss, if there is one; grey: a loss within "
        f"±{workload.margin:g} {workload.unit_in_words}; equal bytes side by side; loss: linear to "
        f"±{2 * workload.margin:g}, then logarithmic"
    )


def _aside(points: Mapping[str, Point]) -> dict[str, Point]:
    """The points that are drawn, fewest bytes first; those of equal bytes moved apart."""
    drawn: dict[str, Point] = {}
    last = 0.0
    for key, point in sorted(points.items(), key=lambda item: item[1].size):
        if _is_drawn(point):
            last = max(point.size, STEP_ASIDE * last)
            drawn[key] = point._replace(size=last)
    return drawn


def _panel(
    title: str, points: Mapping[str, Point], workload: Workload, *, x: str, unit: str = "",
    with_front: bool = False,
) -> panels.Panel:  # fmt: skip
    drawn, margin = _aside(points), workload.margin

    def draw(axes: Axes) -> None:
        axes.axhspan(-margin, margin, color="#EDEDED", zorder=0)
        if with_front and drawn:
            best = front({key: points[key] for key in drawn})
            where = [(drawn[key].size, drawn[key].loss.mean) for key in best]
            axes.step(
                *zip(*where, strict=True), where="post", color="#999999", linewidth=1, zorder=1
            )
        for key, (size, loss) in drawn.items():
            bars = [[bar] for bar in loss.bars]
            axes.errorbar(
                size,
                loss.mean,
                yerr=bars,
                fmt="o",
                color=colour_of(key),
                markersize=4,
                elinewidth=1,
            )
        axes.margins(x=0.12)
        axes.set_yscale("symlog", linthresh=2 * margin)
        low, high = _ends(drawn.values(), margin)
        axes.set_ylim(1.25 * low, 1.25 * high)
        plot.plain_ticks(
            axes.yaxis, [0.0, *(sign * margin * step for step in TICKS for sign in (-1, 1))]
        )

    label = f"loss of quality, {workload.unit_in_words} (lower is better)"
    return panels.panel(title, draw, x=x, y=label, log="x", unit=unit)


def _ends(points: Iterable[Point], margin: float) -> tuple[float, float]:
    """The least and the largest loss of the bars, at least two margins from 0."""
    ends = [end for _, loss in points for end in (loss.low, loss.high)]
    return min([*ends, -2 * margin]), max([*ends, 2 * margin])


def _name(
    axes: Axes, points: Mapping[str, Point], names: Mapping[str, str], fontsize: float
) -> bool:
    """Write the settings' names; whether they have places."""
    drawn = _aside(points)
    return plot.name_points(
        axes,
        {names[key]: (point.size, point.loss.mean) for key, point in drawn.items()},
        {names[key]: colour_of(key) for key in drawn},
        {names[key]: (0.0, max(point.loss.bars)) for key, point in drawn.items()},
        fontsize=fontsize,
    )
