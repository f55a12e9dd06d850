"""The time of a training step on a network, from what was measured of its parts.

t = compute + compress + communicate + decompress (GraVAC, section II), and with overlap: the processor
computes and compresses one thing at a time, the link carries one collective at a time, and only the
link works beside the processor. What a step's parts do is measured for a few numbers of workers;
`Growth` says what they do for others.

Letters: N = workers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dgc_repro.network.cost import Costs
from dgc_repro.network.fit import line

Calls = Mapping[str, tuple[float, float]]
"""Collective -> (calls, payload bytes of all of them)."""

CONSTANT, LINEAR, TO_OWNERS, OF_OWNERS = "constant", "linear", "to_owners", "of_owners"
SHARES: Mapping[str, Callable[[float], float]] = {
    LINEAR: lambda n: 1.0,  # N payloads are decompressed
    TO_OWNERS: lambda n: 1 - 1 / n,  # a sharded payload without the shard that is kept
    OF_OWNERS: lambda n: 1 / n,  # the average of one shard
}


@dataclass(frozen=True)
class Growth:
    """A number that was measured for some N: that number there, elsewhere its share of `SHARES` times
    a + b N, with a and b at least 0 (network/fit.py). b is the headers, one for each shard. With `CONSTANT`,
    or a single N, b is 0."""

    measured: Mapping[int, float]
    basis: str

    def at(self, workers: int) -> float:
        """The number for so many workers."""
        if workers in self.measured:
            return self.measured[workers]
        if self.basis == CONSTANT:
            return float(np.median(list(self.measured.values())))
        share = SHARES[self.basis]
        wholes = {n: value / share(n) for n, value in self.measured.items() if value > 0}
        if not wholes:
            return 0.0
        a, b = (
            line(list(wholes), list(wholes.values()))
            if len(wholes) > 1
            else (*wholes.values(), 0.0)
        )
        return share(workers) * (a + b * workers)


@dataclass(frozen=True)
class Part:
    """Tensors that are exchanged together. ``ready``: seconds from the step's begin until their gradients
    are there; ``first``: collectives that begin when they are compressed; ``later``: those that follow."""

    ready: float
    compress: float
    decompress: float
    first: Calls
    later: Calls


@dataclass(frozen=True)
class Step:
    """One worker's step: seconds of compute (forward, backward, optimizer), and its parts, in the order
    in which their gradients come; ``signals``: small collectives that are in no part."""

    compute: float
    parts: Sequence[Part]
    signals: Calls

    @property
    def compress(self) -> float:
        return sum(part.compress for part in self.parts)

    @property
    def decompress(self) -> float:
        return sum(part.decompress for part in self.parts)

    def communicate(self, costs: Costs) -> float:
        """Seconds of all collectives, one after the other."""
        asked = [self.signals, *(c for part in self.parts for c in (part.first, part.later))]
        return sum(seconds(calls, costs) for calls in asked)

    def after_backward(self, costs: Costs) -> float:
        """Nothing overlaps."""
        return self.compute + self.compress + self.communicate(costs) + self.decompress

    def per_bucket(self, costs: Costs) -> float:
        """Each part goes out when it is compressed, while backward goes on; answers are decompressed when
        all parts are out, what they ask afterwards is served one part after another."""
        processor = link = done = 0.0
        landed = []
        for part in self.parts:
            processor += part.ready - done + part.compress
            done = part.ready
            link = max(link, processor) + seconds(part.first, costs)
            landed.append(link)
        processor += seconds(self.signals, costs)
        for part, came in zip(self.parts, landed, strict=True):
            processor = max(processor, came) + seconds(part.later, costs) + part.decompress
        return processor + self.compute - done


def seconds(calls: Calls, costs: Costs) -> float:
    """Of some collectives, one after the other: each is a constant and its bytes."""
    total = 0.0
    for collective, (count, size) in calls.items():
        if count:
            each = size / count
            total += count * costs.seconds(collective, each)
    return total


def break_even_rate(
    gain: Callable[[float], float], lowest: float = 1e5, highest: float = 1e13
) -> float | None:
    """The rate (bits a second) at which ``gain`` (plain time less the method's) becomes 0, from positive
    below it. inf: it pays at every rate looked at; None: at none."""
    if gain(lowest) <= 0:
        return None
    if gain(highest) > 0:
        return math.inf
    low, high = lowest, highest
    while high / low > 1.001:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if gain(middle) > 0 else (low, middle)
    return math.sqrt(low * high)
