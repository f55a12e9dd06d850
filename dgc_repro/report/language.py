"""The lecture's table on DGC, row PTB: perplexity and how much smaller the gradient is.

Compression ratios are dense bytes over the row's, paired by seed, in three columns that never share
a name: floats, payload bytes, wire bytes. "After warm-up" is the last epoch; "whole run" has the
warm-up in it.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from rich.console import Console
from rich.markup import escape

from dgc_repro.paper import lecture
from dgc_repro.paper.claim import Claim, PublishedRow
from dgc_repro.report import style
from dgc_repro.report.figures import caption, curve
from dgc_repro.report.quantities import QUANTITIES, last_epoch
from dgc_repro.report.records import Run, require_alike
from dgc_repro.report.render import (
    grid,
    markdown_table,
    measured,
    number,
    print_verdicts,
    signed,
    verdict_table,
)
from dgc_repro.report.table import ALIKE, Cell, Measured, header, spread, used
from dgc_repro.report.verdict import PAPER_SCALE, Verdict, verdict

BASELINE = "dense"
NOT_ALIKE = ("optimizer",)
"""DGC clips each worker's gradient itself, the baseline's optimizer the averaged one."""
COUNTED = {"floats": "comm/floats", "payload": "comm/payload_bytes", "wire": "comm/wire_bytes"}
LOOKS = {"dense": (style.BLACK, "o"), "dgc": (style.ORANGE, "s")}
RESULT_HEADINGS = (
    *("method", "n", "test perplexity: paper", "ours", "% over baseline: paper", "ours"),
    *("validation perplexity", "next word %"),
)
RATIO_HEADINGS = (
    *("method", "ratio: paper", "after warm-up: floats", "payload", "wire"),
    *("whole run: floats", "payload", "wire", "payload a step"),
)


@dataclass(frozen=True)
class Row:
    """One method. ``over_baseline``: perplexity, percent. The ratios go by what is counted."""

    published: PublishedRow
    seeds: tuple[int, ...]
    perplexity: Cell
    over_baseline: Cell
    validation_perplexity: Measured | None
    accuracy: Measured | None
    paper_ratio: float
    after_warmup: dict[str, Measured | None]
    whole_run: dict[str, Measured | None]
    payload_a_step: Measured | None


@dataclass(frozen=True)
class Table:
    """Everything that is printed."""

    scale: str
    header: tuple[tuple[str, str], ...]
    rows: tuple[Row, ...]
    verdicts: tuple[tuple[Claim, Verdict], ...]
    choices: tuple[tuple[str, str, str, str], ...]

    @property
    def scale_label(self) -> str:
        """What stands beside every paper number."""
        return "paper scale" if self.scale == PAPER_SCALE else f"reduced scale: {self.scale}"


def _whole(run: Run, metric: str) -> float:
    return float(run.epochs[metric].iloc[-1])


def _ratios(runs: Sequence[Run], row: str, metric: str, after_warmup: bool) -> list[float]:
    """Dense over the row's, for each seed that both have."""
    of = last_epoch if after_warmup else _whole
    dense = {run.seed: of(run, metric) for run in runs if run.row == BASELINE}
    return [dense[r.seed] / of(r, metric) for r in runs if r.row == row and r.seed in dense]


def _over_baseline(runs: Sequence[Run], row: str) -> list[float]:
    """Percent by which a row's perplexity lies over the baseline's, for each seed both have."""
    of = QUANTITIES["test_perplexity"].of
    dense = {run.seed: of(run) for run in runs if run.row == BASELINE}
    own = [run for run in runs if run.row == row and run.seed in dense]
    return [100 * (of(run) / dense[run.seed] - 1) for run in own]


