"""What figures are put together from: a panel is a title, one or more drawings, and its axes.

    plot.figure("Table II", caption, [
        panels.panel("ResNet", panels.points(cells, looks), x="speedup", y="better by (%)", log="x"),
    ])

Drawings: `curves`, `lines`, `means`, `series`, `points`, `bars`, `strip`, `front`, `heat_map`, `histogram`.
Several in one panel are drawn in order, one over another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator
from numpy.typing import NDArray
from scipy import stats

from dgc_repro.paper.plot import BLACK, Look, empty, plain_log
from dgc_repro.paper.records import Run

Draw = Callable[[Axes], object]
Panel = tuple[str, Callable[[Axes], None]]
Values = Sequence[float]
Span = Callable[[Values], tuple[float, float, float]]
"""Of the values of all seeds: middle, lower end, upper end."""
LETTER = (0.0125, 0.035)
"""Width and height of a letter of `names`, as shares of the panel."""


def panel(
    title: str,
    *drawn: Draw,
    x: str = "",
    y: str = "",
    log: str = "",
    unit: str = "",
    subs: Sequence[float] = (),
    at_x: Iterable[float | tuple[float, Mapping[str, Any]]] = (),
    at_y: Iterable[float | tuple[float, Mapping[str, Any]]] = (),
    xlim: Limits = None,
    ylim: Limits = None,
    xticks: Ticks | None = None,
    yticks: Ticks | None = None,
    grid: str = "xy",
    otherwise: str = "no run",
) -> Panel:
    """A panel of `plot.figure`.

    x, y       labels of the axes; ``log``: which of the two are logarithmic, with plain ticks in a ``unit``
    subs       multiples of each power of ten that have a tick; chosen by the range where there are none
    at_x       places of vertical lines, alone or with their style, over what is drawn; ``at_y``: horizontal
               ones (`rule` draws one before)
    xticks     names by place, a list of places, "binary" (powers of two), or a function that writes a number
    grid       the axes whose ticks have lines
    otherwise  what the panel says where nothing is drawn
    """

    def draw(axes: Axes) -> None:
        for one in drawn:
            one(axes)
        if all(artist.get_gid() == "rule" for artist in (*axes.texts, *_data(axes))):
            empty(axes, otherwise)
        for name, places in (("x", at_x), ("y", at_y)):
            for place in places:
                where, style = place if isinstance(place, tuple) else (place, {})
                rule(name, where, **style)(axes)
        _limit(axes, xlim, ylim)
        name_axes(axes, x, y, log, unit, subs)
        for name, ticks in (("x", xticks), ("y", yticks)):
            if ticks is not None:
                _set_ticks(axes, name, ticks)
        for name in {"x", "y"} - set(grid):
            axes.grid(axis=name, visible=False)  # type: ignore[arg-type]
        _limit(axes, xlim, ylim)  # ticks may have widened them

    return title, draw


def _data(axes: Axes) -> list[Any]:
    return [*axes.lines, *axes.collections, *axes.patches, *axes.images]


def rule(axis: str, at: float, **style: Any) -> Draw:
    """A line across the panel at a value of x or y, under what is drawn later."""

    def draw(axes: Axes) -> None:
        mark = axes.axvline if axis == "x" else axes.axhline
        mark(at, **{"color": BLACK, "linewidth": 0.8, "gid": "rule", **style})

    return draw


Limits = tuple[float | None, float | None] | None


def _limit(axes: Axes, xlim: Limits, ylim: Limits) -> None:
    if xlim:
        axes.set_xlim(*xlim)
    if ylim:
        axes.set_ylim(*ylim)


Ticks = Mapping[Any, str] | Sequence[float] | str | Callable[[Values], str]


def name_axes(
    axes: Axes, x: str = "", y: str = "", log: str = "", unit: str = "", subs: Sequence[float] = ()
) -> None:
    """Label the axes (see `panel`)."""
    axes.set_xlabel(f"{x} (log)" if "x" in log else x)
    axes.set_ylabel(f"{y} (log)" if "y" in log else y)
    for name in log:
        axes.set(**{f"{name}scale": "log"})
        axis = axes.xaxis if name == "x" else axes.yaxis
        low, high = axis.get_view_interval()
        plain_log(axis, subs or ((1.0, 2.0, 5.0) if high < 1_000 * low else (1.0,)), unit)


def _set_ticks(axes: Axes, name: str, ticks: Ticks) -> None:
    axis = axes.xaxis if name == "x" else axes.yaxis
    if ticks == "binary":
        (axes.set_xscale if name == "x" else axes.set_yscale)("log", base=2)
        axis.set_major_locator(LogLocator(base=2, numticks=12))
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter(NullFormatter())
    elif isinstance(ticks, Mapping):
        (axes.set_xticks if name == "x" else axes.set_yticks)(list(ticks), list(ticks.values()))
    elif callable(ticks):
        axis.set_major_locator(LogLocator(numticks=6))
        axis.set_major_formatter(FuncFormatter(lambda value, _: ticks([value])))
    elif not isinstance(ticks, str):
        axis.set_major_locator(FixedLocator(ticks))
        axis.set_minor_locator(NullLocator())


def curves(runs: Sequence[Run], metric: str, looks: Mapping[str, Look], *, x: str = "step") -> Draw:
    """Mean over seeds of an epoch's metric by ``x``, with a band of one standard deviation; a line that
    equals another one says so in the legend."""

    def draw(axes: Axes) -> None:
        drawn: dict[str, pd.DataFrame] = {}
        for row, look in looks.items():
            own = [run.epochs for run in runs if run.row == row and metric in run.epochs]
            if not own:
                continue
            table = pd.concat([epochs.set_index(x)[metric].astype(float) for epochs in own], axis=1)
            found = pd.DataFrame({"mean": table.mean(axis=1), "sd": table.std(axis=1)})
            equal = next((label for label, other in drawn.items() if other.equals(found)), None)
            drawn[look.label] = found
            where, mean, sd = found.index.to_numpy(float), found["mean"], found["sd"]
            if len(own) > 1:
                band: dict[str, Any] = {"color": look.colour, "alpha": 0.15, "linewidth": 0}
                axes.fill_between(where, mean - sd, mean + sd, **band)
            label = {"label": f"{look.label} (= {equal})"} if equal else {}
            axes.plot(where, mean, markevery=max(1, len(where) // 10), **look.line | label)

    return draw


def lines(series: Iterable[tuple[Any, Any]], label: str = "", **style: Any) -> Draw:
    """A line through each (x, y); the first one carries the ``label``."""

    def draw(axes: Axes) -> None:
        for place, (x, y) in enumerate(series):
            axes.plot(x, y, label=None if place else label or None, **style)

    return draw


def means(table: pd.DataFrame, x: str, y: str, *, spread: bool = False, **style: Any) -> Draw:
    """The mean over seeds of the column ``y`` at each ``x``; ``spread``: with one standard deviation either
    way. ``style``: arguments of ``Axes.errorbar``."""
    found = table.groupby(x)[y].agg(["mean", "std"]).fillna(0.0)
    deviation = found["std"] if spread else None
    return lambda axes: axes.errorbar(found.index, found["mean"], yerr=deviation, **style)


def series(values: Mapping[float, Values], *, spread: bool = False, **style: Any) -> Draw:
    """The mean over seeds of the ``values`` at each x, in order; an x without values, or with one that is not
    finite, is left out. ``spread``: with one standard deviation either way. ``style``: as in `means`."""
    pairs = [
        (x, value)
        for x, own in values.items()
        if len(own) and np.isfinite(own).all()
        for value in own
    ]
    return means(
        pd.DataFrame(pairs, columns=["x", "y"], dtype=float), "x", "y", spread=spread, **style
    )


def points(where: Mapping[str, tuple[Values, Values]], looks: Mapping[str, Look]) -> Draw:
    """A point for each row: the mean of its (x, y) over seeds, with one standard deviation either way."""

    def draw(axes: Axes) -> None:
        for row, (xs, ys) in where.items():
            look = looks[row]
            across, up = (np.std(v, ddof=1) if len(v) > 1 else 0.0 for v in (xs, ys))
            axes.errorbar(
                np.mean(xs), np.mean(ys), xerr=across, yerr=up, fmt=look.marker, color=look.colour,
                markersize=6, markerfacecolor=look.face, elinewidth=0.8, label=look.label,
            )  # fmt: skip

    return draw


def bars(
    groups: Sequence[str],
    heights: Mapping[str, Values],
    looks: Mapping[str, Look],
    numbers: str = "",
) -> Draw:
    """Bars side by side: a group on the x axis, a bar in each group for every key of ``heights``.
    ``numbers``: the format of the number above each bar, such as "%.0f"."""

    def draw(axes: Axes) -> None:
        width = 0.8 / max(1, len(heights))
        middle = np.arange(len(groups), dtype=float)
        for place, (key, values) in enumerate(heights.items()):
            look = looks[key]
            drawn = axes.bar(
                middle + width * (place - (len(heights) - 1) / 2), values, width * 0.92, label=look.label,
                color=look.colour, hatch="" if look.dashes == "-" else "///", edgecolor="white",
                linewidth=0.5,
            )  # fmt: skip
            if numbers:
                axes.bar_label(drawn, fmt=numbers, fontsize=8)
        axes.set_xticks(middle, groups)
        axes.grid(axis="x", visible=False)

    return draw


def named_bars(looks: Sequence[Look], lengths: Values, texts: Sequence[str]) -> Draw:
    """A bar to the right for each look, from the top, with its name before it and a text behind it."""

    def draw(axes: Axes) -> None:
        drawn = axes.barh(range(len(looks)), lengths, 0.75, color=[look.colour for look in looks])
        axes.bar_label(drawn, texts, padding=3, fontsize=7.5, color="#444444")
        axes.set_yticks(range(len(looks)), [look.label for look in looks])
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.set_xlim(0, 1.35 * max(1.5, axes.get_xlim()[1]))

    return draw


def strip(
    rows: Sequence[Values],
    span: Span,
    looks: Look | Sequence[Look],
    *,
    aside: float = 0.0,
    least: int = 1,
    seeds: bool = False,
    **style: Any,
) -> Draw:
    """A line for each row, from the top: the middle of its values with an interval (``span``; from ``least``
    values on). ``aside``: below the row's own place; ``seeds``: with a small dot for each value. One look is
    that of all rows, and names them in the legend."""

    def draw(axes: Axes) -> None:
        label = looks.label if isinstance(looks, Look) else None
        for place, values in enumerate(rows):
            if not len(values):
                continue
            look = looks if isinstance(looks, Look) else looks[place]
            if seeds:
                dots: dict[str, Any] = {"color": look.colour, "alpha": 0.5, "markersize": 4}
                axes.plot(values, [place] * len(values), ".", **dots)
            middle, low, high = span(values)
            reach = [[middle - low], [high - middle]] if len(values) >= least else None
            axes.errorbar(
                middle, place + aside, xerr=reach, label=label,
                **{"fmt": look.marker, "color": look.colour, "markerfacecolor": look.face, **style},
            )  # fmt: skip
            label = None

    return draw


def histogram(
    samples: Iterable[tuple[str, Values]], looks: Mapping[str, Look], width: float
) -> Draw:
    """For each row a base line with the density of its (row, samples) above: a Gaussian of ``width`` at log10
    of each sample. The highest peak is almost one line high."""

    def draw(axes: Axes) -> None:
        grid = np.linspace(-0.4, 3.7, 600)
        drawn = [(row, density(grid, own, width)) for row, own in samples if len(own)]
        highest = max((float(values.max()) for _, values in drawn), default=1.0)
        places = {row: place for place, row in enumerate(looks)}
        for row in looks.keys() - dict(drawn).keys():
            axes.text(1.0, places[row] - 0.05, "not run", fontsize=7)
        for row, values in drawn:
            look, base = looks[row], places[row]
            line = base - 0.85 * values / highest
            axes.plot(10**grid, line, color=look.colour, linestyle=look.dashes, linewidth=1.2)
            axes.fill_between(10**grid, base, line, color=look.colour, alpha=0.15, linewidth=0)

    return draw


def density(
    grid: NDArray[np.float64], samples: Values | NDArray[np.float64], width: float
) -> NDArray[np.float64]:
    """A Gaussian of ``width`` at log10 of each sample, at the points ``grid`` of log10; its integral over
    log10 is one."""
    places, counts = np.unique(np.log10(samples), return_counts=True)
    bells = stats.norm.pdf(grid[:, None], places, width)
    return np.asarray(bells @ (counts / counts.sum()))


def heat_map(
    table: NDArray[np.float64],
    rows: Sequence[str],
    columns: Sequence[str],
    write: Callable[[int, float], str],
    is_dark: Callable[[float], bool],
    *,
    angle: float = 30,
    fontsize: float = 6,
    ticks: Sequence[Mapping[str, Any]] = ({}, {}),
    **image: Any,
) -> Draw:
    """A coloured cell for each row and column, with the text ``write(row, value)`` in it: white where
    ``is_dark``. ``ticks``: styles of the names of columns and of rows; ``image``: arguments of
    ``Axes.imshow``, such as cmap and norm."""

    def draw(axes: Axes) -> None:
        axes.imshow(table, aspect="auto", **image)
        for (row, column), value in np.ndenumerate(table):
            colour = "white" if np.isfinite(value) and is_dark(value) else "black"
            text = write(row, float(value))
            axes.text(column, row, text, ha="center", va="center", fontsize=fontsize, color=colour)
        axes.set_xticks(range(len(columns)), list(columns), rotation=angle, ha="right", **ticks[0])
        axes.set_yticks(range(len(rows)), list(rows), **ticks[1])
        axes.grid(visible=False)

    return draw


def front(
    where: Mapping[str, tuple[float, float]],
    bars: Mapping[str, tuple[float, float]],
    edge: Sequence[str],
    colours: Mapping[str, str],
    *,
    hollow: Iterable[str] = (),
    **style: Any,
) -> Draw:
    """A point (x, y) for each row with its error ``bars`` (down, up), and a line of steps through the rows
    on the ``edge``, in order."""

    def draw(axes: Axes) -> None:
        for row, (x, y) in where.items():
            face = "white" if row in hollow else colours[row]
            look = {"fmt": "o", "color": colours[row], "markerfacecolor": face, **style}
            axes.errorbar(x, y, yerr=[[bar] for bar in bars[row]], **look)
        if edge:
            axes.plot(
                *zip(*(where[row] for row in edge), strict=True),
                color=colours[edge[0]],
                drawstyle="steps-post",
            )

    return draw


def names(where: Mapping[str, tuple[float, float]]) -> Draw:
    """Each name beside its point (x, y), but none over an earlier one. It follows the panel's limits."""

    def draw(axes: Axes) -> None:
        to_axes = axes.transScale + axes.transLimits
        written: list[tuple[float, float, float]] = []
        for name, point in where.items():
            x, y = to_axes.transform(point)
            end = x + LETTER[0] * len(name)
            if all(end < a or b < x or abs(y - v) > LETTER[1] for a, b, v in written):
                written.append((x, end, y))
                axes.annotate(name, point, xytext=(3, 3), textcoords="offset points", fontsize=6)

    return draw
