"""``python -m dgc_repro compare runs``: your own runs side by side, as tables and a figure, without torch.

Runs that differ in their seed alone are one line (mean ± sample standard deviation). A line is named by its
compressor and by the config keys in which settings differ. ``--by compressor.density`` names lines by one
key and says how many settings they pool. Two runs of the same settings and seed, such as of two versions of
this package, are two lines with the hashes of their folders; copies of a folder count once. Each data set has
its own table and panel: final quality against ``--x`` (payload_bytes, wire_bytes, floats or seconds). Runs of
papers are left out unless ``--paper`` is given.

``--against dense`` also judges each setting against a reference, by pairs of runs with one seed and with the
code of the benchmark's pages: what it costs in quality with a 95 % interval, its class, and how many times
fewer bytes it sends. The figure against.png shows cost against bytes.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dgc_repro.errors import UserError, refuse_first_of
from dgc_repro.files import replace
from dgc_repro.paper import facts, panels, plot, setting_names
from dgc_repro.paper.against import Against, against, unlike, workload_of
from dgc_repro.paper.benchmark import tradeoff
from dgc_repro.paper.benchmark.classes import MEANINGS
from dgc_repro.paper.frame import amount, count, number
from dgc_repro.paper.records import Run
from dgc_repro.progress import console_of
from dgc_repro.results import finished_runs

OWN = "none"
"""The paper of a run of one's own."""
QUALITIES = {
    "test/perplexity": ("test perplexity", ""),
    "test/accuracy_percent": ("test accuracy", "%"),
}
AMOUNTS = {
    "floats": ("comm/floats", "floats sent", count),
    "payload_bytes": ("comm/payload_bytes", "payload", amount),
    "wire_bytes": ("comm/wire_bytes", "wire", amount),
    "seconds": ("time/train_seconds", "training s", number),
}
DENSE = "Dense"
"""The compressor that sweeps are judged against."""
LEAST_WIDTH, WIDTH_OF_A_FILE = 80, 100
"""Characters of a line on a terminal, and where there is none."""
CLASSES = (
    "The cost is how much worse a setting is than the reference; of accuracy on test and validation images "
    "together. A class is the first of these that fits: "
    f"{', '.join(f'{word} ({what})' for word, what in MEANINGS.items())}. In the family: whether the class "
    "is shown with Holm's correction over the settings of the table too. More seeds: so many would decide "
    "the class if the mean and the spread stay as they are. Accuracy has one variance for all settings, or, "
    "among fewer than five, pairs of one seed; other metrics are ratios of one seed."
)
MARKERS = (*plot.MARKERS, "<", ">", "p", "*", "h", "d", "8")
LEAST_SPAN = 2.0
"""Smallest ratio of the two ends of the figure's x axis."""
CHARACTERS = 52
"""Width of a name in the figure; longer ones have several rows."""
PANEL = (7.4, 4.2)
"""Inches."""
ROW_INCHES, CHARACTER_INCHES = 0.209, 0.0855
"""Of the names in the list."""


@dataclass(frozen=True)
class Task:
    """The runs on one data set.

    runs    the runs, in the order of the table
    table   one row a run: ``task``, ``line`` (what its line is called), ``settings`` (what its settings are
            called), ``seed``, ``metric``, ``quality``, floats, payload_bytes and wire_bytes of one worker,
            seconds of training, ``folder``
    facts   data, models and workers, for the caption
    notes   what a reader of the table needs besides
    """

    name: str
    metric: str
    runs: tuple[Run, ...]
    table: pd.DataFrame
    facts: str
    notes: tuple[str, ...]

    @property
    def lines(self) -> list[tuple[str, pd.DataFrame]]:
        """The runs of each line, best mean quality first."""
        found = [(str(name), rows) for name, rows in self.table.groupby("line", sort=False)]
        sign = 1 if self.metric == "test/perplexity" else -1

        def place(line: tuple[str, pd.DataFrame]) -> float:
            mean = float(line[1]["quality"].mean())
            return sign * mean if math.isfinite(mean) else math.inf

        return sorted(found, key=place)

    @property
    def runs_of(self) -> dict[str, list[Run]]:
        """The runs of each line, in the order of `lines`."""
        return {name: [self.runs[place] for place in rows.index] for name, rows in self.lines}

    def called(self, name: str) -> list[str]:
        """The lines that a name may mean: that of the line, else its compressor."""
        runs_of = self.runs_of
        if name in runs_of:
            return [name]
        own = name.casefold()
        return [line for line, runs in runs_of.items() if own in _compressors(runs)]


