"""What is computed, written down: one page of tables and verdicts, whatever the study.

report/<study>.py makes a `Page` and a figure from the records; here it becomes markdown, CSV and a
terminal of 100 columns.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from dgc_repro.paper.claim import Claim, Contradiction, SilentChoice
from dgc_repro.report.records import Measurement, Run, require_alike
from dgc_repro.report.render import GRID, markdown_table, print_judged, readings, verdict_table
from dgc_repro.report.verdict import PAPER_SCALE, Values, Verdict, verdict_of_values

BUSY_CORES = 0.5
"""Cores of other work from which it disturbs what is timed: a warning stands over the page."""


@dataclass(frozen=True)
class Block:
    """A table with its title and what there is to know of it. ``narrow``: columns that a terminal has
    room for, all where None."""

    title: str
    text: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    narrow: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Page:
    """Everything that is printed of a study. ``numbers``: one line a number, for table.csv."""

    title: str
    scale: str
    header: tuple[tuple[str, str], ...]
    warning: str
    blocks: tuple[Block, ...]
    verdicts: tuple[tuple[Claim, Verdict], ...]
    notes: tuple[Contradiction, ...]
    choices: tuple[SilentChoice, ...]
    numbers: tuple[Mapping[str, Any], ...]


def scale_label(scale: str) -> str:
    """What stands beside every number."""
    return "paper scale" if scale == PAPER_SCALE else f"reduced scale: {scale}"


def judged(
    claims: Sequence[Claim], values: Values, scale: str, *, modelled: bool = False
) -> tuple[tuple[Claim, Verdict], ...]:
    """Each claim with its verdict."""
    return tuple((c, verdict_of_values(c, values, scale, modelled=modelled)) for c in claims)


def code_of(environments: Sequence[Mapping[str, Any]]) -> str:
    """Every distinct commit and version of torch."""
    commits = [
        str(e.get("commit", "unknown"))[:12] + (" + uncommitted changes" if e.get("dirty") else "")
        for e in environments
    ]
    return f"{distinct(commits)}; torch {distinct([e.get('torch') for e in environments])}"


def header(
    records: Sequence[Measurement | Run], scale: str, more: Sequence[tuple[str, str]] = ()
) -> tuple[tuple[str, str], ...]:
    """Scale, seeds, what is particular, hardware, code: every distinct value."""
    environments = [record.environment for record in records]
    seeds = distinct([record.seed for record in records])
    return (
        ("scale", scale_label(scale)),
        *more,
        ("seeds", seeds.replace(";", ",")),
        ("computed on", distinct([e.get("hardware") for e in environments])),
        ("code", code_of(environments)),
    )


def warning(records: Sequence[Measurement], but: str = "") -> str:
    """A line where the machine was busy before one of the timed records, else empty. ``but``: what
    suffers less."""
    known = [float(record.environment.get("busy_cores", math.nan)) for record in records]
    busy = max((cores for cores in known if not math.isnan(cores)), default=0.0)
    if busy <= BUSY_CORES:
        return ""
    return (
        f"WARNING: other work was running (up to {busy:.2f} cores, more than {BUSY_CORES}): measured "
        f"milliseconds are too long{but}. Repeat on an idle machine: remove its folders under runs/ first."
    )


def require_one_study(records: Sequence[Measurement], of_models: Sequence[str] = ()) -> None:
    """UserError unless all records of a row have the same study settings, and all that have a model
    the same ``of_models``."""
    require_alike(records, ("scale.name",))
    for row in dict.fromkeys(record.row for record in records):
        require_alike([record for record in records if record.row == row], ("study",))
    require_alike([record for record in records if record.setting("model")], of_models)


def distinct(values: Sequence[Any]) -> str:
    """Every distinct value, in order."""
    return "; ".join(dict.fromkeys(str(value) for value in values if value is not None)) or "-"


def table_of(records: Sequence[Measurement]) -> pd.DataFrame:
    """All rows of all records, with ``row`` and ``seed`` of their record."""
    frames = [
        record.table.assign(row=record.row, seed=record.seed)
        for record in sorted(records, key=lambda r: (r.row, r.seed))
    ]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def groups(frame: pd.DataFrame, *keys: str) -> Iterator[tuple[Any, ...]]:
    """(key, ..., rows of it) for every combination of keys there is, ascending."""
    for key, group in frame.groupby(list(keys)):
        yield (*key, group)


def lines(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows as plain dictionaries."""
    return [{str(k): v for k, v in line.items()} for line in frame.to_dict("records")]


