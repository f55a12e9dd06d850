"""What a collective costs on a network: the alpha-beta model.

A message of m bytes takes alpha + m beta seconds: alpha is the latency of a message, beta the seconds a
byte at the rate of the link. A collective is rounds of messages; in a round all transfers go at the same
time, and it lasts as long as its slowest one. Links are full duplex, a worker has one link, and where
several transfers leave (or enter) one link in a round they share it. Reducing costs nothing of its own.

==================  ==================  =====================================================  =======
collective          algorithm           seconds, N workers, M payload bytes, d = ceil(log2 N)  source
==================  ==================  =====================================================  =======
allreduce           `ring`              2 (N-1) alpha + 2 (N-1)/N M beta                       [1] [2]
                    `tree`              2 d alpha + 2 d M beta                                 [2]
                    `halving_doubling`  2 log2 N alpha + 2 (N-1)/N M beta, N a power of two    [1]
reduce_scatter      ring                (N-1) alpha + (N-1)/N M beta                           [1]
allgather           ring                (N-1) alpha + (N-1) M beta                             [1]
alltoall            direct              alpha + M beta                                         [3]
broadcast           binomial, at once   d alpha + d (d+1)/2 M beta, N a power of two           [3]
barrier             dissemination       d alpha                                                [3]
==================  ==================  =====================================================  =======

[1] Thakur, Rabenseifner and Gropp, Optimization of Collective Communication Operations in MPICH, IJHPCA
19(1), 2005, sections 4 and 4.5. [2] Tyagi and Swany, GraVAC (2023), section II: its cost of tree and ring
allreduce. [3] gloo as torch has it: ``alltoallv.cc`` posts all sends at once; ``broadcast.cc`` walks a
binomial tree whose sends are posted at once, so that the d sends of the root share its link (what it feeds
begins when they end: d + (d-1) + ... + 1); ``barrier.cc``. Its ``allreduce.cc`` and
``allgather.cc`` are rings that cut each step's message in segments, two of them under way at a time.

The payload is what the ledger counts: of allreduce, broadcast and reduce_scatter the whole vector, of
allgather a worker's own part, of alltoall the bytes a worker has for others. The defaults are gloo's
algorithms; nccl's allreduce is a ring or a tree.

Software. Real collectives cost a call something (`overhead`) and move bytes no faster than the hosts'
software copies and adds them (`rate`): both are measured by ``python -m dgc_repro calibrate`` and stand in a
profile by collective (`Network.software`). A byte then takes the longer of link and software.

Two levels. Workers are placed node after node; those of a node share one outer link. A ring crosses each
outer link once a round, so that it goes at the outer link's full rate; an all-to-all and the far rounds of
halving-doubling send all of a node's workers over it at once. Of unequal links the slowest counts: exact
for rings and all-to-all, in which every link carries the same; for trees an upper bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated

from dgc_repro.checked import Count, checked, one_of
from dgc_repro.network.profile import (
    ALLREDUCES,
    COLLECTIVES,
    HALVING_DOUBLING,
    RING,
    TREE,
    Level,
    Network,
)


def doublings(workers: int) -> int:
    """ceil(log2 N): rounds until everybody has been reached by doubling."""
    return (workers - 1).bit_length()


@dataclass(frozen=True)
class Round:
    """``times`` rounds in a row, alike. ``outer``, ``inner``: payloads that the busiest link of this
    level carries each way (1 = the whole payload once), None where nothing crosses it."""

    times: float
    outer: float | None
    inner: float | None = None

    def seconds(self, num_bytes: float, outer: Level, inner: Level) -> float:
        """The slowest transfer's, ``times`` times."""
        slowest = 0.0
        for share, level in ((self.outer, outer), (self.inner, inner)):
            if share is not None:
                slowest = max(slowest, level.latency + share * num_bytes * level.seconds_per_byte)
        return self.times * slowest


