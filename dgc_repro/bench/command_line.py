"""Measure the methods and the exchange, count what a GPU would do, and print the tables.

make bench                              all tables, about 10 minutes on 2 idle cores
make bench ARGS=--quick                 fewer repeats and settings, about a minute
make bench ARGS="--only methods"        one of methods, exchange, launches, settings, gpu, network
make bench-network                      network: what compression is worth on shaped links (root)

Tables go to reproduced/bench/; --publish writes them to results/bench/ instead.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import torch

from dgc_repro.bench import exchange, gpu, launches, methods, settings
from dgc_repro.bench.tables import Machine, Table
from dgc_repro.bench.world import RanksFailed
from dgc_repro.errors import UserError
from dgc_repro.progress import Progress, announce

REPOSITORY = Path(__file__).resolve().parents[2]
TABLES: Mapping[str, Callable[[bool], Table]] = {
    "methods": methods.table,
    "exchange": exchange.table,
    "launches": launches.table,
    "settings": settings.table,
    "gpu": gpu.table,
    "network": exchange.network_table,
}
NOT_IN_QUICK = ("launches", "settings")


class Parser(argparse.ArgumentParser):
    """Of whose mistakes the caller makes one line."""

    def error(self, message: str) -> NoReturn:
        """Raise UserError."""
        raise UserError(message.removeprefix("argument "))


def main(arguments: Sequence[str] | None = None) -> Path:
    """Measure the tables that are asked for; the folder that was written to."""
    made = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--output", type=Path, help="folder of the tables (default: reproduced/)")
    made.add_argument("--publish", action="store_true", help="write the tables to results/")
    made.add_argument("--quick", action="store_true", help="fewer repeats and settings")
    made.add_argument("--only", choices=tuple(TABLES), help="one table")
    given = made.parse_args(arguments)
    skipped = {"network", *(NOT_IN_QUICK if given.quick else ())}
    if not torch.cuda.is_available():
        skipped.add("gpu")
    names = [given.only] if given.only else [name for name in TABLES if name not in skipped]
    tables = {name: TABLES[name](given.quick) for name in names}
    expected = sum(table.seconds for table in tables.values())
    announce("bench", expected)
    machine = Machine.here()
    output = given.output or REPOSITORY / ("results" if given.publish else "reproduced") / "bench"
    folder: Path = output / machine.slug
    folder.mkdir(parents=True, exist_ok=True)
    with Progress("bench", expected) as progress:
        for name, table in tables.items():
            print(table.write(machine, folder))
            progress.advance(table.seconds, f"{name} done")
    print(f"written to {folder}")
    return folder


def run(name: str, main: Callable[[], object], stopped: str) -> None:
    """Call a script's main; a user's mistake is one line and exit code 2. ``stopped``: printed after
    Ctrl-C."""
    try:
        main()
    except UserError as error:
        print(f"{name}: {error}", file=sys.stderr)
        sys.exit(2)
    except RanksFailed as error:
        sys.exit(f"{name}: {error}")
    except KeyboardInterrupt:
        sys.exit(f"{name}: stopped; {stopped}")
