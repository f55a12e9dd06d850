"""What all benchmarks share: ratios of neighbours in time, the machine's description, tables and bars.

The machine is noisy and shared, so no table shows a time alone. A case and what it is compared with run
one right after the other, again and again (A, B, A, B, ...). Each pair gives one ratio; a table shows the
median ratio with the middle half of all (first to third quartile).
"""

from __future__ import annotations

import datetime
import os
import re
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pandas as pd
import torch
from matplotlib.figure import Figure

from dgc_repro.launch.environment import busy_cores, cpu_model
from dgc_repro.paper.plot import BLACK, BLUE, ORANGE, save, style, title

BUSY_CORES = 0.25
"""Cores of other work that disturb: from here on a warning stands over the table."""

ROUNDS = 3
"""Repeats of a case are spread over so many rounds over all cases, minutes apart: a slow minute of a shared
machine meets all of them alike, and the median of none."""

THICK = 0.2  # of a bar
Row: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True)
class Spread:
    """The median of some measurements, and their first and third quartile."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """From one measurement up."""
        if len(values) == 1:
            return cls(values[0], values[0], values[0])
        low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(middle, low, high)

    def columns(self, name: str) -> dict[str, float]:
        """As three columns of a table."""
        return {name: self.median, f"{name}_q1": self.low, f"{name}_q3": self.high}

    def verdict(self, at_most: float | None) -> str:
        """met, missed, or unclear where the target lies inside the middle half."""
        if at_most is None:
            return ""
        if self.low <= at_most <= self.high:
            return "unclear"
        return "met" if self.median < at_most else "missed"


def shares(repeats: int, rounds: int = ROUNDS) -> list[int]:
    """So many repeats in so many rounds, as even as can be; no empty ones."""
    whole, more = divmod(repeats, rounds)
    return [share for i in range(rounds) if (share := whole + (i < more))]


def seconds(action: Callable[[], object]) -> float:
    """Wall time of one call."""
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


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

    def lines(self, measured: str) -> list[str]:
        """The head of a table; ``measured`` says on what, how often, with how many threads."""
        head = [
            f"{self.cpu}, {self.cores} cores; torch {self.torch_version}; {self.date}; "
            f"other work at the start: {self.busy_cores:.2f} cores",
            measured,
        ]
        if self.busy_cores > BUSY_CORES:
            head.append(
                f"WARNING: other work was running ({self.busy_cores:.2f} cores); the ratios "
                "are provisional, repeat on an idle machine"
            )
        return head


def write_csv(path: Path, columns: Sequence[str], rows: Sequence[Row], extra: Row) -> None:
    """All numbers, unrounded: ``columns`` with their quartiles, then the others; ``extra`` (the machine)
    repeats in every row."""
    table = pd.DataFrame([{**row, **extra} for row in rows], dtype=object)
    first = [f"{key}{end}" for key in columns for end in ("", "_q1", "_q3")]
    order = dict.fromkeys([key for key in first if key in table] + list(table.columns))
    table[list(order)].to_csv(path, index=False, lineterminator="\n")


def markdown(
    title: str, head: Sequence[str], columns: Mapping[str, str], rows: Sequence[Row], level: int = 1
) -> str:
    """A table. ``columns``: heading to the row's key; a number with quartiles shows them."""
    cells = [[_shown(row, key) for key in columns.values()] for row in rows]
    widths = [max(map(len, column)) for column in zip(columns, *cells, strict=True)]

    def line(texts: Sequence[str]) -> str:
        return "| " + " | ".join(t.ljust(w) for t, w in zip(texts, widths, strict=True)) + " |"

    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    body = [line(list(columns)), rule, *map(line, cells)]
    return "\n".join([f"{'#' * level} {title}", "", "\n\n".join(head), "", *body, ""])


def _shown(row: Row, key: str) -> str:
    value = row.get(key)
    if value is None or isinstance(value, str):
        return value or ""
    low, high = row.get(f"{key}_q1"), row.get(f"{key}_q3")
    text = f"{value:.2f}" if abs(value) < 100 else f"{value:.0f}"
    return f"{text} ({low:.2f}-{high:.2f})" if low is not None and high is not None else text


@dataclass(frozen=True)
class Bars:
    """How a table is drawn: ``bars``: label -> the column of its length and the column of its target."""

    title: str
    xlabel: str
    label: str
    bars: Mapping[str, tuple[str, str]]
    baseline: float = 1.0

    def draw(self, rows: Sequence[Row], caption: str, folder: Path, name: str) -> None:
        """``name``.svg and .png: the first row on top, the middle half as a whisker, the target as a
        tick."""
        size = (7.5, 1.0 + len(rows) * (0.12 + THICK * len(self.bars)))
        with style():
            figure = Figure(figsize=size, layout="constrained")
            axes = figure.add_subplot()
            colours = (ORANGE, BLUE) if len(self.bars) > 1 else (BLUE,)
            drawn = zip(self.bars.items(), colours, strict=True)
            for offset, ((label, (key, target)), colour) in enumerate(drawn):
                shift = (offset - (len(self.bars) - 1) / 2) * THICK
                for place, row in enumerate(rows):
                    value = row.get(key) or 0.0
                    low, high = (row.get(f"{key}_{end}", value) for end in ("q1", "q3"))
                    axes.barh(
                        place + shift,
                        value,
                        height=THICK,
                        color=colour,
                        label=label if place == 0 else None,
                        xerr=[[value - low], [high - value]],
                        error_kw={"linewidth": 0.8},
                    )
                    if row.get(target) is not None:
                        ends = place + shift - THICK / 2, place + shift + THICK / 2
                        axes.plot([row[target]] * 2, ends, color=BLACK, linewidth=2)
            axes.set_yticks(range(len(rows)), [str(row[self.label]) for row in rows])
            axes.margins(y=0.01)
            axes.invert_yaxis()
            axes.grid(axis="y", visible=False)
            axes.axvline(self.baseline, color=BLACK, linewidth=0.8)
            axes.set_xlabel(f"{self.xlabel} (black tick: at most)")
            if len(self.bars) > 1:
                axes.legend(loc="lower right")
            title(axes, self.title, caption)
        save(figure, folder, name)
