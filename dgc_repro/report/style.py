"""How every figure looks and is saved: colours, fonts, and bytes that do not change on rebuilding.

Colours are Okabe and Ito's, told apart by the colour-blind and by their markers in grey.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from PIL import Image

BLACK, ORANGE, BLUE = "#000000", "#D55E00", "#0072B2"
GREEN, SKY, PURPLE, YELLOW = "#009E73", "#56B4E9", "#CC79A7", "#E69F00"

SETTINGS: dict[Any, Any] = {
    "svg.hashsalt": "dgc_repro",  # element ids, random otherwise
    "svg.fonttype": "path",
    "font.family": "DejaVu Sans",  # travels with matplotlib: the same text everywhere
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


@contextmanager
def house_style() -> Iterator[None]:
    """Matplotlib's defaults with ours on top, for the time of one drawing or saving."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(SETTINGS)
        yield


def title(axes: Axes, what: str, caption: str) -> None:
    """What is shown in bold and, on the line under it, scale, data, world and n."""
    axes.set_title(f"{what}\n", loc="left", fontweight="bold")
    axes.annotate(
        caption,
        xy=(0, 1),
        xytext=(0, 5),
        xycoords="axes fraction",
        textcoords="offset points",
        fontsize=7.5,
        color="#444444",
    )


def plain_log(axis: Axis, subs: Sequence[float] = (1.0, 2.0, 5.0), unit: str = "") -> None:
    """Ticks of a logarithmic axis at these multiples of each power of ten, in plain numbers, and no others:
    matplotlib's own labels run into each other where an axis is short. ``unit``: after each number."""
    axis.set_major_locator(LogLocator(subs=subs))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}{unit}"))
    axis.set_minor_formatter(NullFormatter())


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write ``name``.svg and ``name``.png; the bytes depend on the figure alone (no date)."""
    svg, png = folder / f"{name}.svg", folder / f"{name}.png"
    drawn = io.BytesIO()
    with house_style():
        figure.savefig(svg, metadata={"Date": None, "Creator": None})
        figure.savefig(drawn, format="png", dpi=150)
    # A palette of 256 colours: a third of the bytes, and nothing the eye can see.
    image = Image.open(drawn).convert("RGB")
    image.quantize(256, dither=Image.Dither.NONE).save(png, optimize=True)
    return [svg, png]
