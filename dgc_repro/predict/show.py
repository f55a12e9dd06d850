"""Predictions as tables, CSV and a figure."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure
from rich import box
from rich.table import Table

from dgc_repro.errors import UserError
from dgc_repro.paper import plot
from dgc_repro.paper.page import console_of_width

if TYPE_CHECKING:
    from dgc_repro.predict.prediction import Prediction

PARTS = {
    "compute_ms": ("compute", "#BBBBBB"),
    "compress_ms": ("compress", plot.ORANGE),
    "communicate_ms": ("communicate (modelled)", plot.BLUE),
    "decompress_ms": ("decompress", plot.YELLOW),
}
RATES = ((1e12, "Tbit/s"), (1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s"))


def show(
    dense: Sequence[Prediction],
    found: Sequence[Prediction],
    compared: Sequence[Prediction],
    about: Mapping[str, Any],
    folder: Path,
) -> None:
    """Print, and write ``predictions.csv``, ``predictions.svg`` and ``.png``. Raises UserError."""
    console = console_of_width()
    for line in head(about):
        console.print(line, highlight=False, soft_wrap=True)
    by_size = sorted([*dense, *found], key=lambda one: one.workers)
    for made in tables("By number of workers", by_size):
        console.print(made)
    if compared:
        for made in tables(f"{compared[0].workers} workers, fastest first", compared):
            console.print(made)
        best = compared[0]
        overlap = " with overlap" if best.best_ms < best.step_ms else ""
        console.print(
            f"fastest of these {len(compared)}: {best.method}{overlap}, {best.best_ms:.4g} ms a step; what a "
            "method does to the loss is not in a prediction",
            highlight=False,
        )
        if any("scatter" in one.method for one in compared):
            console.print(
                "scatter goes by all-to-all, for which gloo needs up to twice what a profile by name says on "
                "slow links (docs/networks.md): calibrate at this rate before you believe it",
                highlight=False,
            )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_csv(folder / "predictions.csv", [*by_size, *compared], about)
        plot.save(figure(dense, found, about), folder, "predictions")
    except OSError as error:
        raise UserError(f"out: cannot write to {folder} ({error.strerror})") from error
    print(f"written to {folder}: predictions.csv, .svg, .png", flush=True)


def head(about: Mapping[str, Any]) -> list[str]:
    """What the numbers are of."""
    return [
        f"{about['model']}, {about['parameters'] / 1e6:.4g} M parameters in {about['tensors']} tensors, "
        f"batch {about['batch_size']}, {about['data']}",
        f"network (modelled): {about['network']}",
        f"compute {about['compute']}, compress and decompress measured: {about['hardware']}, "
        f"{about['threads']} threads, {about['date']}"
        + (
            f"; {about['busy_cores']:.1f} cores were busy with other work"
            if about.get("busy_cores", 0) > 0.25
            else ""
        ),
    ]


def tables(title: str, rows: Sequence[Prediction]) -> list[Table]:
    """Milliseconds a step, and what they are worth."""
    split = _table(
        f"{title}: milliseconds a step",
        ("compute", "compress", "communicate", "decompress", "step", "overlap"),
    )
    worth = _table(
        f"{title}: what it is worth",
        ("T_N/(N T_1)", "overlap", "x dense", "overlap", "MB", "pays below"),
    )
    for row in rows:
        who = row.method, str(row.workers)
        split.add_row(
            *who,
            *(_ms(getattr(row, part)) for part in PARTS),
            _ms(row.step_ms),
            _ms(row.overlap_ms),
        )
        worth.add_row(
            *who,
            _percent(row.efficiency),
            _percent(row.overlap_efficiency),
            _times(row.speedup),
            _times(row.overlap_speedup),
            f"{row.payload_mb:.3g}",
            "-" if row.method == "dense" else rate(row.break_even),
        )
    return [split, worth]


def _table(title: str, headings: Sequence[str]) -> Table:
    made = Table(title=title, title_justify="left", box=box.SIMPLE, pad_edge=False)
    made.add_column("method", no_wrap=True)
    for heading in ("N", *headings):
        made.add_column(heading, justify="right", no_wrap=True)
    return made


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f} %"


def _times(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


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


def write_csv(path: Path, rows: Sequence[Prediction], about: Mapping[str, Any]) -> None:
    """All numbers unrounded; what they are of repeats in every row."""
    known = dict.fromkeys((row.method, row.workers) for row in rows)
    one_each = [next(r for r in rows if (r.method, r.workers) == key) for key in known]
    whole = [{**asdict(row), **about} for row in one_each]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(whole[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(whole)


def figure(
    dense: Sequence[Prediction], found: Sequence[Prediction], about: Mapping[str, Any]
) -> Figure:
    """Left: where a step's time goes, dense and the method side by side; right: scaling efficiency."""
    with plot.style():
        drawn = Figure(figsize=(9.0, 3.9), layout="constrained")
        split, scaling = drawn.subplots(1, 2)
        groups = [rows for rows in (dense, found) if rows]
        width = 0.8 / len(groups)
        for number, rows in enumerate(groups):
            places = [i + (number - (len(groups) - 1) / 2) * width for i in range(len(rows))]
            bottom = [0.0] * len(rows)
            for part, (label, colour) in PARTS.items():
                heights = [getattr(row, part) for row in rows]
                split.bar(
                    places,
                    heights,
                    0.9 * width,
                    bottom=bottom,
                    color=colour,
                    label=label if number == 0 else None,
                    hatch="//" if number == 1 else None,
                    edgecolor="white",
                    linewidth=0.3,
                )
                bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
            marks = [row.overlap_ms for row in rows]
            if all(mark is not None for mark in marks):
                split.plot(
                    places,
                    [float(mark or 0) for mark in marks],
                    "_",
                    color=plot.BLACK,
                    markersize=40 * width,
                    markeredgewidth=2,
                    label="with overlap" if number == 0 else None,
                )
        split.set_xticks(range(len(dense)), [str(row.workers) for row in dense])
        split.set_xlabel("workers")
        split.set_ylabel("ms a step")
        split.set_ylim(top=1.45 * split.get_ylim()[1])  # room for the legend
        split.legend(loc="upper left", ncols=2)
        names = "dense (plain)" + (f" beside {found[0].method} (hatched)" if found else "")
        plot.title(split, "Where a step's time goes", names)
        for rows, colour, marker in ((dense, plot.BLACK, "o"), (found, plot.BLUE, "^")):
            if not rows:
                continue
            workers = [row.workers for row in rows]
            scaling.plot(
                workers,
                [100 * row.efficiency for row in rows],
                marker=marker,
                color=colour,
                label=rows[0].method,
            )
            overlapped = [row.overlap_efficiency for row in rows]
            if all(value is not None for value in overlapped):
                scaling.plot(
                    workers,
                    [100 * float(value or 0) for value in overlapped],
                    marker=marker,
                    color=colour,
                    linestyle="--",
                    label=f"{rows[0].method}, with overlap",
                )
        scaling.set_xscale("log", base=2)
        scaling.set_xticks([row.workers for row in dense], [str(row.workers) for row in dense])
        scaling.set_ylim(0, 105)
        scaling.set_xlabel("workers")
        scaling.set_ylabel("T_N / (N T_1), %")
        scaling.legend()
        plot.title(
            scaling, "Scaling efficiency (modelled)", f"{about['model']}, {about['network']}"
        )
    return drawn