def main(arguments: Sequence[str]) -> None:
    """The command. Raises UserError where there is nothing to compare."""
    parser = argparse.ArgumentParser(
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
        plot.save(figure_against(judged), place, "against")
        print(f"cost against bytes: {place / 'against.png'}")


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


def is_of_paper(run: Run) -> bool:
    """Whether a run belongs to a paper's table or figure."""
    return str(run.setting("experiment.paper", OWN)) != OWN


def compared(runs: Sequence[Run], by: str | None = None) -> list[Task]:
    """Sort the runs by data set, most runs first, and by metric where a data set has two.

    Raises UserError where no run has a test accuracy or perplexity, or none has the key ``by``."""
    keys = dict.fromkeys(key for run in runs for key, _ in setting_names.flat(run.config))
    if by is not None and by != "compressor" and by not in keys:
        near = [key for key in keys if by.rpartition(".")[2] in key]
        raise UserError(
            f"--by: no setting {by!r} in these runs; {', '.join(near) or 'see config.yaml'}"
        )
    trained = sorted((run for run in runs if _metric(run)), key=_task)
    if not trained:
        raise UserError(
            "compare: these runs have no test accuracy or perplexity; give trained runs"
        )
    tasks = [_compared(task, list(own), by) for task, own in groupby(trained, _task)]
    return sorted(tasks, key=lambda task: -len(task.table))


def _metric(run: Run) -> str:
    return next((name for name in QUALITIES if name in run.summary), "")


def _task(run: Run) -> tuple[str, str]:
    name = str(run.setting("dataset._target_", "")).rpartition(".")[2]
    return setting_names.bounded(name), _metric(run)


def _compared(task: tuple[str, str], runs: Sequence[Run], by: str | None) -> Task:
    dataset, metric = task
    names, usual = setting_names.named(runs)
    settings = _told_apart(names, runs)
    table = pd.DataFrame(
        {
            "task": dataset,
            "line": settings if by is None else [_value(run, by) for run in runs],
            "settings": settings,
            "seed": [run.seed for run in runs],
            "metric": metric,
            "quality": [_number(run.summary[metric]) for run in runs],
            **{
                key: [_number(run.summary.get(column)) for run in runs]
                for key, (column, _, _) in AMOUNTS.items()
            },
            "folder": [run.id for run in runs],
        }
    )
    said = facts.distinct(map(facts.model_text, runs)), facts.worlds(runs)
    notes = [f"unless named: {usual}"] if usual and by is None else []
    notes += [
        f"{line} pools {several} settings: its mean and ± are over settings as well as seeds"
        for line, several in table.groupby("line", sort=False)["settings"].nunique().items()
        if several > 1
    ]
    text = setting_names.bounded("; ".join((facts.data_text(runs), *said)))
    return Task(dataset, metric, tuple(runs), table, text, tuple(notes))


def _told_apart(names: Sequence[str], runs: Sequence[Run]) -> list[str]:
    """The names; of runs with the same name and seed, with the hashes of their folders, and a number where
    these are equal too."""
    pairs = Counter((name, run.seed) for name, run in zip(names, runs, strict=True))
    seen: Counter[tuple[str, int]] = Counter()
    found = []
    for name, run in zip(names, runs, strict=True):
        label = f"{name} {run.id.rpartition('-')[2]}"
        seen[label, run.seed] += 1
        unique = f"{label} ({number})" if (number := seen[label, run.seed]) > 1 else label
        found.append(unique if pairs[name, run.seed] > 1 else name)
    return found


def _number(value: object) -> float:
    """A number of a summary; NaN where the record has none."""
    return float(value) if isinstance(value, int | float) else math.nan


def _value(run: Run, by: str) -> str:
    """The name of a run's line by one config key."""
    key = "compressor._target_" if by == "compressor" else by
    value = run.setting(key)
    if key.endswith("._target_"):
        return setting_names.bounded(str(value).rpartition(".")[2])
    text = "not set" if value is None else facts.short(value)
    return setting_names.bounded(f"{key.rpartition('.')[2]} {text}")


def _quality(rows: pd.DataFrame) -> str:
    values = list(rows["quality"])
    lost = sum(not math.isfinite(value) for value in values)
    return f"diverged in {lost} of {len(values)}" if lost else number(values, 2)


def judged_against(
    tasks: Sequence[Task], name: str, margin: float | None = None
) -> list[tuple[Task, Against]]:
    """Judge the lines of each task that has a line of this name. Raises UserError where none has, and where
    the name may mean several lines."""
    called = [(task, task.called(name)) for task in tasks]
    for task, lines in called:
        if len(lines) > 1:
            raise UserError(
                f"--against: {name!r} may be one of several settings of {task.name}; give one of: "
                f"{_quoted(lines)}"
            )
    if not any(lines for _, lines in called):
        every = [line for task in tasks for line, _ in task.lines]
        raise UserError(f"--against: no setting {name!r}; there are: {_quoted(every)}")
    return [(task, _against(task, lines[0], margin)) for task, lines in called if lines]


def judged_sweep(tasks: Sequence[Task]) -> list[tuple[Task, Against]]:
    """Judge the tasks in which one line is uncompressed training and all lines train the same model in the
    same way, against that line."""
    found = []
    for task in tasks:
        lines = task.called(DENSE)
        if len(lines) == 1 and len(task.lines) > 1 and not unlike(task.runs):
            found.append((task, _against(task, lines[0], None)))
    return found


def _against(task: Task, reference: str, margin: float | None) -> Against:
    workload = workload_of(task.name, task.metric.removeprefix("test/"), margin)
    return against(task.runs_of, reference, workload)


def _compressors(runs: Sequence[Run]) -> list[str]:
    """What the compressor of a line may be called: its module and its class, in small letters."""
    target = str(runs[0].setting("compressor._target_", "")).casefold()
    return target.split(".")[-2:]


def _quoted(names: Sequence[str]) -> str:
    return "; ".join(f'"{name}"' for name in names)


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


def figure(tasks: Sequence[Task], x: str) -> Figure:
    """Final quality against what was sent or the time: a panel for each data set, and its lines, best first,
    in a legend beside it."""
    counts = [len(rows) for task in tasks for _, rows in task.lines]
    most = max(counts)
    said = [
        _n(counts),
        *(["mean ± sample standard deviation"] if most > 1 else []),
        *(
            f"{task.name}: " * (len(tasks) > 1) + "; ".join((task.facts, *task.notes))
            for task in tasks
        ),
    ]
    drawn: plot.Panels = [
        (task.name if len(tasks) > 1 else "", partial(_panel, task, x)) for task in tasks
    ]
    qualities = " and ".join(dict.fromkeys(QUALITIES[task.metric][0] for task in tasks))
    what = f"{qualities} against {AMOUNTS[x][1]}".capitalize()
    return plot.figure(what, said, drawn, columns=1, legend=0, size=_size(tasks))


def figure_against(judged: Sequence[tuple[Task, Against]]) -> Figure:
    """Cost of quality against times fewer bytes, like the README's figure: a panel for each data set."""
    said, clouds = [], []
    for task, one in judged:
        of = f"{task.name}: " * (len(judged) > 1)
        shown = one.judged.shown
        said.append(f"{of}against {one.reference}, {_n([each.n for each in shown.values()])}")
        drawn = {line for line, point in one.points.items() if tradeoff.is_drawn(point)}
        if lost := len(task.lines) - len(drawn):
            said.append(f"{of}{lost} not drawn (no cost or no bytes)")
        said.append(f"{of}grey: ±{one.margin}")
        keys = {line: f"{_compressors(runs)[0]}_{line}" for line, runs in task.runs_of.items()}
        clouds.append(
            tradeoff.Cloud(
                task.name if len(judged) > 1 else "", one.workload,
                {keys[line]: point for line, point in one.points.items()},
                {keys[line]: _in_rows(line) for line in keys}, _size([task]),
            )
        )  # fmt: skip
    said += ["bars: 95 % interval, if there is one", *(task.facts for task, _ in judged)]
    x = "payload: times fewer bytes than the reference"
    return tradeoff.clouds("What fewer bytes cost", said, clouds, x)


def _n(counts: Sequence[int]) -> str:
    least, most = min(counts, default=0), max(counts, default=0)
    return f"n = {least}" if least == most else f"n = {least} to {most}"


def _size(tasks: Sequence[Task]) -> tuple[float, float]:
    """Inches of a panel with the list of its lines."""
    width, height = PANEL
    names = [[_in_rows(name) for name, _ in task.lines] for task in tasks]
    letters = max(len(row) for task in names for name in task for row in name.splitlines())
    rows = max(sum(name.count("\n") + 1 for name in task) for task in names)
    return width + 0.6 + CHARACTER_INCHES * letters, max(height, ROW_INCHES * rows)


def _in_rows(name: str) -> str:
    """A name in rows, broken between its parts."""
    glued = re.sub(r"(?<!,) (?!\+ )", "\N{NO-BREAK SPACE}", name)
    rows = textwrap.fill(glued, CHARACTERS, subsequent_indent="    ")
    return plot.literal(rows.replace("\N{NO-BREAK SPACE}", " "))


def _looks(task: Task) -> dict[str, plot.Look]:
    """A colour for each compressor with its wrappers (under ``--by``: each value), and a marker that no other
    line of that colour has."""
    families: dict[str, str] = {}
    used: Counter[str] = Counter()
    looks = {}
    for name, _ in task.lines:
        family = re.sub(r" \S+=\S+", "", name.split(", ")[0])
        colour = families.setdefault(family, plot.CYCLE[len(families) % len(plot.CYCLE)])
        turn, place = divmod(used[colour], len(MARKERS))
        used[colour] += 1
        dashes = "-" if turn % 2 == 0 else "--"  # a dashed look has a hollow marker
        looks[name] = plot.Look(_in_rows(name), colour, MARKERS[place], dashes)
    return looks


def _panel(task: Task, x: str, axes: Axes) -> None:
    label, unit = QUALITIES[task.metric]
    size = 1e6 if "bytes" in x else 1.0
    lines = {name: rows[np.isfinite(rows["quality"])] for name, rows in task.lines}
    where = {
        name: (list(own[x] / size), list(own["quality"])) for name, own in lines.items() if len(own)
    }
    panels.points(where, _looks(task))(axes)
    axes.margins(0.1)
    amounts = [value for values, _ in where.values() for value in values]
    low, high = min(amounts, default=1.0), max(amounts, default=1.0)
    if 0 < 10 * low <= high:  # a single worker has 0 wire bytes
        axes.set_xscale("log")
        plot.plain_log(axes.xaxis)
    elif 0 < high < LEAST_SPAN * low:  # nearly equal amounts are drawn as such
        middle, half = math.sqrt(low * high), math.sqrt(LEAST_SPAN)
        axes.set_xlim(middle / half, middle * half)
    axes.set_xlabel(f"{AMOUNTS[x][1]} of one worker" + (" (MB)" if "bytes" in x else ""))
    axes.set_ylabel(f"{label} ({unit})" if unit else label)
    axes.legend(**plot.BESIDE)
