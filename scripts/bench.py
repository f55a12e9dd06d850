"""Measure the kernels and the exchange, print the tables, keep them under results/bench/.

python scripts/bench.py            both tables, at most 6 minutes on 2 cores
python scripts/bench.py --quick    fewer repeats and settings, under a minute
python scripts/bench.py --only kernels|exchange
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import bench_exchange
import bench_kernels
from bench_figures import draw_exchange, draw_kernels
from bench_measure import Machine, markdown, write_csv

REPOSITORY = Path(__file__).resolve().parent.parent
KERNELS, EXCHANGE = "kernels", "exchange"


def main(arguments: Sequence[str] | None = None) -> Path:
    """Measure what is asked for; the folder that was written to."""
    options = _parser().parse_args(arguments)
    machine = Machine.here()
    folder = Path(options.output or REPOSITORY / "results" / "bench") / machine.slug
    folder.mkdir(parents=True, exist_ok=True)
    if options.only != EXCHANGE:
        _kernels(options, machine, folder)
    if options.only != KERNELS:
        _exchange(options, machine, folder)
    print(f"written to {folder}")
    return folder


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="speed tables: kernels and exchange")
    parser.add_argument(
        "--quick", action="store_true", help="fewer repeats and settings, under a minute"
    )
    parser.add_argument("--only", choices=(KERNELS, EXCHANGE), help="one table")
    parser.add_argument("--output", type=Path, help="folder for the tables (results/bench)")
    parser.add_argument("--values", type=int, help="size of the kernels' gradient")
    parser.add_argument("--width", type=int, help="width of the exchange's ResNet18")
    parser.add_argument("--repeats", type=int, help="pairs measured of everything")
    return parser


def _kernels(options: argparse.Namespace, machine: Machine, folder: Path) -> None:
    plan = bench_kernels.Plan()
    if options.quick:
        plan = replace(plan, repeats=5, eager_repeats=1, settings=plan.settings[:4])
    plan = replace(
        plan,
        num_values=options.values or plan.num_values,
        repeats=options.repeats or plan.repeats,
    )
    rows = bench_kernels.measure(plan)
    head = machine.lines(plan.describe())
    table = markdown("Kernels", head, bench_kernels.COLUMNS, rows)
    print(table)
    (folder / "kernels.md").write_text(table)
    write_csv(folder / "kernels.csv", rows, {**asdict(machine), "threads": bench_kernels.THREADS})
    draw_kernels(rows, machine.caption, folder)


def _exchange(options: argparse.Namespace, machine: Machine, folder: Path) -> None:
    plan = bench_exchange.Plan()
    if options.quick:
        plan = replace(plan, repeats=5, whole_step_repeats=0)
    plan = replace(plan, width=options.width or plan.width, repeats=options.repeats or plan.repeats)
    rows = bench_exchange.measure(plan)
    head = machine.lines(plan.describe())
    table = markdown("Exchange", head, bench_exchange.COLUMNS, rows)
    print(table)
    (folder / "exchange.md").write_text(table)
    write_csv(folder / "exchange.csv", rows, {**asdict(machine), "threads": 1})
    draw_exchange(rows, machine.caption, folder)


if __name__ == "__main__":
    try:
        main()
    except bench_exchange.WorkersFailed as error:
        sys.exit(f"bench: {error}")
