"""Table I written down: markdown, CSV, JSON for verdicts, and a terminal of 100 columns."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from dgc_repro.paper import dynamic
from dgc_repro.paper.claim import Claim
from dgc_repro.report.table import Cell, Measured, Row, Table
from dgc_repro.report.verdict import Verdict

TERMINAL_COLUMNS = 100
GRID: dict[str, Any] = {"title_justify": "left", "box": box.SIMPLE, "pad_edge": False}
BYTE_UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))
COUNT_UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))

ACCURACY_HEADINGS = (
    "method",
    "n",
    "epochs: paper",
    "ours",
    "train acc %: paper",
    "ours",
    "diff",
    "test acc %: paper",
    "ours",
    "diff",
)
COST_HEADINGS = (
    "method",
    "time min: paper",
    "ours",
    "% of none: paper",
    "ours",
    "diff",
    "data: paper TB",
    "ours payload",
    "wire",
    "floats",
    "% of none: paper",
    "ours",
    "diff",
)


def number(value: float | None, digits: int = 2) -> str:
    """A number with ``digits`` decimals, '-' where there is none."""
    return "-" if value is None else f"{value:.{digits}f}"


def signed(value: float | None, digits: int = 2) -> str:
    """A difference with its sign, '-' where there is none."""
    return "-" if value is None else f"{value:+.{digits}f}"


def measured(value: Measured | None, digits: int = 2) -> str:
    """Mean and spread over seeds; 'not run' where there is no run."""
    if value is None:
        return "not run"
    text = f"{value.mean:.{digits}f}"
    return text if value.sd is None else f"{text} +- {value.sd:.{digits}f}"


def amount(value: Measured | None, units: Sequence[tuple[float, str]]) -> str:
    """A mean in the largest decimal unit that keeps it at or above one; '-' for no run."""
    if value is None:
        return "-"
    size, unit = next((u for u in units if value.mean >= u[0]), units[-1])
    return f"{value.mean / size:.3g} {unit}".rstrip()


def _share(cell: Cell, *, spread: bool = True) -> tuple[str, str, str]:
    ours = "-" if cell.ours is None else measured(cell.ours, 1)
    if cell.ours is not None and not spread:
        ours = f"{cell.ours.mean:.1f}"
    return number(cell.paper, 1), ours, signed(cell.difference, 1)


def accuracy_cells(row: Row) -> tuple[str, ...]:
    """The row of the first table, one string a heading."""
    return (
        row.published.label,
        str(len(row.seeds)),
        number(row.epochs.paper, 0),
        measured(None if row.epochs.ours is None else Measured(row.epochs.ours.mean, None, 1), 0),
        *_accuracy(row.train_accuracy),
        *_accuracy(row.test_accuracy),
    )


def _accuracy(cell: Cell) -> tuple[str, str, str]:
    return number(cell.paper), measured(cell.ours), signed(cell.difference)


def cost_cells(row: Row) -> tuple[str, ...]:
    """The row of the second table, one string a heading."""
    return (
        row.published.label,
        number(row.minutes.paper),
        measured(row.minutes.ours),
        *_share(row.time_share),
        number(row.data_paper_tb),
        amount(row.payload_bytes, BYTE_UNITS),
        amount(row.wire_bytes, BYTE_UNITS),
        amount(row.floats, COUNT_UNITS),
        *_share(row.data_share),
    )


def markdown_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A markdown table; a bar inside a cell is escaped."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    return "\n".join([line(headings), "|" + "---|" * len(headings), *map(line, rows)])


def _notes(table: Table) -> tuple[str, ...]:
    return (
        f"Ours: {table.scale_label}. Mean +- sample standard deviation over n seeds; accuracy "
        "after the last epoch, training accuracy as it runs (training mode, augmented).",
        "With n = 3 the bootstrap interval of paired differences is their range (about 75 % coverage, "
        "not 95 %): read verdicts of three seeds with that in mind.",
        "diff = ours - paper, in points. Time and data differ by hardware and number of steps, "
        "so they are compared as percent of the uncompressed row (data by payload bytes).",
        "Per worker: payload = values, indices, scales as packed; wire = what the collective "
        "moves; floats = values only, bits / 32. EF = error feedback; the paper has no such rows.",
    )


def markdown(table: Table) -> str:
    """The whole report as one markdown file."""
    sections = [
        f"# Table I of {dynamic.PAPER} ({table.scale_label})",
        "\n".join(f"- {name}: {value}" for name, value in table.header),
        markdown_table(ACCURACY_HEADINGS, [accuracy_cells(row) for row in table.rows]),
        markdown_table(COST_HEADINGS, [cost_cells(row) for row in table.rows]),
        "\n\n".join(_notes(table)),
        "## Verdicts",
        verdict_table(table.verdicts),
        "How each claim is read:\n\n"
        + "\n".join(f"- {claim.id}: {claim.reading}" for claim, _ in table.verdicts),
        "## Printed numbers that contradict each other, or fit several readings",
        "\n".join(f"- {c.text} {c.arithmetic}" for c in dynamic.CONTRADICTIONS),
        "## Where the paper is silent",
        markdown_table(
            ("silent", "chosen (paper scale)", "config key", "used in these runs"),
            [(silent, chosen, f"`{key}`", used) for silent, chosen, key, used in table.choices],
        ),
    ]
    if table.traces:
        sections += [
            "## Policy traces",
            "Which rungs were used, and after which epoch the policy changed them and why.",
            "\n".join(f"- {trace}" for trace in table.traces),
        ]
    return "\n\n".join(sections) + "\n"


def csv_text(table: Table) -> str:
    """One line a number: row, column, unit, paper, ours (mean, sd, n), difference, scale."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(("row", "column", "unit", "paper", "ours", "sd", "n", "difference", "scale"))
    for row in table.rows:
        columns = (
            ("epochs", "epochs", row.epochs),
            ("train_accuracy", "%", row.train_accuracy),
            ("test_accuracy", "%", row.test_accuracy),
            ("time", "min", row.minutes),
            ("time_share", "% of none", row.time_share),
            ("data_share", "% of none", row.data_share),
            ("data", "TB", Cell(row.data_paper_tb, _scaled(row.payload_bytes, 1e-12))),
            ("payload_bytes", "bytes", Cell(None, row.payload_bytes)),
            ("wire_bytes", "bytes", Cell(None, row.wire_bytes)),
            ("floats", "floats", Cell(None, row.floats)),
        )
        for column, unit, cell in columns:
            ours = cell.ours
            values = (None, None, 0) if ours is None else (ours.mean, ours.sd, ours.n)
            # Minutes, terabytes and epochs of unlike runs: only their shares are compared.
            difference = None if column in ("epochs", "time", "data") else cell.difference
            written = (_plain(v) for v in (cell.paper, *values, difference))
            writer.writerow((row.published.id, column, unit, *written, table.scale))
    return out.getvalue()


