"""``python -m dgc_repro compare runs``: your own runs side by side, as tables and a figure, without torch.

Runs that differ in their seed alone are one line (mean ± sample standard deviation). A line is named by its
compressor and by the config keys in which settings differ. ``--by compressor.density`` names lines by one
key and says how many settings they pool. Two runs of the same settings and seed, such as of two versions of
this package, are two lines with the hashes of their folders; copies of a folder count once. Each data set has
its own table and panel: final quality against ``--x`` (payload_bytes, wire_bytes, floats or seconds). Runs of
papers are left out unless ``--paper`` is given.

``--against dense`` also judges each setting against a reference, by pairs of runs with one seed and with the
code of the benchmark's pages: what it costs in quality with a 95 % interval, its class, and how many times
fewer bytes it sends. The figure against.png shows cost against bytes, and against.csv has the numbers.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dgc_repro.compare.figures import figure, figure_against
from dgc_repro.compare.tasks import (
    AMOUNTS,
    QUALITIES,
    Task,
    compared,
    is_of_paper,
    judged_against,
)
from dgc_repro.errors import Parser, UserError, refuse_first_of
from dgc_repro.files import replace
from dgc_repro.paper import plot
from dgc_repro.paper.against import Against
from dgc_repro.paper.benchmark.classes import MEANINGS
from dgc_repro.paper.frame import number
from dgc_repro.progress import console_of
from dgc_repro.results import finished_runs

LEAST_WIDTH, WIDTH_OF_A_FILE = 80, 100
"""Characters of a line on a terminal, and where there is none."""
CLASSES = (
    "The cost is how much worse a setting is than the reference; of accuracy on test and validation images "
    "together. A class is the first of these that fits: "
    f"{', '.join(f'{word} ({what})' for word, what in MEANINGS.items())}. In the family: whether the class "
    "is shown with Holm's correction over the settings of the table too. More seeds: so many would decide "
    "the class if the mean and the spread stay as they are (2+: at least two; >99: more than 99, or not "
    "known); fix their number before they are trained. An interval needs three seeds that differ. Accuracy "
    "has one variance for all settings, or, "
    "among fewer than five, pairs of one seed; other metrics are ratios of one seed."
)


def main(arguments: Sequence[str]) -> None:
    """The command. Raises UserError where there is nothing to compare."""
    parser = Parser(
        prog="python -m dgc_repro compare",
        description="Compare your own runs.",
        epilog=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "folder", nargs="?", default="runs", help="run folders below it are compared"
    )
    parser.add_argument("--by", help="a config key or `compressor`: what lines are called")
    parser.add_argument(
        "--x", choices=AMOUNTS, default="payload_bytes", help="the x axis of compare.png"
    )
    parser.add_argument("--paper", action="store_true", help="runs of papers too")
    parser.add_argument("--out", type=Path, help="folder of the tables and figures")
    parser.add_argument(
        "--against", metavar="NAME", help="judge all settings against this one: dense, ..."
    )
    parser.add_argument(
        "--margin", help="points of accuracy, or %% of perplexity (the benchmark's)"
    )
    given = parser.parse_args(arguments)
    margin = _margin(given.margin)
    refuse_first_of(
        {
            "--margin: is for --against; give --against dense too": margin is not None
            and given.against is None,
            "--against: compares settings, and a line of --by may pool several; leave --by out": given.by
            is not None
            and given.against is not None,
        }
    )
    runs = finished_runs(given.folder)
    kept = [run for run in runs if given.paper or not is_of_paper(run)]
    if not kept:
        raise UserError(
            f"{given.folder}: all finished runs ({len(runs)}) are of papers; give --paper, or train one of "
            "your own"
        )
    tasks = compared(kept, given.by)
    judged = [] if given.against is None else judged_against(tasks, given.against, margin)
    place = given.out or Path(given.folder)
    screen = console()
    show(tasks, screen)
    show_judged(judged, screen)
    if len(kept) < len(runs):
        print(f"left out: {len(runs) - len(kept)} of {len(runs)} runs, those of papers (--paper)")
    try:
        _write(tasks, judged, given.x, place)
    except BrokenPipeError:  # of what is printed
        raise
    except OSError as error:
        raise UserError(
            f"--out: a folder that can be written to, got {place} ({error.strerror or error}); give another"
        ) from error


def _write(
    tasks: Sequence[Task], judged: Sequence[tuple[Task, Against]], x: str, place: Path
) -> None:
    """Write the table and the figures into a folder, and print where they are."""
    place.mkdir(parents=True, exist_ok=True)
    table = pd.concat([task.table for task in tasks]).to_csv(index=False)
    replace(place / "compare.csv", table.encode())
    plot.save(figure(tasks, x), place, "compare")
    print(f"table: {place / 'compare.csv'}\nfigure: {place / 'compare.png'}")
    if judged:
        numbers = pd.concat([one.numbers.assign(task=task.name) for task, one in judged])
        replace(place / "against.csv", numbers.to_csv(index=False).encode())
        plot.save(figure_against(judged), place, "against")
        print(f"cost against bytes: {place / 'against.csv'} and {place / 'against.png'}")


def console() -> Console:
    """Return a console for tables: as wide as the terminal, and at least as wide as their numbers need."""
    found = console_of(sys.stdout)
    found.width = max(LEAST_WIDTH if found.is_terminal else WIDTH_OF_A_FILE, found.width)
    return found


def _margin(given: str | None) -> float | None:
    """The margin in words as a number. Raises UserError for one that is no number above 0."""
    if given is None:
        return None
    with contextlib.suppress(ValueError):
        if 0 < (margin := float(given)) < math.inf:
            return margin
    raise UserError(
        f"--margin: a number above 0, points of accuracy or percent of perplexity, got {given!r}; "
        "such as 0.5"
    )


def show(tasks: Sequence[Task], console: Console) -> None:
    """Print the tables, best quality first."""
    for task in tasks:
        label, unit = QUALITIES[task.metric]
        if len(tasks) > 1:
            console.print(f"\n[bold]{escape(task.name)}[/bold]")
        names = [label, *(name for _, name, _ in AMOUNTS.values())]
        headings = ["settings", "n", *(name.replace(" ", "\n", 1) for name in names)]
        headings[2] = f"{headings[2]} {unit}".rstrip()
        grid = []
        for name, rows in task.lines:
            cells = [str(len(rows)), _quality(rows)]
            for key, (_, _, form) in AMOUNTS.items():
                write: Callable[[Sequence[float]], str] = form
                cells.append(write(list(rows[key])))
            grid.append((name, *cells))
        _print(headings, grid, task.notes, console)


def show_judged(judged: Sequence[tuple[Task, Against]], console: Console) -> None:
    """Print what the seeds show of each setting, most bytes first."""
    for task, one in judged:
        of = f"{task.name}: " * (len(judged) > 1)
        title = f"{of}against {one.reference}, margin {one.margin}"
        console.print(f"\n[bold]{escape(title)}[/bold]")
        _print(one.headings, one.rows, one.notes, console)
    if judged:
        console.print(CLASSES)


def _print(
    headings: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str], console: Console
) -> None:
    """Print a table and its notes. Where it is wider than the terminal, its words have several lines."""
    grid = Table(box=None, pad_edge=False)
    columns = list(zip(*rows, strict=True))
    widths = [
        max(len(line) for cell in (heading, *cells) for line in cell.splitlines())
        for heading, cells in zip(headings, columns, strict=True)
    ]
    if sum(widths) + 2 * len(widths) - 2 > console.width:
        columns[1:] = [
            tuple(cell.replace(", ", ",\n").replace(" in ", "\nin ") for cell in cells)
            for cells in columns[1:]
        ]
    for place, heading in enumerate(headings):
        grid.add_column(
            heading, justify="right" if place else "left", no_wrap=place > 0, overflow="fold"
        )
    for row in zip(*columns, strict=True):
        grid.add_row(*map(escape, row))  # wrap=[...] is no markup
    console.print(grid)
    for note in notes:
        console.print(escape(note))


def _quality(rows: pd.DataFrame) -> str:
    values = list(rows["quality"])
    lost = sum(not math.isfinite(value) for value in values)
    return f"diverged in {lost} of {len(values)}" if lost else number(values, 2)
