"""The figures of `compare`: quality against what was sent, and cost against bytes."""

from __future__ import annotations

import math
import re
import textwrap
from collections import Counter
from collections.abc import Sequence
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dgc_repro.compare.tasks import AMOUNTS, QUALITIES, Task, compressors
from dgc_repro.paper import panels, plot
from dgc_repro.paper.against import Against
from dgc_repro.paper.benchmark import tradeoff

MARKERS = (*plot.MARKERS, "<", ">", "p", "*", "h", "d", "8")
LEAST_SPAN = 2.0
"""Smallest ratio of the two ends of the figure's x axis."""
CHARACTERS = 52
"""Width of a name in the figure; longer ones have several rows."""
PANEL = (7.4, 4.2)
"""Inches."""
ROW_INCHES, CHARACTER_INCHES = 0.209, 0.0855
"""Of the names in the list."""


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
        keys = {line: f"{compressors(runs)[0]}_{line}" for line, runs in task.runs_of.items()}
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
        plot.plain_log(axes.xaxis)
    elif 0 < high < LEAST_SPAN * low:  # nearly equal amounts are drawn as such
        middle, half = math.sqrt(low * high), math.sqrt(LEAST_SPAN)
        axes.set_xlim(middle / half, middle * half)
    axes.set_xlabel(f"{AMOUNTS[x][1]} of one worker" + (" (MB)" if "bytes" in x else ""))
    axes.set_ylabel(f"{label} ({unit})" if unit else label)
    axes.legend(**plot.BESIDE)
