"""Cost of quality against bytes: the README's picture, with a few named settings, and the figure of a
workload, with all settings, of which those are named that no other one beats in both.

``headline`` of an artifact in conf/paper/benchmark.yaml has the settings of the README's picture.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from dgc_repro.errors import UserError
from dgc_repro.paper import panels, plot
from dgc_repro.paper.artifact import described
from dgc_repro.paper.benchmark.classes import Shown
from dgc_repro.paper.benchmark.workloads import DENSE, Workload, artifacts, workloads
from dgc_repro.paper.page import Drawing
from dgc_repro.paper.records import Run
from dgc_repro.paper.setting_names import FAMILIES, family_of, name_of

COLOURS = dict(
    zip(
        FAMILIES,
        (plot.BLACK, plot.PURPLE, plot.BLUE, plot.ORANGE, plot.GREEN, plot.SKY, plot.YELLOW),
        strict=True,
    )
)
"""By family."""
OTHERS = "#777777"
STEP_ASIDE = 1.04
"""Smallest ratio of the bytes of two points as drawn, so that their bars do not cover each other."""

TICKS = (1, 2, 5, 10, 20, 50, 100, 200)
"""Of the y axis, in margins; it is linear up to two margins."""

FONT_SIZES = (10.0, 9.0)
"""Of the names of settings: the first with which each has a place."""

FEWER = "times fewer bytes than without compression"
ONE_SIZE = (7.6, 4.6)
"""Inches of a panel of the README's picture, and of one's own runs."""
MOST_NAMES = 12
"""Of settings whose names are written beside their points; more are listed."""


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
    """A setting: how many times fewer bytes it sends than training without compression, and its cost."""

    fewer: float
    cost: Shown


def stated(present: Collection[str]) -> Headline | None:
    """Return the headline of the first artifact whose headline's workload is present; None for none."""
    for node in artifacts():
        own = node.get("headline", {})
        if own.get("workload") in present:
            return Headline(own["workload"], {key: name_of(key) for key in own["settings"]})
    return None


def colour_of(setting: str) -> str:
    """The colour of a setting's family."""
    return COLOURS.get(family_of(setting), OTHERS)


def front(points: Mapping[str, Point]) -> list[str]:
    """Return the settings that no other one beats in both bytes (fewer) and mean cost, fewest bytes first."""
    found: list[str] = []
    ordered = sorted(points, key=lambda key: (-points[key].fewer, points[key].cost.mean))
    for key in ordered:
        if not found or points[key].cost.mean < points[found[-1]].cost.mean:
            found.append(key)
    return found


def picture(own: Headline, points: Mapping[str, Point], runs: Sequence[Run], scale: str) -> Drawing:
    """Describe the figure of the settings of ``points``. Drawing it raises UserError where the names do not
    fit."""
    workload = workloads()[own.workload]

    def name(drawn: Figure) -> None:
        if not _name(drawn.axes[0], points, own.names, 10.5):
            raise UserError("headline: no place for a name in the figure; list fewer settings")

    return described(
        f"What fewer bytes cost: {workload.title}",
        f"Bars are 95 % intervals, where there is one. {_note(workload, points)}", runs, scale,
        lambda: [_panel("", points, workload, x=f"payload: {FEWER}")],
        finish=name, legend=0, size=ONE_SIZE,
    )  # fmt: skip


def figure(
    workload: Workload, several: Mapping[str, Mapping[str, Point]], runs: Sequence[Run], scale: str
) -> Drawing:
    """Describe the figure of all settings of a workload: a panel for each way to count bytes (``several``: by
    its title, the points by setting), with the Pareto front of the means."""

    def parts() -> plot.Panels:
        kinds = {colour_of(key) for key in next(iter(several.values()))}
        return [
            _panel(name, points, workload, x=FEWER, named=_named(points), kinds=kinds)
            for name, points in several.items()
        ]

    def name_front(drawn: Figure) -> None:
        for axes, (name, points) in zip(drawn.axes, several.items(), strict=True):
            names = {key: name_of(key) for key in _named(points)}
            line = _steps(points)
            if not any(_name(axes, points, names, size, line) for size in FONT_SIZES):
                what = f"{name} (no place for the names)"
                axes.set_title(plot.literal(what), loc="left", fontweight="bold")

    note = (
        "The named settings are those that no other setting beats in both bytes and mean cost, and training "
        "without compression. Their bars are 95 % intervals, where there is one; a setting within a bar may "
        "belong to them too. Pale points are the other settings."
    )
    return described(
        f"What fewer bytes cost: {workload.title}, all settings",
        f"{note} {_note(workload, next(iter(several.values())))}", runs, scale, parts,
        finish=name_front, columns=2, size=(6.6, 5.2), legend=7,
    )  # fmt: skip