@checked
class Costs:
    """Seconds of collectives between ``workers`` of a network. ``allreduce``: the algorithm (None: the
    network's); ``step``: of a run, where the network's rates change by a schedule.

    Raises ValueError, that begins with the field of the network or of this class.
    """

    network: Network
    workers: Count
    allreduce: Annotated[str, one_of(ALLREDUCES)] | None = None
    step: int = 0
    node_size: int = field(init=False)  # workers that share an outer link
    outer: Level = field(init=False)
    inner: Level = field(init=False)

    def __post_init__(self) -> None:
        if self.allreduce is None:
            object.__setattr__(self, "allreduce", self.network.allreduce)
        node_size, outer, inner = self._levels()
        object.__setattr__(self, "node_size", node_size)
        object.__setattr__(self, "outer", outer)
        object.__setattr__(self, "inner", inner)

    def seconds(self, collective: str, payload_bytes: float) -> float:
        """Of one call in which this worker hands over so many bytes. Between one worker: 0."""
        if collective not in COLLECTIVES:
            raise ValueError(f"collective: one of {', '.join(COLLECTIVES)}, got {collective!r}")
        if self.workers == 1:
            return 0.0
        software = self.network.software_of(collective)
        outer, inner = self.outer.no_faster(software.rate), self.inner.no_faster(software.rate)
        rounds = self._rounds[collective]
        return software.overhead + sum(each.seconds(payload_bytes, outer, inner) for each in rounds)

    def terms(self, collective: str) -> tuple[float, float]:
        """(messages one after the other, payloads that cross the busiest link) of a call: what alpha and
        beta are multiplied with. One level only."""
        assert self.node_size == 1
        rounds = self._rounds[collective]
        return sum(r.times for r in rounds), sum(r.times * (r.outer or 0.0) for r in rounds)

    def _levels(self) -> tuple[int, Level, Level]:
        network, size = self.network, self.network.workers_per_node
        outer = network.goodput(network.outer_at(self.step, self.workers))
        if size is None:
            return 1, outer, outer
        assert network.inner is not None
        inner = network.inner  # no TCP inside a node: its rate is what payload gets
        if self.workers <= size:  # all in one node
            return 1, inner, inner
        if self.workers % size:
            raise ValueError(
                f"workers_per_node: {size} workers share a node, and {self.workers} workers are no "
                f"multiple of it; use {self.workers // size * size} or {-(-self.workers // size) * size}"
            )
        return size, outer, inner

    @cached_property
    def _rounds(self) -> dict[str, Sequence[Round]]:
        n, g = self.workers, self.node_size
        inside = 1.0 if g > 1 else None
        near, far = doublings(g), doublings(n // g)
        allreduce = {
            RING: self._ring(2 * (n - 1), 1 / n),
            TREE: [Round(2 * far, 1.0), Round(2 * near, None, 1.0)],
            HALVING_DOUBLING: _halving_doubling(n, g),
        }
        at_once = [Round(1, g * (n - g) / (n - 1) if g > 1 else 1.0, inside and (g - 1) / (n - 1))]
        # Of a node all workers that have the vector send it out at once, in every far round.
        flood = [Round(1, float(g * sends)) for sends in _flood(n // g)]
        flood += [Round(1, None, float(sends)) for sends in _flood(g)]
        return {
            "allreduce": allreduce[str(self.allreduce)],
            "reduce_scatter": self._ring(n - 1, 1 / n),
            "allgather": self._ring(n - 1, 1.0),
            "alltoall": at_once,
            "broadcast": flood,
            "barrier": [Round(doublings(n), 0.0)],
        }

    def _ring(self, steps: int, share: float) -> list[Round]:
        return [Round(steps, share, share if self.node_size > 1 else None)]


def _flood(workers: int) -> list[int]:
    """gloo's broadcast: sends at once of each worker on the path to the worker that is reached last.
    Worker v has bits up to that of its own highest one set by the time it is reached, and sends to v + 2^i
    for all higher i."""

    def longest(worker: int) -> list[int]:
        higher = range(worker.bit_length(), doublings(workers))
        children = [worker + (1 << i) for i in higher if worker + (1 << i) < workers]
        if not children:
            return []
        return [
            len(children),
            *max(map(longest, children), key=lambda path: (sum(path), len(path))),
        ]

    return longest(0)


def _halving_doubling(workers: int, node_size: int) -> list[Round]:
    """Distances 1, 2, 4, ... with messages M/2, M/4, M/8, ..., and back. Workers above a power of two are
    folded into a neighbour first."""
    power = 1 << (workers.bit_length() - 1)
    folded = workers - power

    def rank(virtual: int) -> int:
        return 2 * virtual + 1 if virtual < folded else virtual + folded

    rounds = []
    if folded:
        rounds.append(_round([(2 * i, 2 * i + 1) for i in range(folded)], 1.0, node_size))
    for distance in (1 << i for i in range(power.bit_length() - 1)):
        pairs = [(rank(v), rank(v ^ distance)) for v in range(power)]
        rounds.append(_round(pairs, 0.5 / distance, node_size))
    return [Round(2, r.outer, r.inner) for r in rounds]


def _round(transfers: Iterable[tuple[int, int]], share: float, node_size: int) -> Round:
    """All transfers (from, to) of ``share`` payloads at once."""
    if node_size == 1:
        return Round(1, share)
    leave: dict[int, int] = {}
    enter: dict[int, int] = {}
    inside = False
    for source, target in transfers:
        here, there = source // node_size, target // node_size
        if here == there:
            inside = True
        else:
            leave[here] = leave.get(here, 0) + 1
            enter[there] = enter.get(there, 0) + 1
    busiest = max([*leave.values(), *enter.values()], default=0)
    return Round(1, share * busiest if busiest else None, share if inside else None)


Calls = Mapping[str, tuple[float, float]]
"""Collective -> (calls, payload bytes of all of them)."""


def seconds_of(calls: Calls, costs: Costs) -> float:
    """Of some collectives, one after the other."""
    return sum(
        count * costs.seconds(collective, size / count)
        for collective, (count, size) in calls.items()
        if count
    )


@dataclass(frozen=True)
class Step:
    """A worker's training step: seconds of what it computes, and its collectives. t = compute + compress +
    communicate + decompress (GraVAC, section II)."""

    compute: float
    compress: float
    decompress: float
    calls: Calls

    def communicate(self, costs: Costs) -> float:
        """Seconds of all collectives."""
        return seconds_of(self.calls, costs)

    def seconds(self, costs: Costs) -> float:
        """Of the whole step, where nothing overlaps."""
        return self.compute + self.compress + self.communicate(costs) + self.decompress