def _scaled(value: Measured | None, factor: float) -> Measured | None:
    if value is None:
        return None
    return Measured(value.mean * factor, None if value.sd is None else value.sd * factor, value.n)


def _plain(value: float | None) -> str:
    return "" if value is None else f"{value:.10g}"


def verdict_table(verdicts: Sequence[tuple[Claim, Verdict]]) -> str:
    """Every claim with its verdict, in markdown."""
    return markdown_table(
        ("claim", "", "verdict", "measured"),
        [(c.id, f"{c.text} ({c.source.where})", v.text, v.detail) for c, v in verdicts],
    )


def readings(verdicts: Sequence[tuple[Claim, Verdict]]) -> str:
    """How claims are read, each reading once, in markdown."""
    lines = dict.fromkeys(claim.reading for claim, _ in verdicts)
    return "How the claims are read:\n\n" + "\n".join(f"- {line}" for line in lines)


def verdicts_json(verdicts: Sequence[tuple[Claim, Verdict]]) -> str:
    """The verdicts for programs, one object a claim."""
    objects = [
        {
            "claim": claim.id,
            "text": claim.text,
            "source": str(claim.source),
            "reading": claim.reading,
            "verdict": verdict.word,
            "scale": verdict.scale,
            "printed": verdict.text,
            "n": verdict.n,
            "detail": verdict.detail,
        }
        for claim, verdict in verdicts
    ]
    return json.dumps(objects, indent=2) + "\n"


