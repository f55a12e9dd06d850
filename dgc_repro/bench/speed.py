"""Measure the methods, the exchange and what GraVAC costs, count what a GPU would do, and print the tables.

make bench                              all tables, about 10 minutes on 2 idle cores
make bench ARGS=--quick                 fewer repeats and settings, about a minute
make bench ARGS="--only methods"        one of methods, exchange, layers, gravac, launches, settings, gpu

Tables and figures go to reproduced/bench/; --publish writes them to results/bench/ instead.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from dgc_repro.bench import exchange, gpu, gravac, launches, layers, methods, settings
from dgc_repro.bench.command_line import folder_of, parser, run, whole
from dgc_repro.bench.tables import Machine, Table
from dgc_repro.progress import Progress, announce

TABLES: Mapping[str, Callable[[Namespace], Table]] = {
    "methods": methods.table,
    "exchange": exchange.table,
    "layers": layers.table,
    "gravac": gravac.table,
    "launches": launches.table,
    "settings": settings.table,
    "gpu": gpu.table,
}
NOT_IN_QUICK = ("layers", "launches", "settings")


def main(arguments: Sequence[str] | None = None) -> Path:
    """Measure the tables that are asked for; the folder that was written to."""
    made = parser(__doc__)
    made.add_argument("--quick", action="store_true", help="fewer repeats and settings")
    made.add_argument("--only", choices=tuple(TABLES), help="one table")
    made.add_argument("--values", type=whole, help="size of the methods' gradient")
    made.add_argument("--width", type=whole, help="width of ResNet18 and ResNet101")
    made.add_argument("--repeats", type=whole, help="pairs measured of everything")
    given = made.parse_args(arguments)
    skipped = {
        *(NOT_IN_QUICK if given.quick else ()),
        *(() if torch.cuda.is_available() else ("gpu",)),
    }
    names = [given.only] if given.only else [name for name in TABLES if name not in skipped]
    tables = {name: TABLES[name](given) for name in names}
    expected = sum(table.seconds for table in tables.values())
    announce("bench", expected)
    machine = Machine.here()
    folder = folder_of(given, "bench", machine)
    with Progress("bench", expected) as progress:
        for name, table in tables.items():
            print(table.write(machine, folder))
            progress.advance(table.seconds, f"{name} done")
    print(f"written to {folder}")
    return folder


def command() -> None:
    """Entry point of scripts/bench.py."""
    run("bench", main, "no further table was written")
