"""Figures: one style, looks of rows, names beside points, saving. panels.py has what is drawn.

Colours are Okabe and Ito's; markers tell rows apart in grey. A saved figure depends on its data alone.
"""

from __future__ import annotations

import io
import itertools
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator
from matplotlib.transforms import Bbox
from PIL import Image

from dgc_repro import files

BLACK, ORANGE, BLUE = "#000000", "#D55E00", "#0072B2"
GREEN, SKY, PURPLE, YELLOW = "#009E73", "#56B4E9", "#CC79A7", "#E69F00"
CYCLE = (BLUE, ORANGE, GREEN, PURPLE, SKY, YELLOW, BLACK)
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
CHARACTERS_AN_INCH = 13.0
NAME_DISTANCES = (5.0, 9.0, 14.0, 20.0, 28.0, 38.0, 50.0, 64.0, 80.0, 100.0)
"""Points between a marker and its name (`name_points`), as tried."""
NAME_DIRECTIONS = tuple(np.linspace(0, 2 * np.pi, 24, endpoint=False))
HALO = (withStroke(linewidth=2.5, foreground="white"),)
MARKER_POINTS = 4.5
"""Half the side of a marker's place."""
LEADER: dict[str, Any] = {"arrowstyle": "-", "linewidth": 0.6, "shrinkA": 0, "shrinkB": 4}
LEGEND_SHARE = 1 / 3
"""Of a figure's height: a legend below the panels that is higher makes a higher figure."""
BESIDE: dict[str, Any] = {
    "loc": "upper left", "bbox_to_anchor": (1.01, 1.0), "borderaxespad": 0, "handlelength": 1,
}  # fmt: skip
"""Of a legend: a list at the right of a panel."""
MILLION = 1e6
LARGE_UNITS = ((1e12, " T"), (1e9, " G"), (MILLION, " M"))
Panels = list[tuple[str, Callable[[Axes], None]]]
"""Titles, and functions that draw."""

SETTINGS: dict[Any, Any] = {
    "svg.hashsalt": "dgc_repro",  # element ids, random otherwise
    "svg.fonttype": "path",
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same text everywhere
    "font.size": 9.0,
    "axes.titlesize": 9.0,
    "axes.labelsize": 9.0,
    "legend.fontsize": 8.0,
    "xtick.labelsize": 8.0,
    "ytick.labelsize": 8.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "lines.linewidth": 1.6,
    "legend.frameon": False,
    "figure.dpi": 100.0,
}


@dataclass(frozen=True)
class Look:
    """How one row is drawn wherever it appears. ``wide``: a broad pale line under the others, for a row that
    others may hide."""

    label: str
    colour: str
    marker: str = "o"
    dashes: str = "-"
    wide: bool = False

    @property
    def line(self) -> dict[str, Any]:
        """Arguments of ``Axes.plot``."""
        if self.wide:
            broad = {"color": "#999999", "linewidth": 5.0, "alpha": 0.55, "zorder": 1}
            return {**broad, "label": self.label}
        return {
            "color": self.colour, "linestyle": self.dashes, "marker": self.marker, "markersize": 4,
            "markerfacecolor": self.face, "label": self.label,
        }  # fmt: skip

    @property
    def face(self) -> str:
        """The inside of the marker: white where the line is dashed."""
        return "white" if self.dashes != "-" else self.colour


@contextmanager
def style() -> Iterator[None]:
    """Matplotlib's defaults with ours on top."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(SETTINGS)
        yield


def figure(
    title: str,
    caption: str,
    panels: Sequence[tuple[str, Callable[[Axes], None]]],
    *,
    columns: int = 3,
    size: tuple[float, float] = (4.1, 3.6),
    legend: int = 4,
) -> Figure:
    """A figure of ``panels`` (a title, and a function that draws into axes), ``columns`` side by side.

    ``caption``: scale, model, data, n, under the title. ``size``: of a panel, in inches. ``legend``: most
    columns of the one legend below all panels, 0 for none."""
    columns = min(columns, len(panels))
    num_rows = -(-len(panels) // columns)
    width = max(size[0] * columns, 5.6)
    under = textwrap.fill(caption, int(CHARACTERS_AN_INCH * width))
    height = size[1] * num_rows + 0.16 * under.count("\n") + 0.5
    with style():
        drawing = Figure(figsize=(width, height), layout="constrained")
        drawing.suptitle(literal(f"{title}\n{under}"), x=0.01, ha="left", fontsize=9.5)
        grid = drawing.subplots(num_rows, columns, squeeze=False)
        places = list(grid.ravel())
        for axes, (name, draw) in zip(places, panels, strict=False):
            axes.set_title(literal(name), loc="left", fontweight="bold")
            draw(axes)
        for axes in places[len(panels) :]:
            axes.set_axis_off()
        if legend:
            _legend(drawing, legend)
    return drawing


def _legend(drawing: Figure, most: int) -> None:
    """Draw the legend of all panels below them, in at most ``most`` columns that the canvas has room for.
    A name that is wider than the canvas has several rows; a high legend makes a higher canvas."""
    handles: dict[str, Any] = {}
    for axes in drawing.axes:
        lines, labels = axes.get_legend_handles_labels()
        handles |= dict(zip(labels, lines, strict=True))
    names, letters = list(handles), max(map(len, handles), default=1)
    for columns in itertools.chain(range(most, 0, -1), itertools.repeat(1)):
        drawn = drawing.legend(
            list(handles.values()), names, loc="outside lower center", ncols=columns, handlelength=3,
        )  # fmt: skip
        size = drawn.get_window_extent()
        if size.width <= drawing.bbox.width or letters == 1:
            break
        drawn.remove()
        if columns == 1:
            letters = max(1, int(0.95 * letters * drawing.bbox.width / size.width))
            names = [textwrap.fill(name, letters) for name in handles]
    if size.height > LEGEND_SHARE * drawing.bbox.height:
        drawing.set_figheight(drawing.get_figheight() + size.height / drawing.dpi)


def literal(text: str) -> str:
    """Text that matplotlib draws as it is: a record's names are no formulas."""
    return text.replace("$", r"\$")


