"""GraVAC's Table III written down: markdown, CSV, a terminal of 100 columns, and the figure."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from dgc_repro.paper import gravac
from dgc_repro.paper.gravac import DIRECT, MULTILEVEL, SINGLE_PASS, SPEEDUP
from dgc_repro.report import style
from dgc_repro.report.multilevel import (
    BLOCKS,
    LAYERWISE,
    ONE_VECTOR,
    WAYS,
    WEAK,
    Cell,
    Quotient,
    Spread,
    Table,
)
from dgc_repro.report.render import GRID, markdown_table, print_judged, readings, verdict_table

WAY_LABELS = {
    WEAK: "10x alone",
    DIRECT: "direct",
    MULTILEVEL: "multi-level",
    SINGLE_PASS: "single pass",
}
BLOCK_TITLES = {
    LAYERWISE: "Layerwise: every tensor by itself, summed over the model's, as the paper",
    ONE_VECTOR: "One vector: the whole gradient at once (ours; the paper has no such block)",
}
TIME_HEADINGS = (
    "model",
    "method",
    "paper ms: direct",
    "multi-level",
    "speedup",
    "ours ms: direct",
    "multi-level",
    "speedup [95 %]",
    "single pass ms",
    "multi-level / single pass [95 %]",
)
COPY_HEADINGS = ("model", "method", *(WAY_LABELS[way] for way in WAYS))
CHOSEN_HEADINGS = (
    "model",
    "method",
    "10x: asked",
    "chosen",
    "1000x: asked",
    "direct",
    "multi-level",
    "of asked, direct",
    "of asked, multi-level",
    "entries apart",
    "single pass",
    "apart from direct",
)
NOT_RUN, NONE = "not run", "-"
TIMED = (DIRECT, MULTILEVEL, SINGLE_PASS)


def _number(value: float | None) -> str:
    return NONE if value is None else f"{value:g}"


def spread(value: Spread | None) -> str:
    """Median and quartiles."""
    if value is None:
        return NONE
    return f"{_digits(value.middle)} ({_digits(value.low)}-{_digits(value.high)})"


def _digits(value: float) -> str:
    """Three digits, without an exponent."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def quotient(value: Quotient | None) -> str:
    """Median and interval."""
    if value is None:
        return NONE
    return f"{value.middle:.2f}x [{value.low:.2f}, {value.high:.2f}]"


def _names(cell: Cell) -> tuple[str, str]:
    return gravac.LABELS[cell.model], gravac.LABELS[cell.method]


def time_cells(cell: Cell) -> tuple[str, ...]:
    """The row of a block's first table."""
    ms = cell.milliseconds
    measured = (
        spread(ms.get(DIRECT)),
        spread(ms.get(MULTILEVEL)),
        quotient(cell.speedup),
        spread(ms.get(SINGLE_PASS)),
        quotient(cell.single_pass),
    )
    printed = (_number(cell.printed(part)) for part in (DIRECT, MULTILEVEL))
    speedup = cell.printed(SPEEDUP)
    return (
        *_names(cell),
        *printed,
        NONE if speedup is None else f"{speedup:g}x",
        *(measured if ms else (NOT_RUN, *measured[1:])),
    )


def copy_cells(cell: Cell) -> tuple[str, ...]:
    """The row of a block's second table."""
    return (*_names(cell), *(spread(cell.copies.get(way)) for way in WAYS))


def chosen_cells(cell: Cell) -> tuple[str, ...]:
    """The row of a block's third table."""
    c = cell.chosen
    if not c:
        return (*_names(cell), NOT_RUN, *[NONE] * (len(CHOSEN_HEADINGS) - 3))
    single = c.get("single_pass_kept")
    return (
        *_names(cell),
        *(f"{c[key]:,}" for key in ("weak_asked", "weak_kept", "strong_asked", "direct_kept")),
        f"{c['multilevel_kept']:,}",
        f"{100 * c['direct_kept'] / c['strong_asked']:.1f} %",
        f"{100 * c['multilevel_kept'] / c['strong_asked']:.1f} %",
        f"{c['multilevel_apart']:,}",
        NONE if single is None else f"{single:,}",
        NONE if single is None else f"{c['single_pass_apart']:,}",
    )


