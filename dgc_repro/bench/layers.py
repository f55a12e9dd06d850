"""The exchange of ResNet101's 314 tensors one by one, in multiples of one joined vector's.

Two gloo workers on loopback; the whole exchange with error feedback: add the residual, compress, one
collective, decompress, average. The difference is the overhead of a tensor, 314 times.
"""

from __future__ import annotations

import gc
from argparse import Namespace
from collections.abc import Mapping
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor
from torchvision.models import resnet101

from dgc_repro.bench.methods import heavy_tailed
from dgc_repro.bench.rounds import Steps, rounds, spread_out, timed
from dgc_repro.bench.tables import Row, Spread, Table
from dgc_repro.bench.world import PAIR, on_ranks
from dgc_repro.compressor.dense import Dense
from dgc_repro.compressor.dgc_sampled import DGCSampled
from dgc_repro.compressor.ef_signsgd import EFSignSGD
from dgc_repro.compressor.error_feedback import ErrorFeedback
from dgc_repro.compressor.interface import Compressor
from dgc_repro.compressor.randomk import RandomK
from dgc_repro.compressor.topk import TopK
from dgc_repro.compressor.uniform import Uniform
from dgc_repro.exchange.clock import Clock
from dgc_repro.exchange.gradients import GradientExchange
from dgc_repro.exchange.ledger import Ledger
from dgc_repro.exchange.process_group import ProcessGroupWire
from dgc_repro.exchange.wire import Link, Wire
from dgc_repro.policy.interface import Plan

REPEATS, WARMUP = 10, 2
AT_MOST = 1.15
CASES: Mapping[str, Compressor] = {
    "dense": Dense(),
    "uniform 8 bits, block 2048": ErrorFeedback(Uniform(8, block=2048)),
    "uniform 4 bits, block 512": ErrorFeedback(Uniform(4, block=512)),
    "ef_signsgd": ErrorFeedback(EFSignSGD()),
    "topk 100x": ErrorFeedback(TopK(factor=100)),
    "dgc_sampled 100x": ErrorFeedback(DGCSampled(factor=100)),
    "randomk 100x": ErrorFeedback(RandomK(factor=100)),
}
LAYERS, JOINED = "layers", "joined"
COLUMNS = {
    "exchange": "case",
    "layer by layer x joined": "layers_x",
    "at most": "at_most",
    "verdict": "verdict",
    "layer by layer ms": "layers_ms",
    "joined ms": "joined_ms",
}


def table(options: Namespace) -> Table:
    """Of `make bench`."""
    repeats = options.repeats or REPEATS
    about = (
        f"ResNet101's 314 gradients (44,549,160 values, heavy-tailed), {PAIR} gloo workers on loopback, 1 "
        f"thread each; median of {repeats} pairs (middle half), spread over the time of all cases"
    )
    return Table(
        "layers",
        "Layer by layer",
        about,
        COLUMNS,
        lambda: rows(on_ranks(on_rank, repeats)),
        10 + 12 * repeats,
    )


def on_rank(repeats: int) -> dict[str, Steps]:
    """Every case's seconds, layer by layer and joined."""
    with torch.device("meta"):
        sizes = {name: parameter.shape for name, parameter in resnet101().named_parameters()}
    total = sum(shape.numel() for shape in sizes.values())
    values = heavy_tailed(total, dist.get_rank()).view(-1)
    wire = ProcessGroupWire(torch.device("cpu"))

    def pairs(compressor: Compressor, share: int) -> Steps:
        gc.collect()  # the last case's buffers
        pieces = values.clone().split([shape.numel() for shape in sizes.values()])
        cut = {n: p.view(s) for (n, s), p in zip(sizes.items(), pieces, strict=True)}
        ways = {LAYERS: cut, JOINED: {JOINED: values.clone()}}
        return rounds(
            {
                name: timed(partial(exchange, opened(compressor, g, wire), g))
                for name, g in ways.items()
            },
            share,
            WARMUP,
        )

    return spread_out({name: partial(pairs, case) for name, case in CASES.items()}, repeats)


def opened(
    compressor: Compressor, gradients: Mapping[str, Tensor], wire: Wire, unit: str = "layer"
) -> GradientExchange:
    """An exchange of gradients like these (f32, by name) between the workers of a wire."""
    return GradientExchange(
        compressor, gradients, Link(wire, Ledger(), Clock(wire.device)), unit=unit
    )


def exchange(opened: GradientExchange, *gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """One exchange of each worker's gradients; the means. They are written over the first worker's, which
    stay what gradients look like."""
    for worker, own in enumerate(gradients):
        opened.open(worker, own, Plan(0))
    means = opened.finish()
    opened.commit()
    return means


def rows(found: Mapping[str, Steps]) -> list[Row]:
    """A row a case."""
    made: list[Row] = []
    for name, steps in found.items():
        layers, joined = steps[LAYERS]["seconds"], steps[JOINED]["seconds"]
        ratio = Spread.of(layers / joined)
        at_most = None if name == "dense" else AT_MOST
        made.append(
            {
                "case": name,
                **ratio.columns("layers_x"),
                "at_most": at_most,
                "verdict": ratio.verdict(at_most),
                "layers_ms": 1e3 * float(layers.median()),
                "joined_ms": 1e3 * float(joined.median()),
            }
        )
    return made
