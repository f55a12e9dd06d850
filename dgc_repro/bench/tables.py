"""What all benchmarks share: a spread of measurements, the machine's description, tables and bars.

The machine is noisy and shared, so no table shows a time alone. A case and what it is compared with run
one right after the other, again and again (steps.py). Each pair gives one ratio; a table shows the median
ratio with the middle half of all (first to third quartile).
"""

from __future__ import annotations

import datetime
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dgc_repro.launch.environment import busy_cores, cpu_model
from dgc_repro.paper.page import markdown_table
from dgc_repro.paper.plot import BLACK, BLUE, ORANGE, save, style, title

BUSY_CORES = 0.25
"""Cores of other work that disturb: from here on a warning stands over the table."""
THICK = 0.2  # of a bar
Row: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True)
class Spread:
    """The median of some measurements, and their first and third quartile."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Any) -> Spread:
        """From one measurement up."""
        low, middle, high = np.quantile(np.asarray(values, dtype=float), (0.25, 0.5, 0.75)).tolist()
        return cls(middle, low, high)

    def columns(self, name: str) -> dict[str, float]:
        """As three columns of a table."""
        return {name: self.median, f"{name}_q1": self.low, f"{name}_q3": self.high}

    def verdict(self, at_most: float | None = None, at_least: float | None = None) -> str:
        """met, missed, or unclear where the target lies inside the middle half; empty without a target."""
        target = at_most if at_least is None else at_least
        if target is None:
            return ""
        if self.low <= target <= self.high:
            return "unclear"
        return "met" if (self.median < target) == (at_least is None) else "missed"


@dataclass(frozen=True)
class Machine:
    """Where and when the numbers were measured. ``busy_cores``: other work before the first one."""

    cpu: str
    cores: int
    torch_version: str
    date: str
    busy_cores: float

    @classmethod
    def here(cls) -> Machine:
        """This machine, now."""
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
        return cls(cpu_model(), os.cpu_count() or 1, torch.__version__, now, busy_cores())

    @property
    def slug(self) -> str:
        """A folder name."""
        words = re.sub(r"[^a-z0-9]+", "-", f"{self.cpu} {self.cores} cores".lower())
        return words.strip("-")

    @property
    def caption(self) -> str:
        """For under a figure's title, where a line has about 90 characters."""
        busy = "; provisional" if self.busy_cores > BUSY_CORES else ""
        return f"{self.cpu}, {self.cores} cores; torch {self.torch_version}; {self.date}{busy}"

    def head(self, about: str) -> str:
        """Text over a table; ``about``: what was measured, how often, with how many threads."""
        busy = f"other work at the start: {self.busy_cores:.2f} cores"
        lines = [
            f"{self.cpu}, {self.cores} cores; torch {self.torch_version}; {self.date}; {busy}",
            about,
        ]
        if self.busy_cores > BUSY_CORES:
            lines.append(
                f"WARNING: other work was running ({self.busy_cores:.2f} cores); the ratios "
                "are provisional, repeat on an idle machine"
            )
        return "\n\n".join(lines)


def write_csv(path: Path, rows: Sequence[Row], extra: Row | None = None) -> None:
    """All numbers, unrounded; ``extra`` (the machine) repeats in every row."""
    table = pd.DataFrame([{**row, **(extra or {})} for row in rows], dtype=object)
    table.to_csv(path, index=False, lineterminator="\n")


def markdown(
    title: str, text: str, columns: Mapping[str, str], rows: Sequence[Row], level: int = 1
) -> str:
    """A table under its title and text. ``columns``: heading to the row's key; a number with quartiles shows
    them."""
    cells = [[_shown(row, key) for key in columns.values()] for row in rows]
    table = markdown_table(pd.DataFrame(cells, columns=list(columns)))
    return "\n\n".join(part for part in (f"{'#' * level} {title}", text, table) if part) + "\n"


def _shown(row: Row, key: str) -> str:
    value = row.get(key)
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, int):
        return str(value)
    low, high = row.get(f"{key}_q1"), row.get(f"{key}_q3")
    text = f"{value:.2f}" if abs(value) < 100 else f"{value:.0f}"
    return f"{text} ({low:.2f}-{high:.2f})" if low is not None and high is not None else text


def whiskers(axes: Axes, place: float, row: Row, key: str, thick: float, **bar: Any) -> None:
    """A bar as long as a column of the row, with the middle half as a whisker."""
    value = row[key]
    low, high = (row.get(f"{key}_{end}") for end in ("q1", "q3"))
    error = [[value - (value if low is None else low)], [(value if high is None else high) - value]]
    axes.barh(place, value, height=thick, xerr=error, error_kw={"linewidth": 0.8}, **bar)


@dataclass(frozen=True)
class Bars:
    """How a table is drawn: ``bars``: label -> the column of its length and the column of its target."""

    title: str
    xlabel: str
    bars: Mapping[str, tuple[str, str]]
    baseline: float = 1.0

    def draw(self, rows: Sequence[Row], caption: str, folder: Path, name: str) -> None:
        """``name``.svg and .png: the first row on top, the target as a tick. Rows without a length are left
        out, and the first column names a row."""
        first = next(iter(self.bars.values()))[0]
        rows = [row for row in rows if row.get(first) is not None]
        size = (7.5, 1.0 + len(rows) * (0.12 + THICK * len(self.bars)))
        with style():
            figure = Figure(figsize=size, layout="constrained")
            axes = figure.add_subplot()
            colours = (ORANGE, BLUE)[-len(self.bars) :]
            for number, (label, (key, target)) in enumerate(self.bars.items()):
                shift = (number - (len(self.bars) - 1) / 2) * THICK
                for place, row in enumerate(rows):
                    named = {"label": label} if place == 0 else {}
                    whiskers(axes, place + shift, row, key, THICK, color=colours[number], **named)
                    if row.get(target) is not None:
                        ends = place + shift - THICK / 2, place + shift + THICK / 2
                        axes.plot([row[target]] * 2, ends, color=BLACK, linewidth=2)
            axes.set_yticks(range(len(rows)), [str(next(iter(row.values()))) for row in rows])
            axes.margins(y=0.01)
            axes.invert_yaxis()
            axes.grid(axis="y", visible=False)
            axes.axvline(self.baseline, color=BLACK, linewidth=0.8)
            axes.set_xlabel(f"{self.xlabel} (black tick: at most)")
            if len(self.bars) > 1:
                axes.legend(loc="lower right")
            title(axes, self.title, caption)
        save(figure, folder, name)


@dataclass(frozen=True)
class Table:
    """A table of `make bench`.

    ``about``: on what, how often, with how many threads it is measured; ``columns``: heading to row's key;
    ``measure``: gives its rows; ``seconds``: how long that takes, on two idle cores."""

    name: str
    title: str
    about: str
    columns: Mapping[str, str]
    measure: Callable[[], Sequence[Row]]
    seconds: float
    bars: Bars | None = None

    def write(self, machine: Machine, folder: Path) -> str:
        """Measure; write ``name``.md, .csv and, with bars, the figure; the page's text."""
        rows = self.measure()
        text = markdown(self.title, machine.head(self.about), self.columns, rows)
        (folder / f"{self.name}.md").write_text(text, encoding="utf-8")
        write_csv(folder / f"{self.name}.csv", rows, asdict(machine))
        if self.bars is not None:
            self.bars.draw(rows, machine.caption, folder, self.name)
        return text