def name_points(
    axes: Axes,
    where: Mapping[str, tuple[float, float]],
    colours: Mapping[str, str],
    bars: Mapping[str, tuple[float, float]],
    **font: Any,
) -> bool:
    """Write each name beside its point (x, y), inside the panel and over no other name or marker, and where
    possible beside the error bars (half widths in x and y).

    Returns whether all names have a place; else none is written. The layout of the figure is final then.
    """
    drawing: Any = axes.figure
    drawing.draw_without_rendering()
    drawing.set_layout_engine("none")
    point = drawing.dpi / 72
    centres = {name: axes.transData.transform(xy) for name, xy in where.items()}
    taken = [Bbox([xy, xy]).padded(MARKER_POINTS * point) for xy in centres.values()]
    ends = ((np.subtract(xy, bars[name]), np.add(xy, bars[name])) for name, xy in where.items())
    lines = [Bbox(axes.transData.transform(pair)).padded(point) for pair in ends]
    places = {}
    for name, centre in sorted(centres.items(), key=lambda item: tuple(-item[1])):
        probe = axes.annotate(name, where[name], **font)
        half = np.array(probe.get_window_extent().size) / 2 + point
        probe.remove()
        free: list[tuple[float, int, Any, Bbox]] = []
        for distance, angle in itertools.product(NAME_DISTANCES, NAME_DIRECTIONS):
            aside = np.array([np.cos(angle), np.sin(angle)]) * (half + distance * point)
            box = Bbox([centre + aside - half, centre + aside + half])
            is_inside = axes.bbox.contains(*box.min) and axes.bbox.contains(*box.max)
            if is_inside and not box.count_overlaps(taken):
                cost = distance + 20 * box.count_overlaps(lines)
                free.append((cost, len(free), aside / point, box))
        if not free:
            return False
        _, _, places[name], box = min(free)
        taken.append(box)
    for name, aside in places.items():
        leader = dict(LEADER, color=colours[name])
        axes.annotate(
            name, where[name], xytext=tuple(aside), textcoords="offset points", ha="center", va="center",
            color=colours[name], path_effects=HALO, arrowprops=leader, **font,
        )  # fmt: skip
    return True


def plain_log(axis: Axis, subs: Sequence[float] = (), unit: str = "") -> None:
    """Ticks of a logarithmic axis at these multiples of each power of ten, in plain numbers; multiples that
    fit the range where none are given."""
    low, high = axis.get_view_interval()
    few = (1.0, 2.0, 5.0) if high < 1_000 * low else (1.0,)
    axis.set_major_locator(LogLocator(subs=subs or few))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{tick_text(value)}{unit}"))
    axis.set_minor_formatter(NullFormatter())


def plain_ticks(axis: Axis, places: Sequence[float]) -> None:
    """Ticks at these places alone, as plain numbers."""
    axis.set_major_locator(FixedLocator(places))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: tick_text(value)))


def plain_linear(axis: Axis) -> None:
    """Ticks of an axis that reaches a million without a power of ten at its end."""
    if max(map(abs, axis.get_view_interval())) >= MILLION:
        axis.set_major_formatter(FuncFormatter(lambda value, _: tick_text(value)))


def tick_text(value: float) -> str:
    """A plain number; from a million on in M, G or T."""
    size, letter = next((unit for unit in LARGE_UNITS if abs(value) >= unit[0]), (1.0, ""))
    return f"{value / size:g}{letter}"


def empty(axes: Axes, why: str) -> None:
    """Say in a panel without data why there is none."""
    axes.text(0.5, 0.5, why, transform=axes.transAxes, ha="center", va="center", color="#666666")


def save(drawing: Figure, folder: Path, name: str) -> None:
    """Write ``name``.svg and ``name``.png; the bytes depend on the figure alone (no date)."""
    drawn, vectors, palette = io.BytesIO(), io.BytesIO(), io.BytesIO()
    with style():
        drawing.savefig(vectors, format="svg", metadata={"Date": None, "Creator": None})
        drawing.savefig(drawn, format="png", dpi=150)
    # A palette of 256 colours: a third of the bytes, and no visible difference.
    image = Image.open(drawn).convert("RGB")
    image.quantize(256, dither=Image.Dither.NONE).save(palette, format="png", optimize=True)
    files.replace(folder / f"{name}.svg", vectors.getvalue())
    files.replace(folder / f"{name}.png", palette.getvalue())
