"""Measure the methods, the exchange and what GraVAC costs, print the tables, keep them under results/bench/.

python scripts/bench.py            all tables, at most 10 minutes on 2 cores
python scripts/bench.py --quick    fewer repeats and settings, about a minute
python scripts/bench.py --only methods|exchange|gravac
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import bench_exchange
import bench_gravac
import bench_layers
import bench_methods
import bench_stacked
import bench_worker
from bench_figures import draw_exchange, draw_gravac, draw_methods
from bench_measure import ROUNDS, Machine, Row, markdown, write_csv

from dgc_repro.launch.replay import RanksFailed

REPOSITORY = Path(__file__).resolve().parent.parent
METHODS, EXCHANGE, GRAVAC = "methods", "exchange", "gravac"


def main(arguments: Sequence[str] | None = None) -> Path:
    """Measure what is asked for; the folder that was written to."""
    options = _parser().parse_args(arguments)
    machine = Machine.here()
    folder = Path(options.output or REPOSITORY / "results" / "bench") / machine.slug
    folder.mkdir(parents=True, exist_ok=True)
    for name, section in ((METHODS, _methods), (EXCHANGE, _exchange), (GRAVAC, _gravac)):
        if options.only in (None, name):
            section(options, machine, folder)
    print(f"written to {folder}")
    return folder


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="speed tables: methods, exchange, GraVAC")
    parser.add_argument(
        "--quick", action="store_true", help="fewer repeats and settings, about a minute"
    )
    parser.add_argument("--only", choices=(METHODS, EXCHANGE, GRAVAC), help="one table")
    parser.add_argument("--output", type=Path, help="folder for the tables (results/bench)")
    parser.add_argument("--values", type=int, help="size of the methods' gradient")
    parser.add_argument(
        "--width", type=int, help="width of the exchange's ResNet18, of GraVAC's ResNet101"
    )
    parser.add_argument("--repeats", type=int, help="pairs measured of everything")
    return parser


def _methods(options: argparse.Namespace, machine: Machine, folder: Path) -> None:
    plan = bench_methods.Plan()
    if options.quick:
        short = [case for case in plan.cases if case.in_short]
        plan = replace(plan, repeats=5, cases=short)
    plan = replace(
        plan,
        num_values=options.values or plan.num_values,
        repeats=options.repeats or plan.repeats,
    )
    rows = bench_methods.measure(plan)
    head = machine.lines(plan.describe())
    table = markdown("Methods", head, bench_methods.COLUMNS, rows)
    _keep(METHODS, table, rows, machine, folder, bench_methods.THREADS)
    draw_methods(rows, machine.caption, folder)
    if not options.quick:
        _stacked(machine, folder, plan.repeats)


def _stacked(machine: Machine, folder: Path, repeats: int) -> None:
    threads = bench_methods.THREADS
    rows = bench_stacked.measure(bench_stacked.resnet101(), repeats, threads)
    head = machine.lines(
        f"ResNet101's matrices, rank {bench_stacked.RANK}, {threads} threads: compress, and decompress one "
        "worker's factors; multiples of a copy_ of all matrices timed right before; median of "
        f"{repeats} repeats (middle half)"
    )
    table = markdown("PowerSGD's products", head, bench_stacked.COLUMNS, rows)
    _keep("stacked", table, rows, machine, folder, threads)


def _exchange(options: argparse.Namespace, machine: Machine, folder: Path) -> None:
    plan = bench_exchange.Plan()
    if options.quick:
        plan = replace(plan, repeats=5, whole_step_repeats=0, layer_repeats=0)
    plan = replace(plan, width=options.width or plan.width, repeats=options.repeats or plan.repeats)
    rows, layers = bench_worker.measure(plan)
    head = machine.lines(plan.describe())
    _keep(EXCHANGE, markdown("Exchange", head, bench_exchange.COLUMNS, rows), rows, machine, folder)
    draw_exchange(rows, machine.caption, folder)
    if layers:
        head = machine.lines(
            "ResNet101's 314 gradients (44,549,160 values, heavy-tailed), 2 gloo workers on loopback, "
            f"1 thread each; median of {plan.layer_repeats} pairs (middle half), in {ROUNDS} rounds over "
            "all cases"
        )
        table = markdown("Layer by layer", head, bench_layers.COLUMNS, layers)
        _keep("layers", table, layers, machine, folder)


def _gravac(options: argparse.Namespace, machine: Machine, folder: Path) -> None:
    plan = bench_gravac.Plan()
    if options.quick:
        plan = replace(plan, repeats=3, methods=("DGC",))
    plan = replace(plan, width=options.width or plan.width, repeats=options.repeats or plan.repeats)
    rows = bench_gravac.measure(plan)
    head = machine.lines(plan.describe())
    _keep(
        GRAVAC,
        markdown("GraVAC's own cost", head, bench_gravac.COLUMNS, rows),
        rows,
        machine,
        folder,
    )
    draw_gravac(rows, machine.caption, folder)


def _keep(
    name: str,
    table: str,
    rows: Sequence[Row],
    machine: Machine,
    folder: Path,
    threads: int = 1,
) -> None:
    """Print a table; it and all of its numbers stay in the folder."""
    print(table)
    (folder / f"{name}.md").write_text(table)
    write_csv(folder / f"{name}.csv", rows, {**asdict(machine), "threads": threads})


if __name__ == "__main__":
    try:
        main()
    except RanksFailed as error:
        sys.exit(f"bench: {error}")
