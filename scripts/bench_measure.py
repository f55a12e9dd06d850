"""What both benchmarks share: ratios of neighbours in time, the machine's description, the tables.

The machine is noisy and shared, so no number here is a time by itself: what is measured and what it
is compared with run one right after the other, again and again (A, B, A, B, ...), each pair gives
one ratio, and a table shows the median ratio with the middle half of all (first to third quartile).
"""

from __future__ import annotations

import csv
import datetime
import os
import platform
import re
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import torch

from dgc_repro.launch.environment import busy_cores

BUSY_CORES = 0.25
"""Cores of other work from which it disturbs: a warning stands over the table."""

ROUNDS = 3
"""Repeats of a case are spread over so many rounds over all cases, minutes apart: a slow minute of a shared
machine meets all of them alike, and the median of none."""

Row: TypeAlias = Mapping[str, str | float | None]


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
    """Where and when a table was measured."""

    cpu: str
    cores: int
    torch_version: str
    date: str
    busy_cores: float  # at work while this process slept, at the start

    @classmethod
    def here(cls) -> Machine:
        """This machine, now: ask before anything is measured."""
        return cls(
            cpu=_cpu_model(),
            cores=os.cpu_count() or 1,
            torch_version=torch.__version__,
            date=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
            busy_cores=busy_cores(),
        )

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


def _cpu_model() -> str:
    try:
        described = Path("/proc/cpuinfo").read_text()
    except OSError:
        described = ""
    found = re.search(r"^model name\s*:\s*(.+)$", described, re.MULTILINE)
    return found.group(1).strip() if found else platform.processor() or platform.machine()


def write_csv(path: Path, rows: Sequence[Row], extra: Row) -> None:
    """All columns, unrounded; ``extra`` (the machine) repeats in every row."""
    whole = [{**row, **extra} for row in rows]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(whole[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(whole)


def markdown(
    title: str, head: Sequence[str], columns: Mapping[str, str], rows: Sequence[Row]
) -> str:
    """A table. ``columns``: heading to the row's key; a number with quartiles shows them."""
    cells = [[_shown(row, key) for key in columns.values()] for row in rows]
    headings = list(columns)
    widths = [max(map(len, column)) for column in zip(headings, *cells, strict=True)]

    def line(texts: Sequence[str]) -> str:
        return "| " + " | ".join(t.ljust(w) for t, w in zip(texts, widths, strict=True)) + " |"

    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    body = [line(headings), rule, *map(line, cells)]
    return "\n".join([f"# {title}", "", "\n\n".join(head), "", *body, ""])


def _shown(row: Row, key: str) -> str:
    value = row.get(key)
    if value is None or isinstance(value, str):
        return value or ""
    low, high = row.get(f"{key}_q1"), row.get(f"{key}_q3")
    text = f"{value:.2f}" if abs(value) < 100 else f"{value:.0f}"
    return f"{text} ({low:.2f}-{high:.2f})" if low is not None and high is not None else text