def print_table(table: Table, console: Console) -> None:
    """The report on a terminal; fits ``TERMINAL_COLUMNS``."""
    console.print(f"[bold]Table I, {escape(dynamic.PAPER)}[/bold] ({escape(table.scale_label)})")
    for name, value in table.header:
        console.print(f"  {name}: {escape(value)}")
    compared = ("paper", "ours", "diff")
    shares = [f"% none\n{column}" for column in compared]
    accuracy = grid(
        "Accuracy after the last epoch, %",
        ("method", "n", *(f"{kind}\n{c}" for kind in ("train", "test") for c in compared)),
    )
    times = grid(
        "Time in training steps",
        ("method", "min\npaper", "min\nours", *shares),
    )
    volumes = grid(
        "Data sent by one worker",
        ("method", "TB\npaper", "payload\nours", "wire\nours", "floats\nours", *shares),
    )
    for position, row in enumerate(table.rows):
        end = position == len(dynamic.TABLE_1.rows) - 1
        accuracies, costs = accuracy_cells(row), cost_cells(row)
        accuracy.add_row(*accuracies[:2], *accuracies[4:], end_section=end)
        times.add_row(*costs[:6], end_section=end)
        data = _share(row.data_share, spread=False)  # no room on a terminal; the file has it
        volumes.add_row(costs[0], *costs[6:10], *data, end_section=end)
    console.print(accuracy, times, volumes)
    print_verdicts(table.verdicts, console)
    console.print(
        "[bold]Printed numbers that contradict each other, or fit several readings[/bold]"
    )
    for contradiction in dynamic.CONTRADICTIONS:
        console.print(f"  {escape(contradiction.text)} {escape(contradiction.arithmetic)}")


def print_verdicts(verdicts: Sequence[tuple[Claim, Verdict]], console: Console) -> None:
    """Every claim with its verdict, on a terminal."""
    table = RichTable(title="Verdicts", width=TERMINAL_COLUMNS, **GRID)
    table.add_column("claim", width=5)
    table.add_column("says", ratio=2)
    table.add_column("verdict", width=16)
    table.add_column("measured", ratio=3)
    for claim, judged in verdicts:
        table.add_row(claim.id, escape(claim.text), escape(judged.text), escape(judged.detail))
    console.print(table)


def print_judged(verdicts: Sequence[tuple[Claim, Verdict]], console: Console) -> None:
    """The same without the claims' ids, for claims that are many or long."""
    table = RichTable(title="Verdicts", width=TERMINAL_COLUMNS, **GRID)
    table.add_column("says", ratio=3)
    table.add_column("verdict", width=18)
    table.add_column("measured", ratio=3)
    for claim, judged in verdicts:
        table.add_row(escape(claim.text), escape(judged.text), escape(judged.detail))
    console.print(table)


def grid(title: str, headings: Sequence[str]) -> RichTable:
    """A table for a terminal; all columns but ``method`` are numbers."""
    table = RichTable(title=title, **GRID)
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "method" else "right", no_wrap=True)
    return table


def console_of_width(width: int = TERMINAL_COLUMNS) -> Console:
    """A console that wraps at ``width`` whatever the terminal says."""
    return Console(width=width, highlight=False)
