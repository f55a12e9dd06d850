"""The tables as bars: median ratio, middle half as a whisker, targets as ticks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from bench_measure import Row
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dgc_repro.paper.plot import BLACK, BLUE, ORANGE, save, style, title

THICK = 0.2


def draw_methods(rows: Sequence[Row], caption: str, folder: Path) -> None:
    """methods.svg and .png: compress and decompress a method."""
    bars = {"compress": ("compress_x", ORANGE), "decompress": ("decompress_x", BLUE)}
    targets = {"compress": "compress_at_most", "decompress": "decompress_at_most"}
    with style():
        figure, axes = _bars(rows, "setting", bars, targets)
        axes.axvline(1.0, color=BLACK, linewidth=0.8)
        axes.set_xlabel("multiples of a copy_ (black tick: at most)")
        axes.legend(loc="lower right")
        title(axes, "Methods", caption)
    save(figure, folder, "methods")


def draw_exchange(rows: Sequence[Row], caption: str, folder: Path) -> None:
    """exchange.svg and .png: each way to exchange against plain DDP."""
    bars = {"step": ("step_x", BLUE)}
    with style():
        figure, axes = _bars(rows, "case", bars, {"step": "at_most"})
        axes.axvline(1.0, color=BLACK, linewidth=0.8)
        axes.set_xlabel("multiples of plain DDP's step (black tick: target, at most)")
        title(axes, "Exchange", caption)
    save(figure, folder, "exchange")


def draw_gravac(rows: Sequence[Row], caption: str, folder: Path) -> None:
    """gravac.svg and .png: what each way adds to a step with a static factor that sends the same."""
    shown = [row for row in rows if row["extra_percent"] is not None]
    with style():
        figure, axes = _bars(
            shown, "case", {"over static": ("extra_percent", BLUE)}, {"over static": "at_most"}
        )
        axes.axvline(0.0, color=BLACK, linewidth=0.8)
        axes.set_xlabel("% of a step with the static factor that is sent (black tick: at most)")
        title(axes, "What GraVAC adds to a step", caption)
    save(figure, folder, "gravac")


def _bars(
    rows: Sequence[Row],
    label: str,
    bars: Mapping[str, tuple[str, str]],
    targets: Mapping[str, str],
) -> tuple[Figure, Axes]:
    """Horizontal bars, the first row on top; ``targets``: from a bar's name to its column."""
    figure = Figure(
        figsize=(7.5, 1.0 + len(rows) * (0.12 + THICK * len(bars))), layout="constrained"
    )
    axes = figure.add_subplot()
    for offset, (name, (key, colour)) in enumerate(bars.items()):
        shift = (offset - (len(bars) - 1) / 2) * THICK
        places = [place + shift for place in range(len(rows))]
        values = [_number(row, key) for row in rows]
        low = [v - _number(row, f"{key}_q1", v) for v, row in zip(values, rows, strict=True)]
        high = [_number(row, f"{key}_q3", v) - v for v, row in zip(values, rows, strict=True)]
        axes.barh(
            places,
            values,
            height=THICK,
            color=colour,
            label=name,
            xerr=[low, high],
            error_kw={"linewidth": 0.8},
        )
        for place, row in zip(places, rows, strict=True):
            limit = row.get(targets.get(name, ""))
            if isinstance(limit, float):
                axes.plot(
                    [limit, limit], [place - THICK / 2, place + THICK / 2], color=BLACK, linewidth=2
                )
    axes.set_yticks(range(len(rows)), [str(row[label]) for row in rows])
    axes.margins(y=0.01)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    return figure, axes


def _number(row: Row, key: str, missing: float = 0.0) -> float:
    value = row.get(key)
    return missing if value is None else float(value)