def mean_sd(values: Sequence[float], digits: int = 3) -> str:
    """Mean +- sample standard deviation, ``digits`` significant ones of the mean."""
    series = pd.Series(list(values), dtype=float)
    if series.empty:
        return "-"
    text = f"{series.mean():.{digits}g}"
    return text if len(series) < 2 else f"{text} +- {series.std(ddof=1):.1g}"


def summary(
    frame: pd.DataFrame, keys: Sequence[str], columns: Sequence[str]
) -> list[dict[str, Any]]:
    """Mean, standard deviation and n over seeds of each column, by the keys: lines for table.csv."""
    found: list[dict[str, Any]] = []
    for *key, group in groups(frame, *keys):
        place = dict(zip(keys, key, strict=True))
        for column in columns:
            values = group[column].dropna()
            if values.empty:
                continue
            sd = float(values.std(ddof=1)) if len(values) > 1 else math.nan
            found.append(
                {
                    **place,
                    "column": column,
                    "mean": float(values.mean()),
                    "sd": sd,
                    "n": len(values),
                }
            )
    return found


def markdown(page: Page) -> str:
    """The whole page as one markdown file."""
    sections = [
        f"# {page.title} ({scale_label(page.scale)})",
        "\n".join(f"- {name}: {value}" for name, value in page.header),
        *([page.warning] if page.warning else []),
    ]
    for block in page.blocks:
        sections += [
            f"## {block.title}",
            *([block.text] if block.text else []),
            markdown_table(block.headings, block.rows),
        ]
    sections += [
        "## Verdicts",
        verdict_table(page.verdicts),
        readings(page.verdicts),
    ]
    if page.notes:
        sections += [
            "## Notes",
            "\n".join(f"- {note.text} {note.arithmetic}" for note in page.notes),
        ]
    if page.choices:
        sections += [
            "## Where the source is silent",
            markdown_table(
                ("silent", "chosen", "config key"),
                [(c.silent, c.chosen, f"`{c.key}`") for c in page.choices],
            ),
        ]
    return "\n\n".join(sections) + "\n"


def csv_text(page: Page) -> str:
    """One line a number, with the scale."""
    out = io.StringIO()
    keys = list(dict.fromkeys(key for line in page.numbers for key in line))
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow((*keys, "scale"))
    for line in page.numbers:
        writer.writerow((*(_plain(line.get(key)) for key in keys), page.scale))
    return out.getvalue()


def _plain(value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def print_page(page: Page, console: Console) -> None:
    """The page on a terminal; fits ``TERMINAL_COLUMNS``."""
    console.print(f"[bold]{escape(page.title)}[/bold] ({escape(scale_label(page.scale))})")
    for name, value in page.header:
        console.print(f"  {name}: {escape(value)}")
    if page.warning:
        console.print(f"[bold]{escape(page.warning)}[/bold]")
    for block in page.blocks:
        places = block.narrow or tuple(range(len(block.headings)))
        grid = RichTable(title=escape(block.title), **GRID)
        for place in places:
            heading = block.headings[place].replace(": ", ":\n")
            grid.add_column(escape(heading), justify="right" if place else "left", no_wrap=True)
        for row in block.rows:
            grid.add_row(*(escape(row[place]) for place in places))
        console.print(grid)
    print_judged(page.verdicts, console)
    for note in page.notes:
        console.print(f"  {escape(note.text)} {escape(note.arithmetic)}")
