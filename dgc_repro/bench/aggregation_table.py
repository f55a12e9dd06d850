"""The table of docs/methods.md: bytes on the wire by way of combining, from the ledger.

    python scripts/aggregation_table.py            print it
    python scripts/aggregation_table.py --write    and put it into the page

Simulated workers exchange one tensor of random numbers, of ResNet18's size. A few minutes.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable

import pandas as pd
import torch

from dgc_repro.bench.command_line import REPOSITORY
from dgc_repro.compressor.dense import Dense
from dgc_repro.compressor.interface import Compressor
from dgc_repro.compressor.topk import TopK
from dgc_repro.compressor.uniform import Uniform
from dgc_repro.exchange.aggregation import AUTO, GATHER, GTOPK, SHARDED, aggregated, choose, ways
from dgc_repro.exchange.clock import Clock
from dgc_repro.exchange.gradients import GradientExchange
from dgc_repro.exchange.ledger import Ledger
from dgc_repro.exchange.simulated import SimulatedWire
from dgc_repro.exchange.wire import Link
from dgc_repro.paper.page import markdown_table
from dgc_repro.policy.interface import Plan
from dgc_repro.progress import Progress, console_of

PAGE = REPOSITORY / "docs" / "methods.md"
BEGIN, END = "<!-- made by scripts/aggregation_table.py -->\n", "<!-- end of the table -->\n"
NUM_VALUES = 11_173_962  # ResNet18 for CIFAR-10
NAME = "model"
WORKERS = (2, 4, 8, 32)
METHODS: dict[str, Compressor] = {
    "8 bits": Uniform(8, block=2048),
    "4 bits": Uniform(4, block=2048),
    "top-k 1 %": TopK(0.01),
    "top-k 0.1 %": TopK(0.001),
}
COLUMNS = (GATHER, SHARDED, GTOPK)


def wire_bytes(compressor: Compressor, n: int, workers: int) -> float:
    """What worker 0 puts on the wire in one step, by the ledger."""
    link = Link(SimulatedWire(workers), Ledger(), Clock(torch.device("cpu")))
    exchange = GradientExchange(compressor, {NAME: torch.empty(n)}, link)
    source = torch.Generator().manual_seed(0)
    gradients = torch.empty(n), torch.empty(n)  # the first worker's is where the mean goes
    for worker in range(workers):
        gradient = gradients[min(worker, 1)].normal_(generator=source)
        exchange.open(worker, {NAME: gradient}, Plan(0))
    exchange.finish()
    return float(link.ledger.metrics()["comm/wire_bytes"])


def rows(n: int, workers: Iterable[int] = WORKERS) -> list[tuple[str, ...]]:
    """Method, workers, MB of dense and of each way, and what auto takes."""
    found = []
    settings = list(itertools.product(METHODS.items(), workers))
    progress = Progress("aggregation-table", len(settings), console=console_of(sys.stderr))
    for (title, method), count in settings:
        ours = {way: aggregated(method, way, {NAME: n}, count) for way in ways(method)}
        sizes = {way: megabytes(wire_bytes(each, n, count)) for way, each in ours.items()}
        dense = megabytes(wire_bytes(Dense(), n, count))
        cells = (sizes.get(way, "") for way in COLUMNS)
        found.append((title, str(count), dense, *cells, choose(method, {NAME: n}, count).way))
        progress.advance(now=f"{title}, {count} workers done")
    progress.close()
    return found


def megabytes(size: float) -> str:
    """Four digits."""
    return f"{size / 1e6:.4g}"


def table(n: int) -> str:
    """As the page shows it."""
    heads = ["payload", "N", "dense", *COLUMNS, AUTO]
    return markdown_table(pd.DataFrame(rows(n), columns=heads)) + "\n"


def command() -> None:
    """Entry point of scripts/aggregation_table.py: print the table; with --write, put it into the page."""
    print("aggregation-table: a few minutes", file=sys.stderr, flush=True)
    made = table(NUM_VALUES)
    print(made, end="")
    if "--write" in sys.argv[1:]:
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
        after = rest.partition(END)[2]
        PAGE.write_text(f"{before}{BEGIN}{made}{END}{after}", encoding="utf-8")
