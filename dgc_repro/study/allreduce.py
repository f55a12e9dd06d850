"""Ring against tree against recursive halving-doubling allreduce: seconds by message size and workers.

Nothing is measured: the costs are those of network/cost.py on named networks. The crossover with
another algorithm is the size from which on the ring is at least as fast.

Paper: EECE695D, distributed training part 2 (lecture), ring and recursive halving-doubling cost.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from scipy import optimize

from dgc_repro.checked import checked
from dgc_repro.network.cost import Costs
from dgc_repro.network.profile import ALLREDUCES, RING, Network
from dgc_repro.study.given import NOTHING, Counts, FromTwo, Row

COST, CROSSOVER = "cost", "crossover"
LARGEST = 40  # log2 of bytes; a ring that is slower up to here is slower at any size


@checked
class Allreduce:
    """``networks``: by name; ``workers``: the numbers N (where nodes are shared, those that fill them);
    ``sizes``: of the message, bytes."""

    networks: Mapping[str, Network]
    workers: FromTwo
    sizes: Counts
    takes = NOTHING

    def run(self, seed: int) -> list[Row]:
        """The same rows for every seed."""
        rows: list[Row] = []
        for name, network in self.networks.items():
            for count in self.workers:
                if fills_nodes(network, count):
                    place: Row = {"network": name, "workers": count}
                    costs = {a: Costs(network, count, allreduce=a) for a in ALLREDUCES}
                    rows += [place | row for row in self._rows(costs)]
        return rows

    def _rows(self, costs: Mapping[str, Costs]) -> Iterator[Row]:
        for size in self.sizes:
            for algorithm, own in costs.items():
                yield _row(COST, algorithm, size, _seconds(own, size))
        ring = costs[RING]
        for other in [algorithm for algorithm in costs if algorithm != RING]:
            where = crossover(ring, costs[other])
            seconds = _seconds(ring, where) if math.isfinite(where) else math.inf
            yield _row(CROSSOVER, other, where, seconds)


def _row(what: str, algorithm: str, size: float, seconds: float) -> Row:
    return {"what": what, "algorithm": algorithm, "bytes": size, "seconds": seconds}


def fills_nodes(network: Network, workers: int) -> bool:
    """Whether so many workers fill the network's nodes, or fit in one."""
    size = network.workers_per_node
    return size is None or workers <= size or workers % size == 0


def crossover(ring: Costs, other: Costs) -> float:
    """Bytes from which on the ring is at least as fast: 0 if at any size, inf if at none."""

    def behind(exponent: float) -> float:
        return _seconds(ring, 2**exponent) - _seconds(other, 2**exponent)

    if behind(0) <= 0:
        return 0.0
    return math.inf if behind(LARGEST) > 0 else float(2 ** optimize.brentq(behind, 0, LARGEST))


def _seconds(costs: Costs, size: float) -> float:
    return costs.seconds("allreduce", size)
