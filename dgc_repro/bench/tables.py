"""What all tables of the bench share: a spread of measurements, the machine's description, and one writer.

The machine is noisy and shared, so no table shows a time alone. A case and what it is compared with run
one right after the other, again and again (rounds.py). Each pair gives one ratio; a table shows the median
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

from dgc_repro.launch.environment import busy_cores, code_has_changed, cpu_model
from dgc_repro.names import git
from dgc_repro.paper.markdown import markdown_table

BUSY_CORES = 0.25
"""Cores of other work that disturb: from here on a warning stands over the table."""
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

    def columns(self, name: str) -> dict[str, Any]:
        """As three columns of a table."""
        return {name: self.median, f"{name}_q1": self.low, f"{name}_q3": self.high}

    def verdict(self, at_most: float | None) -> str:
        """met, missed, or unclear where the target lies inside the middle half; empty without a target."""
        if at_most is None:
            return ""
        if self.low <= at_most <= self.high:
            return "unclear"
        return "met" if self.median < at_most else "missed"


@dataclass(frozen=True)
class Machine:
    """Where, when and with which code the numbers were measured. ``commit``: twelve hex digits, followed by
    ``and changes`` where the code differed from it; ``busy_cores``: other work before the first number."""

    cpu: str
    cores: int
    torch_version: str
    date: str
    commit: str
    busy_cores: float

    @classmethod
    def here(cls) -> Machine:
        """This machine, now."""
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
        commit = git("rev-parse HEAD")[:12] or "unknown"
        if code_has_changed():
            commit += " and changes"
        return cls(cpu_model(), os.cpu_count() or 1, torch.__version__, now, commit, busy_cores())

    @property
    def slug(self) -> str:
        """A folder name."""
        words = re.sub(r"[^a-z0-9]+", "-", f"{self.cpu} {self.cores} cores".lower())
        return words.strip("-")

    def head(self, about: str) -> str:
        """Text over a table; ``about``: what was measured, how often, with how many threads."""
        busy = f"other work at the start: {self.busy_cores:.2f} cores"
        lines = [
            f"{self.cpu}, {self.cores} cores; torch {self.torch_version}; {self.date}; commit "
            f"{self.commit}; {busy}",
            about,
        ]
        if self.busy_cores > BUSY_CORES:
            lines.append(
                f"WARNING: other work was running ({self.busy_cores:.2f} cores); the ratios "
                "are provisional, repeat on an idle machine"
            )
        return "\n\n".join(lines)


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

    def write(self, machine: Machine, folder: Path) -> str:
        """Measure; write ``name``.md, and ``name``.csv with all numbers unrounded; the page's text."""
        rows = self.measure()
        cells = [[_shown(row, key) for key in self.columns.values()] for row in rows]
        shown = markdown_table(pd.DataFrame(cells, columns=list(self.columns)))
        text = f"# {self.title}\n\n{machine.head(self.about)}\n\n{shown}\n"
        (folder / f"{self.name}.md").write_text(text, encoding="utf-8")
        numbers = pd.DataFrame([{**row, **asdict(machine)} for row in rows], dtype=object)
        numbers.to_csv(folder / f"{self.name}.csv", index=False, lineterminator="\n")
        return text


def _shown(row: Row, key: str) -> str:
    """A number with its quartiles, where it has any."""
    value = row.get(key)
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, int):
        return str(value)
    low, high = row.get(f"{key}_q1"), row.get(f"{key}_q3")
    text = f"{value:.2f}" if abs(value) < 100 else f"{value:.0f}"
    return f"{text} ({low:.2f}-{high:.2f})" if low is not None and high is not None else text
