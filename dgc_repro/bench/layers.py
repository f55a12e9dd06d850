"""The exchange of ResNet101's 314 tensors one by one, in multiples of one joined vector's.

Two gloo workers on loopback; the whole exchange with error feedback: add the residual, compress, one
collective, decompress, average. What costs is the overhead of a tensor, times 314.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torchvision.models import resnet101

from dgc_repro.bench.tables import Row, Spread, shares
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
from dgc_repro.exchange.wire import Link
from dgc_repro.policy.interface import Plan as Rungs

AT_MOST = 1.3
CASES: Mapping[str, Compressor] = {
    "dense": Dense(),
    "uniform 8 bits, block 2048": ErrorFeedback(Uniform(8, block=2048)),
    "uniform 4 bits, block 512": ErrorFeedback(Uniform(4, block=512)),
    "ef_signsgd": ErrorFeedback(EFSignSGD()),
    "topk 100x": ErrorFeedback(TopK(factor=100)),
    "dgc_sampled 100x": ErrorFeedback(DGCSampled(factor=100)),
    "randomk 100x": ErrorFeedback(RandomK(factor=100)),
}
COLUMNS = {
    "exchange": "case",
    "layer by layer x joined": "layers_x",
    "at most": "at_most",
    "verdict": "verdict",
    "layer by layer ms": "layers_ms",
    "joined ms": "joined_ms",
    "MB handed over": "payload_mb",
    "joined MB": "joined_mb",
}


@dataclass(frozen=True)
class Layers:
    """One way to cut the model, ready to exchange."""

    exchange: GradientExchange
    gradients: dict[str, Tensor]

    @classmethod
    def of(cls, compressor: Compressor, gradients: dict[str, Tensor]) -> Layers:
        """``gradients``: f32, by name."""
        device = torch.device("cpu")
        link = Link(ProcessGroupWire(device), Ledger(), Clock(device))
        return cls(GradientExchange(compressor, gradients, link), gradients)

    def seconds(self) -> float:
        """Wall time of one exchange of this rank, begun together. The gradients are written over,
        by their mean: they stay what gradients look like."""
        dist.barrier()
        begin = time.perf_counter()
        self.exchange.open(0, self.gradients, Rungs(0))
        self.exchange.finish()
        self.exchange.commit()
        return time.perf_counter() - begin


def measure(repeats: int) -> dict[str, dict[str, Any]]:
    """For each case: pairs of seconds (layer by layer, joined) of the slower rank, and bytes."""
    with torch.device("meta"):
        sizes = {name: parameter.shape for name, parameter in resnet101().named_parameters()}
    generator = torch.Generator().manual_seed(dist.get_rank())
    total = sum(shape.numel() for shape in sizes.values())
    values = torch.randn(total, generator=generator)
    values.mul_(torch.randn(total, generator=generator).exp_())
    found: dict[str, dict[str, Any]] = {
        name: {"seconds": [], "payload_bytes": []} for name in CASES
    }
    for share in shares(repeats):
        for name, compressor in CASES.items():
            pieces = values.clone().split([shape.numel() for shape in sizes.values()])
            cut = {n: p.view(s) for (n, s), p in zip(sizes.items(), pieces, strict=True)}
            joined = {"joined": values.clone()}
            ways = [Layers.of(compressor, cut), Layers.of(compressor, joined)]
            for way in ways * 2:
                way.seconds()
            pairs = torch.tensor([[way.seconds() for way in ways] for _ in range(share)])
            dist.all_reduce(pairs, dist.ReduceOp.MAX)
            found[name]["seconds"] += pairs.tolist()
            found[name]["payload_bytes"] = [
                w.exchange.link.ledger.payload_bytes / w.exchange.step for w in ways
            ]
            del ways, cut, joined, pieces
            gc.collect()
    return found


def rows(found: Mapping[str, Any]) -> list[Row]:
    """What the workers found, as rows of the table."""
    table: list[Row] = []
    for name, measured in found.items():
        layers, joined = zip(*measured["seconds"], strict=True)
        ratio = Spread.of([one / other for one, other in measured["seconds"]])
        at_most = None if name == "dense" else AT_MOST
        table.append(
            {
                "case": name,
                **ratio.columns("layers_x"),
                "at_most": at_most,
                "verdict": ratio.verdict(at_most),
                "layers_ms": 1e3 * statistics.median(layers),
                "joined_ms": 1e3 * statistics.median(joined),
                "payload_mb": measured["payload_bytes"][0] / 1e6,
                "joined_mb": measured["payload_bytes"][1] / 1e6,
            }
        )
    return table
