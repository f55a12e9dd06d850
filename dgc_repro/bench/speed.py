"""Measure the methods, the exchange and what GraVAC costs, and print the tables.

make bench                              all tables, about 9 minutes on 2 idle cores
make bench ARGS=--quick                 fewer repeats and settings, about a minute
make bench ARGS="--only methods"        one of methods, exchange, gravac

Tables and figures go to reproduced/bench/; --publish writes them to results/bench/ instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from dgc_repro.bench import exchange, gravac, layers, methods
from dgc_repro.bench.command_line import TimeLeft, output_of, parser, run
from dgc_repro.bench.tables import ROUNDS, Bars, Machine, Row, markdown, write_csv

BARS = {
    "methods": Bars(
        "Methods",
        "multiples of a copy_",
        "setting",
        {
            "compress": ("compress_x", "compress_at_most"),
            "decompress": ("decompress_x", "decompress_at_most"),
        },
    ),
    "exchange": Bars(
        "Exchange", "multiples of plain DDP's step", "case", {"step": ("step_x", "at_most")}
    ),
    "gravac": Bars(
        "What GraVAC adds to a step",
        "% of a step with the static factor that is sent",
        "case",
        {"over static": ("extra_percent", "at_most")},
        baseline=0.0,
    ),
}
LAYERS_HEAD = (
    "ResNet101's 314 gradients (44,549,160 values, heavy-tailed), 2 gloo workers on loopback, 1 thread "
    f"each; median of {{}} pairs (middle half), in {ROUNDS} rounds over all cases"
)


@dataclass(frozen=True)
class Table:
    """A measured table. ``head`` says on what, how often, with how many threads."""

    name: str
    title: str
    head: str
    columns: dict[str, str]
    rows: Sequence[Row]
    threads: int = 1


def main(arguments: Sequence[str] | None = None) -> Path:
    """Measure the tables that are asked for; the folder that was written to."""
    given = parser(__doc__)
    given.add_argument("--quick", action="store_true", help="fewer repeats and settings")
    given.add_argument("--only", choices=tuple(BARS), help="one table")
    given.add_argument("--values", type=int, help="size of the methods' gradient")
    given.add_argument(
        "--width", type=int, help="width of the exchange's ResNet18, of GraVAC's ResNet101"
    )
    given.add_argument("--repeats", type=int, help="pairs measured of everything")
    options = given.parse_args(arguments)
    asked = {n: section for n, section in _sections(options).items() if options.only in (None, n)}
    left = TimeLeft("bench", {name: expected for name, (expected, _) in asked.items()})
    machine = Machine.here()
    folder = output_of(options, "bench") / machine.slug
    folder.mkdir(parents=True, exist_ok=True)
    for name, (_, measure) in asked.items():
        for table in measure():
            _keep(table, machine, folder)
        left.done(name)
    print(f"written to {folder}")
    return folder


def _sections(options: Any) -> dict[str, tuple[float, Callable[[], list[Table]]]]:
    """By name: about how many seconds it takes, and what measures it."""
    of_methods, of_exchange, of_gravac = methods.Plan(), exchange.Plan(), gravac.Plan()
    if options.quick:
        short = [case for case in of_methods.cases if case.in_short]
        of_methods = replace(of_methods, repeats=5, cases=short)
        of_exchange = replace(of_exchange, repeats=5, layer_repeats=0)
        of_gravac = replace(of_gravac, repeats=3, methods=("DGC",))
    of_methods = replace(
        of_methods,
        num_values=options.values or of_methods.num_values,
        repeats=options.repeats or of_methods.repeats,
    )
    of_exchange = replace(
        of_exchange,
        width=options.width or of_exchange.width,
        repeats=options.repeats or of_exchange.repeats,
    )
    of_gravac = replace(
        of_gravac,
        width=options.width or of_gravac.width,
        repeats=options.repeats or of_gravac.repeats,
    )
    return {
        "methods": (of_methods.expected_seconds, partial(_methods, of_methods)),
        "exchange": (of_exchange.expected_seconds, partial(_exchange, of_exchange)),
        "gravac": (of_gravac.expected_seconds, partial(_gravac, of_gravac)),
    }


def _methods(plan: methods.Plan) -> list[Table]:
    rows = methods.measure(plan)
    columns = methods.COLUMNS
    return [Table("methods", "Methods", plan.describe(), columns, rows, methods.THREADS)]


def _exchange(plan: exchange.Plan) -> list[Table]:
    rows, by_layer = exchange.measure(plan)
    tables = [Table("exchange", "Exchange", plan.describe(), exchange.COLUMNS, rows)]
    if by_layer:
        head = LAYERS_HEAD.format(plan.layer_repeats)
        tables.append(Table("layers", "Layer by layer", head, layers.COLUMNS, by_layer))
    return tables


def _gravac(plan: gravac.Plan) -> list[Table]:
    rows = gravac.measure(plan)
    return [Table("gravac", "GraVAC's own cost", plan.describe(), gravac.COLUMNS, rows)]


def _keep(table: Table, machine: Machine, folder: Path) -> None:
    """Print a table; write it, all of its numbers, and its bars."""
    text = markdown(table.title, machine.lines(table.head), table.columns, table.rows)
    print(text)
    (folder / f"{table.name}.md").write_text(text, encoding="utf-8")
    extra = {**asdict(machine), "threads": table.threads}
    write_csv(folder / f"{table.name}.csv", list(table.columns.values()), table.rows, extra)
    if bars := BARS.get(table.name):
        key = next(iter(bars.bars.values()))[0]
        shown = [row for row in table.rows if row.get(key) is not None]
        bars.draw(shown, machine.caption, folder, table.name)


def command() -> None:
    """Entry point of scripts/bench.py."""
    run("bench", main, "no further table was written")
