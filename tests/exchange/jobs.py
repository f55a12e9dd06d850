"""Exchanges of gradients by the ranks of a real world, or by simulated workers on any wire."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from samples import gradient
from torch import Tensor

from dgc_repro.compressor.interface import Compressor
from dgc_repro.exchange.clock import Clock
from dgc_repro.exchange.gradients import GradientExchange
from dgc_repro.exchange.ledger import Ledger
from dgc_repro.exchange.process_group import PIECE_BYTES, ProcessGroupWire
from dgc_repro.exchange.wire import Link, Wire
from dgc_repro.policy.interface import Plan

CPU = torch.device("cpu")
Shapes = Mapping[str, tuple[int, ...]]


def exchanged(
    wire: Wire, compressor: Compressor, shapes: Shapes, steps: int, rung: int, check: bool = False
) -> dict[str, Any]:
    """Some steps of the workers on a wire: every step's means, the last states, the bytes."""
    link = Link(wire, Ledger(), Clock(CPU), check=check)
    like = {name: torch.empty(shape) for name, shape in shapes.items()}
    exchange = GradientExchange(compressor, like, link, seed=3)
    means = []
    for step in range(steps):
        for worker in range(wire.local_workers):
            own = {n: gradient(n, shape, wire.rank + worker, step) for n, shape in shapes.items()}
            exchange.open(worker, own, Plan(rung))
        means.append({name: mean.clone() for name, mean in exchange.finish().items()})
        exchange.commit()
    return {"means": means, "states": exchange.states, "ledger": link.ledger.state_dict()}


def exchange_here(*arguments: Any) -> dict[str, Any]:
    return exchanged(ProcessGroupWire(CPU), *arguments)


def disagree(by_rank: list[tuple[Compressor, Shapes]]) -> str:
    """What this rank is told when ranks bring different compressors or tensors."""
    compressor, shapes = by_rank[dist.get_rank()]
    return raised(lambda: exchange_here(compressor, shapes, 1, 0, True))


def raised(action: Callable[[], object]) -> str:
    """The name and message of what an action raises."""
    try:
        action()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def gather_in_pieces(extra: int) -> list[bool]:
    """Whether each rank's row of a gather of several pieces arrived as that rank sent it."""
    size = 2 * PIECE_BYTES + extra

    def sent(rank: int) -> Tensor:
        return torch.arange(size).add_(rank).to(torch.uint8)

    wire = ProcessGroupWire(CPU)
    (rows,), pending = wire.collect([sent(wire.rank)], "pieces")
    pending.wait()
    assert pending.is_completed()
    return [torch.equal(row, sent(rank)) for rank, row in enumerate(rows)]