def _notes(table: Table) -> str:
    return "\n\n".join(
        (
            f"Ours: {table.scale_label}. Medians of interleaved repeats with first and third "
            "quartile; speedup = direct / multi-level, the median of the repeats' quotients with "
            "its 95 % bootstrap interval (timing noise of this run on this machine only).",
            "direct: the gradient is compressed to 10x and, separately, to 1000x. multi-level: to "
            "10x, and what is left to 1000x. single pass (ours): the thresholds of both factors from "
            "one sample and one scan of the tensor. Random-k draws its places: what is timed is taking "
            "the values there, as it sends them, and multi-level takes the first of what it has drawn. "
            "Milliseconds are of other hardware than the "
            "paper's: side by side, never judged.",
        )
    )


def markdown(table: Table) -> str:
    """The whole report as one markdown file."""
    sections = [
        f"# Table III of {gravac.PAPER} ({table.scale_label})",
        "\n".join(f"- {name}: {value}" for name, value in table.header),
        *([table.warning] if table.warning else []),
        _notes(table),
    ]
    for block in BLOCKS:
        cells = [cell for cell in table.cells if cell.block == block]
        sections += [
            f"## {BLOCK_TITLES[block]}",
            markdown_table(TIME_HEADINGS, [time_cells(cell) for cell in cells]),
            "In multiples of a `copy_` of the whole gradient in the same repeat; `10x alone` is the "
            "first compression, which direct and multi-level both contain:",
            markdown_table(COPY_HEADINGS, [copy_cells(cell) for cell in cells]),
            "Entries chosen, all tensors together; apart: that only one of multi-level and direct has "
            "at 1000x, or that differ in value:",
            markdown_table(CHOSEN_HEADINGS, [chosen_cells(cell) for cell in cells]),
        ]
    sections += [
        "## Verdicts",
        verdict_table(table.verdicts),
        readings(table.verdicts),
        "## What the printed numbers say",
        "\n".join(f"- {note.text} {note.arithmetic}" for note in gravac.NOTES),
        "## Where the paper is silent",
        markdown_table(
            ("silent", "chosen (paper scale)", "config key", "used in these measurements"),
            [(silent, chosen, f"`{key}`", used) for silent, chosen, key, used in table.choices],
        ),
    ]
    return "\n\n".join(sections) + "\n"


def csv_text(table: Table) -> str:
    """One line a number: block, model, method, column, unit, paper, ours with its range, n, scale.

    The range is the quartiles of a time, the 95 % interval of a quotient."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        ("block", "model", "method", "column", "unit", "paper", "ours", "low", "high", "n", "scale")
    )
    for cell in table.cells:
        place = (cell.block, cell.model, cell.method)
        lines: list[tuple[str, str, float | None, Spread | Quotient | None]] = []
        for way in WAYS:
            printed = cell.printed(way) if way in (DIRECT, MULTILEVEL) else None
            lines.append((way, "ms", printed, cell.milliseconds.get(way)))
        lines += [(f"{way}_copies", "copy_", None, cell.copies.get(way)) for way in WAYS]
        lines.append((SPEEDUP, "x", cell.printed(SPEEDUP), cell.speedup))
        lines.append(("multilevel_over_single_pass", "x", None, cell.single_pass))
        for column, unit, paper, ours in lines:
            values = ("", "", "", 0)
            if ours is not None:
                values = (*(f"{v:.6g}" for v in (ours.middle, ours.low, ours.high)), ours.n)  # type: ignore[assignment]
            printed_text = "" if paper is None else f"{paper:g}"
            writer.writerow((*place, column, unit, printed_text, *values, table.scale))
        for key, count in cell.chosen.items():
            if key not in ("block", "method") and count is not None:
                writer.writerow((*place, key, "count", "", count, "", "", 1, table.scale))
    return out.getvalue()


def print_table(table: Table, console: Console) -> None:
    """The report on a terminal; fits ``TERMINAL_COLUMNS``."""
    console.print(f"[bold]Table III, {escape(gravac.PAPER)}[/bold] ({escape(table.scale_label)})")
    for name, value in table.header:
        console.print(f"  {name}: {escape(value)}")
    if table.warning:
        console.print(f"[bold]{escape(table.warning)}[/bold]")
    console.print("Milliseconds, medians; the file has their spread:")
    for block in BLOCKS:
        console.print(_times_grid(table, block))
    print_judged(table.verdicts, console)
    for note in gravac.NOTES:
        console.print(f"  {escape(note.text)} {escape(note.arithmetic)}")


def _times_grid(table: Table, block: str) -> RichTable:
    grid = RichTable(title=BLOCK_TITLES[block], **GRID)
    for heading in ("model", "method"):
        grid.add_column(heading, no_wrap=True)
    for heading in (
        *("paper:\ndirect", "multi-\nlevel", "speed-\nup"),
        *("ours:\ndirect", "multi-\nlevel", "speed-\nup", "single\npass", "entries\napart"),
    ):
        grid.add_column(heading, justify="right", no_wrap=True)
    for cell in (cell for cell in table.cells if cell.block == block):
        ms = cell.milliseconds
        times = [_digits(ms[way].middle) if way in ms else NONE for way in TIMED]
        speedup = NONE if cell.speedup is None else f"{cell.speedup.middle:.2f}x"
        apart = f"{cell.chosen['multilevel_apart']:,}" if cell.chosen else NONE
        grid.add_row(*time_cells(cell)[:5], *times[:2], speedup, times[2], apart)
    return grid


def figure(table: Table) -> Figure:
    """Left: layerwise time in multiples of a copy. Right: speedup, ours and the paper's."""
    rows = [
        (cell, other)
        for cell in table.cells
        for other in table.cells
        if cell.block == LAYERWISE
        and (other.block, other.model, other.method) == (ONE_VECTOR, cell.model, cell.method)
    ]
    with style.house_style():
        drawing = Figure(figsize=(9.6, 5.4), layout="constrained")
        left, right = drawing.subplots(1, 2, sharey=True)
        _draw_times(left, [cell for cell, _ in rows])
        _draw_speedups(right, rows)
        labels = [", ".join(_names(cell)) for cell, _ in rows]
        left.set_yticks(range(len(rows)), labels)
        left.set_ylim(len(rows) - 0.4, -0.6)
        for axes in (left, right):
            axes.grid(axis="y", visible=False)
            for edge in range(len(gravac.METHODS), len(rows), len(gravac.METHODS)):
                axes.axhline(edge - 0.5, color="#DDDDDD", linewidth=0.8)
        style.title(left, "Compressing to 10x and to 1000x, layerwise", table.caption)
        style.title(right, "What multi-level compression gains", "median and 95 % interval")
        handles, names = left.get_legend_handles_labels()
        more_handles, more_names = right.get_legend_handles_labels()
        drawing.legend(
            [*handles, *more_handles], [*names, *more_names], loc="outside lower center", ncols=3
        )
    return drawing


