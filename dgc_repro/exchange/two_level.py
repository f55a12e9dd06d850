"""Two-level worlds: dense inside a node, compressed between nodes.

The workers of a node average their gradients as they are (`InsideNodes`); the node then exchanges
with the other nodes as one worker. Its first worker communicates for it and broadcasts the answers
inside the node (`BetweenNodes`), so that a payload crosses the network once a node. All workers of a
node compress the same gradient with the same state and random numbers: nothing but answers is handed
on, and policies see the same everywhere.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dgc_repro.compressor.dense import Dense
from dgc_repro.exchange.ddp import AfterBackward, Parameters
from dgc_repro.exchange.gradients import GradientExchange
from dgc_repro.exchange.ledger import NODE, Ledger
from dgc_repro.exchange.process_group import node_groups
from dgc_repro.exchange.simulated import SimulatedWire
from dgc_repro.exchange.wire import BROADCAST, Link, Pending, Sizes, Wire, arriving
from dgc_repro.kernel.workspace import Workspace
from dgc_repro.policy.interface import Plan


class BetweenNodes:
    """The wire between nodes, where each node is one worker. Collectives are over when the call
    returns: two groups take turns, and their order must be the same everywhere."""

    local_workers = 1

    def __init__(self, inside: Wire, leaders: Wire | None, num_nodes: int, node: int) -> None:
        """``inside``: the workers of this node; ``leaders``: the first worker of each node, None for
        the others."""
        self._inside = inside
        self._leaders = leaders
        self.world_size = num_nodes
        self.rank = node
        self.device = inside.device
        self._buffers = Workspace()

    def combine_(self, how: str, flat: Tensor) -> Pending:
        if self._leaders:
            self._leaders.combine_(how, flat).wait()
        return self._hand_on(flat)

    def collect(
        self, flats: Sequence[Tensor], slot: str, sizes: Sequence[Sizes] | None = None
    ) -> tuple[list[list[Tensor]], Pending]:
        if self._leaders:
            rows, pending = self._leaders.collect(flats, slot, sizes)
            pending.wait()
        else:
            come = arriving(self.world_size, flats[0], sizes)
            whole = self._buffers.scratch((slot,), sum(come), torch.uint8, self.device)
            rows = [list(whole.split(come))]
        for row in rows[0]:
            self._hand_on(row)
        return rows, Pending()

    def barrier(self) -> None:
        if self._leaders:
            self._leaders.barrier()
        self._inside.barrier()

    def _hand_on(self, flat: Tensor) -> Pending:
        self._inside.combine_(BROADCAST, flat).wait()
        return Pending()


@dataclass(frozen=True)
class Nodes:
    """The wires of a two-level world."""

    inside: Wire
    between: Wire


def nodes_of(world: Wire, node_size: int, timeout_seconds: float) -> Nodes:
    """Cut a world into nodes of ``node_size`` consecutive workers. All ranks call it together."""
    count, node = world.world_size // node_size, world.rank // node_size
    if world.local_workers > 1 or world.world_size == 1:
        return Nodes(SimulatedWire(node_size, world.device), SimulatedWire(count, world.device))
    inside, leaders = node_groups(world.device, node_size, timeout_seconds)
    return Nodes(inside, BetweenNodes(inside, leaders, count, node))


class InsideNodes:
    """The junction of a two-level world, after backward: a node's mean is what is exchanged.

    ``inside``: the wire between the workers of a node; simulated, the workers hosted here are its
    workers node after node."""

    overlaps = False

    def __init__(
        self, exchange: GradientExchange, parameters: Parameters, inside: Wire, node_size: int
    ) -> None:
        self._exchange = exchange
        self._after = AfterBackward(exchange, parameters)
        self._ledger = exchange.link.ledger
        self._counted = Ledger()
        between = exchange.link
        link = Link(
            inside, self._counted, between.clock, check=between.check, cost=between.node_cost
        )
        self.node = GradientExchange(Dense(), dict(parameters), link)
        self._node_size = node_size
        self._plan = Plan(None)

    def begin(self, plan: Plan) -> None:
        self._plan = plan

    def open(self, worker: int) -> str | None:
        node, place = divmod(worker, self._node_size)
        self.node.open(place, self._after.gradients(worker), Plan(0), part=node)
        bad = self.node.non_finite.get(place)
        found = self.node.peaks[place, node]
        if place == self.node.link.wire.local_workers - 1:
            means = self.node.finish(part=node)
            self.node.commit()
            if node == 0:  # the ledger is one worker's
                self._ledger.take_over(self._counted, NODE)
            self._counted.clear()
            self._exchange.open_any(node, means, self._plan)  # whose NaN it is has been found
            self._exchange.peaks.pop((node, 0), None)  # what counts is each worker's own gradient
        self._exchange.peaks[worker, -1] = found
        return bad

    @property
    def missing(self) -> frozenset[str]:
        return self._after.missing

    def serve(self) -> None:
        self._after.serve()

    def finish(self, absent: Collection[str]) -> None:
        self._after.finish(absent)
