"""What figures are put together from: a panel is a title, one or more drawings, and its axes.

    plot.figure("Table II", facts, [
        panels.panel("ResNet", panels.points(cells, looks), x="speedup", y="better by (%)", log="x"),
    ])

Drawings: `curves`, `lines`, `means`, `series`, `points`, `bars`, `strip`, `heat_map`, `rule`. Several in one
panel are drawn in order, one over another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from dgc_repro.paper.plot import BLACK, Look, empty, plain_linear, plain_log, plain_ticks
from dgc_repro.paper.records import Run

Draw = Callable[[Axes], object]
Panel = tuple[str, Callable[[Axes], None]]
Values = Sequence[float]
Limits = tuple[float | None, float | None] | None
Ticks = Mapping[Any, str] | Sequence[float] | None
WHOLE = ("epoch", "rank", "singular value")
"""Labels of axes whose ticks are whole numbers."""
MOST_LEVEL = 8
"""Groups of bars whose names stand side by side; more of them are written aslant."""
Span = Callable[[Values], tuple[float, float, float]]
"""Of the values of all seeds: middle, lower end, upper end."""


def panel(
    title: str, *drawn: Draw, x: str = "", y: str = "", log: str = "", unit: str = "",
    xlim: Limits = None, ylim: Limits = None, xticks: Ticks = None, yticks: Ticks = None,
    otherwise: str = "no run",
) -> Panel:  # fmt: skip
    """A panel of `plot.figure`.

    x, y       labels of the axes; ``log``: which of the two are logarithmic, with plain ticks in a ``unit``
    xticks     names by place, or a list of places
    otherwise  what the panel says where nothing but rules is drawn
    """

    def draw(axes: Axes) -> None:
        for one in drawn:
            one(axes)
        artists = (*axes.texts, *axes.lines, *axes.collections, *axes.patches, *axes.images)
        if all(artist.get_gid() == "rule" for artist in artists):
            empty(axes, otherwise)
        both = (("x", axes.xaxis, x, xlim, xticks), ("y", axes.yaxis, y, ylim, yticks))
        for name, axis, label, limits, ticks in both:
            axes.set(**{f"{name}label": f"{label} (log)" if name in log else label})
            if limits:
                axes.set(**{f"{name}lim": limits})
            if name in log:
                plain_log(axis, unit=unit)
            else:
                plain_linear(axis)
                if label in WHOLE:
                    axis.set_major_locator(MaxNLocator(integer=True))
            if isinstance(ticks, Mapping):
                axis.set_ticks(list(ticks), list(ticks.values()))
            elif ticks is not None:
                plain_ticks(axis, ticks)
            if limits:  # ticks may have widened them
                axes.set(**{f"{name}lim": limits})

    return title, draw


def rule(axis: str, at: float, **style: Any) -> Draw:
    """A line across the panel at a value of x or y, under what is drawn later."""

    def draw(axes: Axes) -> None:
        mark = axes.axvline if axis == "x" else axes.axhline
        mark(at, **{"color": BLACK, "linewidth": 0.8, "gid": "rule", **style})

    return draw


def curves(
    runs: Sequence[Run],
    metric: str,
    looks: Mapping[str, Look],
    *,
    x: str = "step",
    against: str = "",
) -> Draw:
    """Draw the mean over seeds of an epoch's metric by ``x``, with a band of one standard deviation; a line
    that equals another one says so in the legend. ``against``: a row that is not drawn, and whose run of the
    same seed is subtracted."""
    by_epoch = [run for run in runs if metric in run.epochs]
    bases = {run.seed: _by(run, metric, x) for run in by_epoch if run.row == against}
    if against:
        by_epoch = [run for run in by_epoch if run.row != against and run.seed in bases]

    def draw(axes: Axes) -> None:
        drawn: dict[str, pd.DataFrame] = {}
        for row, look in looks.items():
            own = [
                _by(run, metric, x) - (bases[run.seed] if against else 0.0)
                for run in by_epoch
                if run.row == row
            ]
            if not own:
                continue
            table = pd.concat(own, axis=1)
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


def _by(run: Run, metric: str, x: str) -> pd.Series[float]:
    return run.epochs.set_index(x)[metric].astype(float)


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


def series(values: Mapping[float, Values], **style: Any) -> Draw:
    """The mean over seeds of the ``values`` at each x, in order, with one standard deviation either way; an x
    without values, or with one that is not finite, is left out. ``style``: as in `means`."""
    pairs = [
        (x, value)
        for x, own in values.items()
        if len(own) and np.isfinite(own).all()
        for value in own
    ]
    table = pd.DataFrame(pairs, columns=["x", "y"], dtype=float)
    return means(table, "x", "y", spread=True, **style)


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
    halves: Mapping[str, Values] | None = None,
) -> Draw:
    """Bars side by side: a group on the x axis, a bar in each group for every key of ``heights``.
    ``numbers``: the format of the number above each bar, such as "%.0f"; ``halves``: of their intervals."""

    def draw(axes: Axes) -> None:
        width = 0.8 / max(1, len(heights))
        middle = np.arange(len(groups), dtype=float)
        for place, (key, values) in enumerate(heights.items()):
            look = looks[key]
            drawn = axes.bar(
                middle + width * (place - (len(heights) - 1) / 2), values, width * 0.92, label=look.label,
                color=look.colour, hatch="" if look.dashes == "-" else "///", edgecolor="white",
                linewidth=0.5, yerr=halves and halves[key], error_kw={"elinewidth": 1.2},
            )  # fmt: skip
            if numbers:
                axes.bar_label(drawn, fmt=numbers, fontsize=9)
        aslant: dict[str, Any] = {"rotation": 30, "ha": "right"} if len(groups) > MOST_LEVEL else {}
        axes.set_xticks(middle, groups, **aslant)
        axes.grid(axis="x", visible=False)

    return draw


def strip(
    rows: Sequence[Values],
    span: Span,
    looks: Look | Sequence[Look],
    *,
    least: int = 1,
    seeds: bool = False,
) -> Draw:
    """A line for each row, from the top: the middle of its values with an interval (``span``; from ``least``
    values on); ``seeds``: with a small dot for each value. One look is that of all rows, and names them in
    the legend."""

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
            how: dict[str, Any] = {"color": look.colour, "markerfacecolor": look.face}
            axes.errorbar(middle, place, xerr=reach, label=label, fmt=look.marker, **how)
            label = None

    return draw


def heat_map(
    table: NDArray[np.float64],
    rows: Sequence[str],
    columns: Sequence[str],
    write: Callable[[float], str],
    is_dark: Callable[[float], bool],
    **image: Any,
) -> Draw:
    """A coloured cell for each row and column, with the text ``write(value)`` in it: white where
    ``is_dark``. ``image``: arguments of ``Axes.imshow``, such as cmap and norm."""

    def draw(axes: Axes) -> None:
        axes.imshow(table, aspect="auto", **image)
        for (row, column), value in np.ndenumerate(table):
            colour = "white" if np.isfinite(value) and is_dark(value) else "black"
            text = write(float(value))
            axes.text(column, row, text, ha="center", va="center", fontsize=9, color=colour)
        axes.set_xticks(range(len(columns)), list(columns), rotation=30, ha="right")
        axes.set_yticks(range(len(rows)), list(rows))
        axes.grid(visible=False)

    return draw
