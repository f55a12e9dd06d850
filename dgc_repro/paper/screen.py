"""What the terminal shows: a page of results in one screen, and tables."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dgc_repro.paper.facts import data_text
from dgc_repro.paper.page import PAGE_FILE, Page, title_text
from dgc_repro.paper.verdict import Verdict
from dgc_repro.paper.verdict_text import count_text
from dgc_repro.progress import console_of, duration


@dataclass(frozen=True)
class OtherScale:
    """A scale at which an artifact is published: the claims that it tests, by id, and the seconds of training
    that its runs have recorded."""

    scale: str
    claims: frozenset[str]
    seconds: float


def show(
    page: Page, console: Console, place: Path | None = None, others: Sequence[OtherScale] = ()
) -> None:
    """One screen: the first table, each claim that the runs say something of with its first effect, what the
    other claims need, and where the rest lies (``place``). ``others``: scales that may test them.

    On other data than the paper's the table has no printed numbers: they are of another problem."""
    console.print(f"[bold]{escape(title_text(page))}[/bold]")
    if page.warning:
        console.print(f"[bold]{escape(page.warning)}[/bold]")
    data = data_text(page.runs)
    tables = [(s.title, s.table) for s in page.sections if s.table is not None]
    for title, table in tables[:1]:
        title = f"{title} (data: {data})" if data != "-" else title
        if page.other_data:
            table = table[[name for name in table.columns if not name.endswith(": printed")]]
            table.columns = [name.removesuffix(": ours") for name in table.columns]
        fitting = _fitting(table, console.width)
        headings = ["\n".join(_heading(name)) for name in fitting.columns]
        console.print(grid(title, headings, fitting.itertuples(index=False, name=None)))
    for verdict in page.verdicts:
        if verdict.needs:
            continue
        effect = verdict.effects[0].directed if verdict.effects else ""
        line = f"  {verdict.word:<14} {verdict.claim.text}"
        between = " " if len(line) + len(effect) < console.width else "\n" + " " * 17
        console.print(escape(f"{line}{between}{effect}".rstrip()), soft_wrap=True)
    for line in _untested(page.verdicts, others):
        console.print(escape(line), soft_wrap=True)
    if page.verdicts:
        console.print(escape(count_text(page.verdicts)))
    if place is not None:
        console.print(f"page: {escape(str(place / PAGE_FILE))}", soft_wrap=True)
        for name in page.figures:
            console.print(f"figure: {escape(str(place / name))}.png", soft_wrap=True)


def _untested(verdicts: Sequence[Verdict], others: Sequence[OtherScale]) -> list[str]:
    """A line for each thing that claims need to be tested, with the published scales that test some of them:
    each scale that tests more of them than the shorter ones."""
    by_need: dict[str, list[str]] = {}
    for verdict in verdicts:
        if verdict.needs:
            by_need.setdefault(verdict.needs, []).append(verdict.claim.id)
    lines = []
    for need, ids in by_need.items():
        several = f"{len(ids)} claims need" if len(ids) > 1 else "1 claim needs"
        scales, most = [], 0
        for other in others:
            if (tested := len(other.claims.intersection(ids))) > most:
                most = tested
                scales.append(
                    f"scale={other.scale} tests {tested} (about {duration(other.seconds)})"
                )
        lines.append(f"{several} {need}" + (f": {', '.join(scales)}" if scales else ""))
    return lines


def _fitting(table: pd.DataFrame, width: int) -> pd.DataFrame:
    """The leading columns that fit a terminal."""
    cells = [[*_heading(name), *map(str, table.iloc[:, n])] for n, name in enumerate(table)]
    ends = np.cumsum([2 + max(map(len, column)) for column in cells])
    return table.iloc[:, : max(1, int((ends <= width).sum()))]


def _heading(name: object) -> list[str]:
    """The lines of a column's heading."""
    return re.sub(r"([,:]) ", r"\1\n", str(name)).split("\n")


def grid(
    title: str, headings: Sequence[str], rows: Iterable[Sequence[object]], *, wraps: bool = False
) -> Table:
    """A table for the terminal: its first column is at the left, the others at the right. ``wraps``: where
    the others are too wide together, their cells have several lines."""
    made = Table(
        title=escape(title),
        title_justify="left",
        box=box.SIMPLE,
        pad_edge=False,
        collapse_padding=True,
    )
    for place, heading in enumerate(headings):
        made.add_column(
            escape(heading), justify="right" if place else "left", no_wrap=not (place and wraps)
        )
    for row in rows:
        made.add_row(*(escape(str(cell)) for cell in row))
    return made


def console_of_width() -> Console:
    """A console that wraps at 100 columns whatever the terminal says."""
    return console_of(sys.stdout, width=100)
