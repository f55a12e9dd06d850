"""Measure methods and exchanges on this machine, and print the tables.

make bench                              methods, exchange and, where there is a GPU, gpu: about 10 minutes
make bench ARGS=--quick                 fewer repeats and settings, about a minute
make bench ARGS="--only methods"        one of the tables
make bench-network                      exchange on shaped links: what compression is worth (root)

Tables go to reproduced/bench/; --publish writes them to results/bench/ instead.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from dgc_repro.bench import exchange, methods
from dgc_repro.bench.tables import Machine, Table
from dgc_repro.bench.world import RanksFailed
from dgc_repro.errors import Parser, UserError
from dgc_repro.progress import Progress, duration

REPOSITORY = Path(__file__).resolve().parents[2]
TABLES: Mapping[str, Callable[[bool], Table]] = {
    "methods": methods.table,
    "exchange": exchange.table,
    "gpu": methods.gpu_table,
    "network": exchange.network_table,
}


def main(arguments: Sequence[str] | None = None) -> Path:
    """Measure the tables that are asked for; the folder that was written to."""
    plain = argparse.RawDescriptionHelpFormatter
    made = Parser(description=__doc__, formatter_class=plain)
    made.add_argument("--output", type=Path, help="folder of the tables (default: reproduced/)")
    made.add_argument("--publish", action="store_true", help="write the tables to results/")
    made.add_argument("--quick", action="store_true", help="fewer repeats and settings")
    made.add_argument("--only", choices=tuple(TABLES), help="one table")
    given = made.parse_args(arguments)
    usual = ["methods", "exchange", *(["gpu"] if torch.cuda.is_available() else [])]
    names = [given.only] if given.only else usual
    tables = {name: TABLES[name](given.quick) for name in names}
    expected = sum(table.seconds for table in tables.values())
    print(f"bench: about {duration(expected)} expected on two idle cores", flush=True)
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