def clouds(title: str, said: Sequence[str], several: Sequence[Cloud], x: str) -> Figure:
    """Draw a panel like the README's picture for each cloud. Its names stand beside the points; where one of
    them has no place, numbers stand there, and a list of the names beside the panel. ``said``: facts for the
    caption."""
    parts = [_panel(one.title, one.points, one.workload, x=x) for one in several]
    names = [
        {key: one.names[key] for key, point in one.points.items() if is_drawn(point)}
        for one in several
    ]
    drawing = plot.figure(title, said, parts, columns=1, legend=0, size=ONE_SIZE)
    if max(map(len, names)) <= MOST_NAMES and all(
        any(_name(axes, one.points, own, size) for size in FONT_SIZES)
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
    drawing = plot.figure(title, said, parts, columns=1, legend=0, size=size)
    for axes, one, numbered in zip(drawing.axes, several, numbers, strict=True):
        if not any(_name(axes, one.points, numbered, size) for size in FONT_SIZES):
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


def _named(points: Mapping[str, Point]) -> list[str]:
    """The front and training without compression."""
    drawn = {key: point for key, point in points.items() if is_drawn(point)}
    return list(dict.fromkeys([*front(drawn), *([DENSE] if DENSE in drawn else [])]))


def is_drawn(point: Point) -> bool:
    """Whether a point has a place in a figure: a cost with its interval, and bytes."""
    ends = (point.cost.mean, point.cost.low, point.cost.high, point.fewer)
    return bool(np.isfinite(ends).all() and point.fewer > 0)


def _note(workload: Workload, points: Mapping[str, Point]) -> str:
    lost = ", ".join(name_of(key) for key, point in points.items() if not is_drawn(point))
    return (
        f"The grey band has costs of at most ±{workload.margin:g} {workload.unit_in_words}. The axis of the "
        f"cost is linear to ±{2 * workload.margin:g} and logarithmic beyond. Settings of equal bytes are "
        "drawn side by side."
    ) + (f" Training diverged in a seed: {lost}." if lost else "")


def _aside(points: Mapping[str, Point]) -> dict[str, Point]:
    """The points that are drawn, most bytes first; those of equal bytes moved apart."""
    drawn: dict[str, Point] = {}
    last = 0.0
    for key, point in sorted(points.items(), key=lambda item: item[1].fewer):
        if is_drawn(point):
            last = max(point.fewer, STEP_ASIDE * last)
            drawn[key] = point._replace(fewer=last)
    return drawn


def _panel(
    title: str, points: Mapping[str, Point], workload: Workload, *, x: str,
    named: Collection[str] | None = None, kinds: Collection[str] = (),
) -> panels.Panel:  # fmt: skip
    """A panel of points. ``named``: those with bars, where others are pale, and a line through the front.
    ``kinds``: colours for the legend."""
    drawn, margin = _aside(points), workload.margin

    def draw(axes: Axes) -> None:
        if not drawn:
            return
        axes.axhspan(-margin, margin, color="#EDEDED", zorder=0)
        if named is not None and drawn:
            axes.plot(*zip(*_steps(points), strict=True), color="#999999", linewidth=1, zorder=1)
        for key, (fewer, cost) in drawn.items():
            colour = colour_of(key)
            if named is None or key in named:
                axes.errorbar(
                    fewer, cost.mean, yerr=[[bar] for bar in cost.bars], fmt="o", color=colour,
                    markersize=5, elinewidth=1,
                )  # fmt: skip
            else:
                axes.plot(fewer, cost.mean, "o", color=colour, markersize=4, alpha=0.4, zorder=1)
        for family, colour in COLOURS.items():
            if colour in kinds:
                axes.plot([], [], "o", color=colour, label=family)
        axes.margins(x=0.12)
        axes.set_yscale("symlog", linthresh=2 * margin)
        ends = [-2 * margin, 2 * margin]
        for key, (_, cost) in drawn.items():
            has_bars = named is None or key in named
            ends += [cost.low, cost.high] if has_bars else [cost.mean]
        axes.set_ylim(1.25 * min(ends), 1.25 * max(ends))
        plot.plain_ticks(
            axes.yaxis, [0.0, *(sign * margin * step for step in TICKS for sign in (-1, 1))]
        )

    label = f"cost, {workload.unit_in_words} (lower is better)"
    log = "x" if drawn else ""  # nothing has no logarithm
    return panels.panel(title, draw, x=x, y=label, log=log, unit="x", otherwise="no costs")


def _steps(points: Mapping[str, Point]) -> list[tuple[float, float]]:
    """The corners of the line through the front."""
    drawn = _aside(points)
    where = [
        (drawn[key].fewer, drawn[key].cost.mean)
        for key in front({key: points[key] for key in drawn})
    ]
    corners = ([(after[0], here[1]), after] for here, after in itertools.pairwise(where))
    return [*where[:1], *itertools.chain.from_iterable(corners)]


def _name(
    axes: Axes, points: Mapping[str, Point], names: Mapping[str, str], fontsize: float,
    line: Sequence[tuple[float, float]] = (),
) -> bool:  # fmt: skip
    """Write the names of settings; whether they have places."""
    drawn = _aside(points)
    where = {key: (point.fewer, point.cost.mean) for key, point in drawn.items()}
    named = [key for key in drawn if key in names]
    return plot.name_points(
        axes,
        {names[key]: where[key] for key in named},
        {names[key]: colour_of(key) for key in named},
        {names[key]: (0.0, max(drawn[key].cost.bars)) for key in named},
        [where[key] for key in drawn if key not in names],
        line,
        fontsize=fontsize,
    )