def _row(published: PublishedRow, runs: Sequence[Run]) -> Row:
    own = [run for run in runs if run.row == published.id]

    def of(quantity: str) -> Measured | None:
        return spread([QUANTITIES[quantity].of(run) for run in own])

    def ratios(after_warmup: bool) -> dict[str, Measured | None]:
        return {
            name: spread(_ratios(runs, published.id, metric, after_warmup))
            for name, metric in COUNTED.items()
        }

    def printed(column: str) -> float:
        return lecture.TABLE_DGC.printed(lecture.RUN_HERE, column)

    perplexity, baseline = printed(lecture.PRINTED_COLUMN[published.id]), printed("baseline")
    steps = [last_epoch(run, "comm/payload_bytes") / last_epoch(run, "step") for run in own]
    return Row(
        published=published,
        seeds=tuple(run.seed for run in own),
        perplexity=Cell(perplexity, of("test_perplexity")),
        over_baseline=Cell(
            100 * (perplexity / baseline - 1), spread(_over_baseline(runs, published.id))
        ),
        validation_perplexity=of("validation_perplexity"),
        accuracy=of("test_accuracy"),
        paper_ratio=1.0 if published.id == BASELINE else printed("ratio"),
        after_warmup=ratios(True),
        whole_run=ratios(False),
        payload_a_step=spread(steps),
    )


def build(runs: Sequence[Run], scale: str) -> Table:
    """The table from the finished runs of one scale; UserError if they are not one experiment."""
    require_alike(runs, [key for key in ALIKE if key not in NOT_ALIKE])
    order = [row.id for row in lecture.METHODS]
    known = (run for run in runs if run.row in order)
    ordered = sorted(known, key=lambda run: (order.index(run.row), run.seed))
    return Table(
        scale=scale,
        header=header(ordered, scale),
        rows=tuple(_row(row, ordered) for row in lecture.METHODS),
        verdicts=tuple((claim, verdict(claim, ordered, scale)) for claim in lecture.CLAIMS),
        choices=tuple(
            (c.silent, c.chosen, c.key, used(ordered, c.key)) for c in lecture.SILENT_CHOICES
        ),
    )


def _times(value: Measured | None) -> str:
    return "-" if value is None else f"{value.mean:.4g}x"


def _result_cells(row: Row) -> tuple[str, ...]:
    paper, ours = row.over_baseline.paper, row.over_baseline.ours
    return (
        row.published.label,
        str(len(row.seeds)),
        *(number(row.perplexity.paper), measured(row.perplexity.ours)),
        *(signed(paper), "-" if ours is None else signed(ours.mean)),
        measured(row.validation_perplexity),
        measured(row.accuracy, 1),
    )


def _ratio_cells(row: Row) -> tuple[str, ...]:
    step = row.payload_a_step
    return (
        row.published.label,
        f"{row.paper_ratio:g}x",
        *(_times(row.after_warmup[name]) for name in COUNTED),
        *(_times(row.whole_run[name]) for name in COUNTED),
        "-" if step is None else f"{step.mean / 1e3:,.1f} kB",
    )


def markdown(table: Table) -> str:
    """The whole report as one markdown file."""
    printed = lecture.TABLE_DGC
    elsewhere = [
        (row.label, *(number(cell) for cell in row.cells[:2]), f"{row.cells[2]:g}x",
         "below" if row.id == lecture.RUN_HERE else "not run here")
        for row in printed.rows
    ]  # fmt: skip
    sections = [
        f"# {printed.title}, row PTB, of {lecture.PAPER} ({table.scale_label})",
        "\n".join(f"- {name}: {value}" for name, value in table.header),
        "## As printed",
        markdown_table(("task", "baseline", "DGC", "ratio", "ours"), elsewhere),
        "## The PTB row, measured",
        markdown_table(RESULT_HEADINGS, [_result_cells(row) for row in table.rows]),
        markdown_table(RATIO_HEADINGS, [_ratio_cells(row) for row in table.rows]),
        f"Ours: {table.scale_label}. Only at scale paper are text and model the paper's; elsewhere "
        "compare the percentages. Perplexity = exp(mean nats a word) after the last epoch, every "
        "word once; mean +- sample standard deviation over n seeds. Ratios are of one worker's "
        "bytes, dense over the row's: floats = values only, bits / 32; payload = values, indices, "
        "scales as packed; wire = what the collective moves. After warm-up = the last epoch.",
        "With n = 3 the bootstrap interval of paired differences is their range (about 75 % "
        "coverage, not 95 %).",
        "## Verdicts",
        verdict_table(table.verdicts),
        "How each claim is read:\n\n"
        + "\n".join(f"- {claim.id}: {claim.reading}" for claim, _ in table.verdicts),
        "## Printed numbers that fit several readings",
        "\n".join(f"- {c.text} {c.arithmetic}" for c in lecture.CONTRADICTIONS),
        "## Where the lecture is silent",
        markdown_table(
            ("silent", "chosen (paper scale)", "config key", "used in these runs"),
            [(silent, chosen, f"`{key}`", used) for silent, chosen, key, used in table.choices],
        ),
    ]
    return "\n\n".join(sections) + "\n"