def _draw_times(axes: Axes, cells: list[Cell]) -> None:
    looks = {
        DIRECT: (style.ORANGE, "s", -0.22),
        MULTILEVEL: (style.BLUE, "o", 0.0),
        SINGLE_PASS: (style.GREEN, "^", 0.22),
    }
    for way, (colour, marker, shift) in looks.items():
        found = [
            (place, cell.copies[way]) for place, cell in enumerate(cells) if way in cell.copies
        ]
        if not found:
            continue
        look = {"color": colour, "marker": marker}
        _whiskers(axes, found, shift, f"{WAY_LABELS[way]} (median, middle half)", look)
    axes.set_xscale("log")
    style.plain_log(axes.xaxis)
    axes.set_xlabel("multiples of a copy_ of the gradient (log)")


def _draw_speedups(axes: Axes, rows: list[tuple[Cell, Cell]]) -> None:
    axes.axvline(1.0, color=style.BLACK, linewidth=0.8)
    axes.plot(
        [gravac.printed(cell.model, cell.method, SPEEDUP) for cell, _ in rows],
        range(len(rows)),
        color=style.BLACK,
        marker="x",
        linestyle="none",
        label="paper (V100)",
    )
    looks = ((0, style.BLUE, "o", 0.12), (1, style.PURPLE, "D", 0.3))
    for block, colour, marker, shift in looks:
        found = [(p, q) for p, pair in enumerate(rows) if (q := pair[block].speedup) is not None]
        if not found:
            continue
        look = {"color": colour, "marker": marker}
        _whiskers(axes, found, shift, f"ours, {BLOCKS[block]}", look)
    axes.set_xlabel("time of direct / time of multi-level")


def _whiskers(
    axes: Axes,
    found: Sequence[tuple[int, Spread | Quotient]],
    shift: float,
    label: str,
    look: dict[str, Any],
) -> None:
    """Medians with their ranges, each on its row."""
    axes.errorbar(
        [value.middle for _, value in found],
        [place + shift for place, _ in found],
        xerr=[
            [value.middle - value.low for _, value in found],
            [value.high - value.middle for _, value in found],
        ],
        markersize=5,
        linestyle="none",
        label=label,
        **look,
    )
