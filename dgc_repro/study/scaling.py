"""How throughput scales with the cluster: dense allreduce of the gradient, modelled.

    t_step(N) = t_compute + sum over messages of t_allreduce(4 n, N);   efficiency = t_compute / t_step

Communication begins when compute has ended. A step sends all tensors in one allreduce, as a training run
does. For comparison, each network also has DDP's buckets and one allreduce per tensor.

Paper: GraVAC, figure 1a; scaling efficiency T_N / (N T_1), section II.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from dgc_repro.checked import Positive, checked
from dgc_repro.network.cost import Costs
from dgc_repro.network.profile import Network
from dgc_repro.network.units import Duration, seconds
from dgc_repro.study.allreduce import fills_nodes
from dgc_repro.study.given import TENSORS, Counts, Row, Tensors

PER_STEP, BUCKETS, PER_TENSOR = "per step", "buckets", "per tensor"
VALUE_BYTES = 4


@checked
class Scaling:
    """``compute_ms``: of one worker's forward and backward; ``bucket_mb``: of DDP's buckets (2^20 bytes);
    ``latencies``: of the outer link, in the place of the network's, for the sensitivity, at the most
    workers."""

    networks: Mapping[str, Network]
    workers: Counts
    compute_ms: Positive
    bucket_mb: Positive
    latencies: Sequence[Duration]
    takes = TENSORS

    def __post_init__(self) -> None:
        for name, network in self.networks.items():
            if not all(fills_nodes(network, count) for count in self.workers):
                raise ValueError(f"workers: that fill the nodes of {name}, got {self.workers}")

    def run(self, seed: int, tensors: Tensors) -> list[Row]:
        """The same rows for every seed."""
        each = [VALUE_BYTES * n for n in tensors.sizes]
        series: dict[str, Sequence[float]] = {
            PER_STEP: [sum(each)],
            BUCKETS: bucketed(each, self.bucket_mb * 2**20),
            PER_TENSOR: each,
        }
        rows: list[Row] = []
        for name, network in self.networks.items():
            for label, messages in series.items():
                rows += [self._row(name, label, network, messages, count) for count in self.workers]
            rows += [
                self._row(name, label, changed, series[label], max(self.workers))
                for label in (PER_STEP, PER_TENSOR)
                for latency in self.latencies
                if (changed := replace(network, latency=latency)) != network
            ]
        return rows

    def _row(
        self, name: str, series: str, network: Network, messages: Sequence[float], count: int
    ) -> Row:
        costs = Costs(network, count)
        sync_ms = 1e3 * sum(costs.seconds("allreduce", size) for size in messages)
        return {
            "network": name,
            "series": series,
            "latency_us": round(1e6 * seconds("latency", network.latency), 6),
            "workers": count,
            "messages": len(messages),
            "compute_ms": self.compute_ms,
            "sync_ms": sync_ms,
            "efficiency": self.compute_ms / (self.compute_ms + sync_ms),
        }


def bucketed(sizes: Sequence[float], limit: float) -> list[float]:
    """Bytes of buckets: tensors from the last to the first, a new bucket where one has reached the limit."""
    buckets = [0.0]
    for size in reversed(sizes):
        if buckets[-1] >= limit:
            buckets.append(0.0)
        buckets[-1] += size
    return buckets
