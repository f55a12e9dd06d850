"""Figures: one style, looks of rows, names beside points, saving. panels.py has what is drawn.

Above the axes stand a title and one line of facts; everything else is the caption on the page (page.py).

Colours are Okabe and Ito's; markers tell rows apart in grey. A saved figure depends on its data alone.
"""

from __future__ import annotations

import io
import itertools
import math
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis, XAxis, YAxis
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.scale import LogScale, LogTransform
from matplotlib.textpath import TextPath
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator
from matplotlib.transforms import Bbox
from PIL import Image

from dgc_repro import files

BLACK, ORANGE, BLUE = "#000000", "#D55E00", "#0072B2"
GREEN, SKY, PURPLE, YELLOW = "#009E73", "#56B4E9", "#CC79A7", "#E69F00"
CYCLE = (BLUE, ORANGE, GREEN, PURPLE, SKY, YELLOW, BLACK)
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
CHARACTERS_AN_INCH = 13.0
LEAST_WIDTH = 6.4
"""Inches of a figure, so that its title and facts have one line each."""
LEGEND_INCHES = 0.6
"""Height of a legend for which the figure has room; it grows for a higher one."""
HEADING_POINTS = 10.5
NAME_DISTANCES = (5.0, 9.0, 14.0, 20.0, 28.0, 38.0, 50.0, 64.0, 80.0, 100.0)
"""Points between a marker and its name (`name_points`), as tried."""
NAME_DIRECTIONS = tuple(np.linspace(0, 2 * np.pi, 24, endpoint=False))
HALO = (withStroke(linewidth=2.5, foreground="white"),)
MARKER_POINTS = 4.5
"""Half the side of a marker's place."""
LEADER: dict[str, Any] = {"arrowstyle": "-", "linewidth": 0.6, "shrinkA": 0, "shrinkB": 4}
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
    "font.size": 10.0,
    "axes.titlesize": 10.0,
    "axes.labelsize": 10.0,
    "legend.fontsize": 9.5,
    "xtick.labelsize": 9.0,  # on a slide, 9 points are the least that can be read
    "ytick.labelsize": 9.0,
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
    facts: Sequence[str],
    panels: Sequence[tuple[str, Callable[[Axes], None]]],
    *,
    columns: int = 3,
    size: tuple[float, float] = (4.1, 3.6),
    legend: int = 4,
) -> Figure:
    """Draw a figure of ``panels`` (a title, and a function that draws into axes), ``columns`` side by side.

    ``facts``: those that fit stand in the line under the title, the most important first. ``size``: of a
    panel, in inches. ``legend``: most columns of the one legend below all panels, 0 for none."""
    columns = min(columns, len(panels))
    num_rows = -(-len(panels) // columns)
    width = max(size[0] * columns, LEAST_WIDTH)
    with style():
        drawing = Figure(figsize=(width, size[1] * num_rows + 0.5), layout="constrained")
        heading = f"{in_one_line([title], width, ' ')}\n{in_one_line(facts, width, '; ')}".strip()
        drawing.suptitle(literal(heading), x=0.01, ha="left", fontsize=HEADING_POINTS)
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


def in_one_line(parts: Sequence[str], width: float, between: str) -> str:
    """Join the first parts that fit a line of a figure's heading, ``width`` inches; of a first part that is
    longer, its first words."""
    line = ""
    for part in filter(None, parts):
        longer = f"{line}{between}{part}" if line else part
        if not _fits(longer, width):
            break
        line = longer
    words = parts[0].split() if parts and not line else []
    while words and not _fits(line := " ".join([*words, "..."]), width):
        words.pop()
    return line


def _fits(text: str, width: float) -> bool:
    drawn = TextPath((0, 0), literal(text.replace("\n", " ")), size=HEADING_POINTS)
    return bool(drawn.get_extents().width <= 72 * 0.94 * width)


def _legend(drawing: Figure, most: int) -> None:
    """Draw the legend of all panels below them, in at most ``most`` columns that the canvas has room for.
    A name that is wider than the canvas has several rows; a high legend makes a higher canvas."""
    handles: dict[str, Any] = {}
    for axes in drawing.axes:
        lines, labels = axes.get_legend_handles_labels()
        handles |= dict(zip(labels, lines, strict=True))
    if not handles:
        return
    letters = int(CHARACTERS_AN_INCH * (drawing.get_figwidth() - 0.8))
    fewer = range(min(most, len(handles)), 0, -1)
    for columns in itertools.chain(fewer, itertools.repeat(1)):
        names = [textwrap.fill(name, letters) for name in handles]
        num_rows = math.ceil(len(names) / columns)
        drawn = drawing.legend(
            list(handles.values()), names, loc="outside lower center", handlelength=3,
            ncols=math.ceil(len(names) / num_rows),
        )  # fmt: skip
        box = drawn.get_window_extent()
        if box.width <= drawing.bbox.width or letters == 1:
            break
        drawn.remove()
        if columns == 1:
            letters = max(1, int(0.95 * letters * drawing.bbox.width / box.width))
    higher = max(0.0, box.height / drawing.dpi - LEGEND_INCHES)
    drawing.set_figheight(drawing.get_figheight() + higher)


def literal(text: str) -> str:
    """Text that matplotlib draws as it is: a record's names are no formulas."""
    return text.replace("$", r"\$")


def name_points(
    axes: Axes,
    where: Mapping[str, tuple[float, float]],
    colours: Mapping[str, str],
    bars: Mapping[str, tuple[float, float]],
    others: Sequence[tuple[float, float]] = (),
    line: Sequence[tuple[float, float]] = (),
    **font: Any,
) -> bool:
    """Write each name beside its point (x, y), inside the panel and over no other name or marker, ``others``
    included, and where possible beside the error bars (half widths in x and y) and a ``line`` through points.

    Returns whether all names have a place; else none is written. The layout of the figure is final then.
    """
    drawing: Any = axes.figure
    drawing.draw_without_rendering()
    drawing.set_layout_engine("none")
    point = drawing.dpi / 72
    centres = {name: axes.transData.transform(xy) for name, xy in where.items()}
    markers = [*centres.values(), *map(axes.transData.transform, others)]
    taken = [Bbox([xy, xy]).padded(MARKER_POINTS * point) for xy in markers]
    ends = ((np.subtract(xy, bars[name]), np.add(xy, bars[name])) for name, xy in where.items())
    pairs = [*ends, *itertools.pairwise(line)]
    lines = [Bbox(axes.transData.transform(np.array(pair))).padded(point) for pair in pairs]
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


class RoundedLog10(LogTransform):
    """Logarithms to base 10, computed in extended precision and rounded to float64. The last bit of numpy's
    float64 logarithm differs between processors with and without AVX512, and that bit changes pixels."""

    def transform_non_affine(self, values: Any) -> Any:
        logarithms = super().transform_non_affine(np.asanyarray(values, np.longdouble))
        return np.asanyarray(logarithms, float)


class RoundedLogScale(LogScale):
    """Matplotlib's logarithmic scale with `RoundedLog10`."""

    def get_transform(self) -> RoundedLog10:
        return RoundedLog10(10)


def plain_log(axis: XAxis | YAxis, unit: str = "") -> None:
    """Make an axis logarithmic. Its ticks stand at powers of ten, and at 2 and 5 of them in a short range, as
    plain numbers."""
    axis.axes.set(**{f"{axis.axis_name}scale": RoundedLogScale(axis)})
    low, high = axis.get_view_interval()
    few = (1.0, 2.0, 5.0) if high < 1_000 * low else (1.0,)
    axis.set_major_locator(LogLocator(subs=few))
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
