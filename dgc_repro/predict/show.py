"""Predictions as tables, CSV and a figure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table

from dgc_repro.bench.tables import write_csv
from dgc_repro.errors import UserError
from dgc_repro.paper import plot
from dgc_repro.paper.page import console_of_width, grid

if TYPE_CHECKING:
    from dgc_repro.predict.prediction import Prediction

PARTS = {
    "compute_ms": ("compute", "#BBBBBB"),
    "compress_ms": ("compress", plot.ORANGE),
    "communicate_ms": ("communicate (modelled)", plot.BLUE),
    "decompress_ms": ("decompress", plot.YELLOW),
}
RATES = ((1e12, "Tbit/s"), (1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s"))
LITTLE = 0.5
"""A loss, in points or percent, that the advice calls little."""
OVERLAP_MARK = 40  # points, of a whole group of bars


def show(
    dense: Sequence[Prediction],
    found: Sequence[Prediction],
    compared: Sequence[Prediction],
    about: Mapping[str, Any],
    folder: Path,
) -> None:
    """Print, and write ``predictions.csv``, ``predictions.svg`` and ``.png``. Raises UserError."""
    console = console_of_width()
    by_size = sorted([*dense, *found], key=lambda one: one.workers)
    shown: dict[str, Sequence[Prediction]] = {"By number of workers": by_size}
    if compared:
        shown[f"{compared[0].workers} workers, fastest first"] = compared
    for line in head(about):
        console.print(line, soft_wrap=True)
    for title, some in shown.items():
        for what, columns in TABLES.items():
            console.print(table(f"{title}: {what}", columns, some))
    for line in (about["quality"], *advice(compared)):
        console.print(line, soft_wrap=True)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        rows = {(one.method, one.workers): asdict(one) for one in (*by_size, *compared)}
        write_csv(folder / "predictions.csv", list(rows.values()), about)
        plot.save(figure(dense, found, about), folder, "predictions")
    except OSError as error:
        raise UserError(f"out: cannot write to {folder} ({error.strerror})") from error
    print(f"written to {folder}: predictions.csv, .svg, .png", flush=True)


def advice(compared: Sequence[Prediction]) -> list[str]:
    """The fastest methods, and what to know of them; ``compared``: fastest first."""
    if not compared:
        return []
    best = compared[0]
    overlap = " with overlap" if best.best_ms < best.step_ms else ""
    lines = [
        f"fastest of these {len(compared)}: {best.method}{overlap}, {best.best_ms:.4g} ms per step, loss "
        f"{_loss(best.loss)}; recommend chooses by loss and time"
    ]
    good = next((o for o in compared if o.loss is not None and o.loss <= LITTLE), best)
    if good is not best:
        lines.append(
            f"fastest that lost at most {LITTLE:g}: {good.method}, {good.best_ms:.4g} ms per step"
        )
    if any("sharded" in one.method for one in compared):
        lines.append(
            "sharded uses all-to-all, for which gloo needs up to twice what a profile by name says on slow "
            "links (docs/networks.md): calibrate at this rate before you believe it"
        )
    return lines


def head(about: Mapping[str, Any]) -> list[str]:
    """What the numbers are of."""
    busy = about.get("busy_cores", 0)
    return [
        f"{about['model']}, {about['parameters'] / 1e6:.4g} M parameters in {about['tensors']} tensors, "
        f"batch {about['batch_size']}, {about['data']}",
        "; ".join(filter(None, (f"network (modelled): {about['network']}", about["source"]))),
        f"compute {about['compute']}, compress and decompress measured: {about['hardware']}, "
        f"{about['threads']} threads, {about['date']}"
        + (f"; {busy:.1f} cores were busy with other work" if busy > 0.25 else ""),
    ]


def _shown(text: Callable[[float], str]) -> Callable[[float | None], str]:
    return lambda value: "-" if value is None else text(value)


_ms = _shown(lambda value: f"{value:.0f}" if value >= 100 else f"{value:.3g}")
_percent = _shown(lambda value: f"{100 * value:.0f} %")
_times = _shown("{:.2f}".format)
_loss = _shown("{:.2f}".format)


def rate(bits: float) -> str:
    """A rate as people say it; never and always too."""
    if math.isnan(bits):
        return "never"
    if math.isinf(bits):
        return "any rate"
    for size, unit in RATES:
        if bits >= size:
            return f"{bits / size:.3g} {unit}"
    return f"{bits:.3g} bit/s"


Column = tuple[str, str, Callable[[Any], str]]
NAMES: Sequence[Column] = (("method", "method", str), ("N", "workers", str))
TABLES: Mapping[str, Sequence[Column]] = {
    "milliseconds and payload a step": (
        *NAMES,
        *((part.removesuffix("_ms"), part, _ms) for part in (*PARTS, "step_ms", "overlap_ms")),
        ("MB", "payload_mb", "{:.3g}".format),
    ),
    "what it is worth": (
        *NAMES,
        ("T_N/(N T_1)", "efficiency", _percent),
        ("overlap", "overlap_efficiency", _percent),
        ("x dense", "speedup", _times),
        ("overlap", "overlap_speedup", _times),
        ("pays below", "break_even", _shown(rate)),
        ("loss", "loss", _loss),
        ("n", "seeds", str),
    ),
}
"""Heading, field and format of each column."""


def table(title: str, columns: Sequence[Column], rows: Sequence[Prediction]) -> Table:
    """For the terminal."""
    cells = ([shown(getattr(row, field)) for _, field, shown in columns] for row in rows)
    return grid(title, [heading for heading, _, _ in columns], cells)


def figure(
    dense: Sequence[Prediction], found: Sequence[Prediction], about: Mapping[str, Any]
) -> Figure:
    """Left: where a step's time goes, dense and the method side by side; right: scaling efficiency."""
    groups = [rows for rows in (dense, found) if rows]
    sizes = [row.workers for row in dense]

    def split(axes: Axes) -> None:
        for number, rows in enumerate(groups):
            _draw_parts(axes, rows, number, len(groups))
        axes.set_xticks(range(len(sizes)), [str(size) for size in sizes])
        plot.name_axes(axes, "workers", "ms a step")
        axes.set_ylim(top=1.45 * axes.get_ylim()[1])  # room for the legend
        axes.legend(loc="upper left", ncols=2)

    def scaling(axes: Axes) -> None:
        for rows, colour, marker in zip(groups, (plot.BLACK, plot.BLUE), "o^", strict=False):
            for field, dashes, more in (
                ("efficiency", "-", ""),
                ("overlap_efficiency", "--", ", with overlap"),
            ):
                shares = [getattr(row, field) for row in rows]
                if None not in shares:
                    look = plot.Look(f"{rows[0].method}{more}", colour, marker, dashes)
                    workers = [row.workers for row in rows]
                    axes.plot(workers, [100 * share for share in shares], **look.line)
        axes.set_xscale("log", base=2)
        axes.set_xticks(sizes, [str(size) for size in sizes])
        axes.set_ylim(0, 105)
        plot.name_axes(axes, "workers", "T_N / (N T_1), %")
        axes.legend()

    names = "dense" + (f" (plain), {found[0].method} (hatched)" if found else "")
    panels = [
        (f"A step: {names}", split),
        ("Scaling efficiency (modelled)", scaling),
    ]
    caption = f"{about['model']}, {about['network']}"
    return plot.figure("A step predicted", caption, panels, size=(4.5, 3.5), legend=0)


def _draw_parts(axes: Axes, rows: Sequence[Prediction], number: int, groups: int) -> None:
    """The bars of one method, the ``number``-th of each group."""
    width = 0.8 / groups
    places = [i + (number - (groups - 1) / 2) * width for i in range(len(rows))]
    bottom = [0.0] * len(rows)
    for part, (label, colour) in PARTS.items():
        heights = [getattr(row, part) for row in rows]
        axes.bar(
            places,
            heights,
            0.9 * width,
            bottom=bottom,
            color=colour,
            label=label if number == 0 else None,
            hatch="//" if number else None,
            edgecolor="white",
            linewidth=0.3,
        )
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    marks = [row.overlap_ms for row in rows if row.overlap_ms is not None]
    if len(marks) == len(rows):
        axes.plot(
            places,
            marks,
            "_",
            color=plot.BLACK,
            markersize=OVERLAP_MARK * width,
            markeredgewidth=2,
            label="with overlap" if number == 0 else None,
        )