def print_table(table: Table, console: Console) -> None:
    """The measured row on a terminal; the file has the rest."""
    title = f"{lecture.TABLE_DGC.title}, row PTB, {lecture.PAPER}"
    console.print(f"[bold]{escape(title)}[/bold] ({escape(table.scale_label)})")
    for name, value in table.header:
        console.print(f"  {name}: {escape(value)}")
    results = grid(
        "Perplexity after the last epoch",
        ("method", "n", "test\npaper", "test\nours", "% over base\npaper", "% over base\nours",
         "validation\nours", "next word\n%"),
    )  # fmt: skip
    ratios = grid(
        "Compression ratio (last: after warm-up, in the last epoch; all: over the whole run)",
        ("method", "paper", "floats\nlast", "payload\nlast", "wire\nlast", "floats\nall",
         "payload\nall", "wire\nall", "a step"),
    )  # fmt: skip
    for row in table.rows:
        results.add_row(*_result_cells(row))
        ratios.add_row(*_ratio_cells(row))
    console.print(results, ratios)
    print_verdicts(table.verdicts, console)


def csv_text(table: Table) -> str:
    """One line a number: row, column, unit, paper, ours (mean, sd, n), difference, scale."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(("row", "column", "unit", "paper", "ours", "sd", "n", "difference", "scale"))
    for row in table.rows:
        cells = [
            ("test_perplexity", "", row.perplexity),
            ("over_baseline", "%", row.over_baseline),
            ("validation_perplexity", "", Cell(None, row.validation_perplexity)),
            ("test_accuracy", "%", Cell(None, row.accuracy)),
            ("payload_a_step", "bytes", Cell(None, row.payload_a_step)),
        ]
        for when, ratios in (("after_warmup", row.after_warmup), ("whole_run", row.whole_run)):
            cells += [(f"ratio_{n}_{when}", "x", Cell(None, value)) for n, value in ratios.items()]
        for column, unit, cell in cells:
            ours = cell.ours
            values = (None, None, 0) if ours is None else (ours.mean, ours.sd, ours.n)
            written = ["" if v is None else f"{v:.10g}" for v in (cell.paper, *values)]
            # Perplexities of other texts and models are not ours to match: only shares are compared.
            compared = cell.difference if column == "over_baseline" else None
            difference = "" if compared is None else f"{compared:.10g}"
            writer.writerow((row.published.id, column, unit, *written, difference, table.scale))
    return out.getvalue()


def figure(runs: Sequence[Run], scale: str) -> Figure:
    """Test perplexity by epoch, mean over seeds with one sample standard deviation."""
    with style.house_style():
        drawing = Figure(figsize=(6.4, 4.2), layout="constrained")
        axes = drawing.subplots()
        for row in lecture.METHODS:
            own = [run for run in runs if run.row == row.id]
            if not own:
                continue
            colour, marker = LOOKS[row.id]
            drawn = curve(own, "test/perplexity")
            axes.plot(drawn.index, drawn["mean"], color=colour, marker=marker, markevery=0.1,
                      label=row.label)  # fmt: skip
            if len(own) > 1:
                low, high = drawn["mean"] - drawn["sd"], drawn["mean"] + drawn["sd"]
                axes.fill_between(drawn.index, low, high, color=colour, alpha=0.2, lw=0)
        axes.set_yscale("log")
        axes.set_xlabel("epoch")
        axes.set_ylabel("test perplexity")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.legend()
        style.title(axes, "Test perplexity by epoch", caption(runs, scale))
    return drawing
