"""Throughput and communication speedup by compression factor: layerwise DGC, communication modelled.

    t_step(c) = t_compute + t_compress(c) + t_allgather(sum over tensors of 8 k, N),  k = max(1, round(n/c))

A step sends the entries of all tensors in one allgather, as a training run does. An entry is 4 bytes of
value and 4 of place; decompressing is left out. What compressing takes is one of
three series: nothing, what the paper's own table says of its GPU, and measured on this machine's CPU.

Paper: GraVAC, figure 3; t_iter(c) of section II.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated

import numpy as np

from dgc_repro.checked import Count, Positive, checked, within
from dgc_repro.network.cost import Costs
from dgc_repro.network.profile import Network
from dgc_repro.network.units import Duration, seconds
from dgc_repro.study.allreduce import fills_nodes
from dgc_repro.study.given import TIMES, Counts, Row, Times

NONE, STATED, MEASURED = "none", "stated", "measured"
ENTRY_BYTES = 8


@checked
class Saturation:
    """``workers``: N; ``factors``: c, the first is what all is normalized by; ``compute_ms``: of one
    worker's forward and backward; ``stated_ms``: of compressing, at every factor; ``latencies``: of the
    outer link, in the place of the network's, for the sensitivity. ``steps``: of training before the
    gradient that is compressed is taken; ``repeats``: of compressing it."""

    networks: Mapping[str, Network]
    workers: Count
    factors: Counts
    compute_ms: Positive
    stated_ms: Annotated[float, within(0)]
    latencies: Sequence[Duration]
    steps: Count
    repeats: Count
    takes = TIMES

    def __post_init__(self) -> None:
        for name, network in self.networks.items():
            if not fills_nodes(network, self.workers):
                raise ValueError(f"workers: that fill the nodes of {name}, got {self.workers}")

    def run(self, seed: int, times: Times) -> list[Row]:
        """The same rows for every seed and the same times."""
        quartiles = {
            factor: [float(q) for q in np.quantile(times.compress_ms[factor], (0.25, 0.5, 0.75))]
            for factor in self.factors
        }
        series: dict[str, Mapping[int, Sequence[float]]] = {
            NONE: dict.fromkeys(self.factors, (0.0, 0.0, 0.0)),
            STATED: dict.fromkeys(self.factors, (self.stated_ms,) * 3),
            MEASURED: quartiles,
        }
        rows: list[Row] = []
        for name, network in self.networks.items():
            for label, compress in series.items():
                rows += self._rows(name, label, network, times, compress)
            for latency in self.latencies:
                changed = replace(network, latency=latency)
                if changed != network:
                    rows += self._rows(name, STATED, changed, times, series[STATED])
        return rows

    def _rows(
        self,
        name: str,
        series: str,
        network: Network,
        times: Times,
        compress: Mapping[int, Sequence[float]],
    ) -> Iterator[Row]:
        costs = Costs(network, self.workers)
        sync_ms = {c: 1e3 * sync_seconds(costs, times.tensors.sizes, c) for c in self.factors}
        first = self.factors[0]
        step_ms = {c: self.compute_ms + compress[c][1] + sync_ms[c] for c in self.factors}
        for c in self.factors:
            low, middle, high = compress[c]
            yield {
                "network": name,
                "compress": series,
                "latency_us": round(1e6 * seconds("latency", network.latency), 6),
                "factor": c,
                "compress_ms": middle,
                "compress_low": low,
                "compress_high": high,
                "sync_ms": sync_ms[c],
                "step_ms": step_ms[c],
                "throughput": step_ms[first] / step_ms[c],
                "communication": sync_ms[first] / sync_ms[c],
            }


def sync_seconds(costs: Costs, sizes: Sequence[int], factor: float) -> float:
    """One allgather of the k entries of every tensor."""
    kept = (min(n, max(1, round(n / factor))) for n in sizes)
    return costs.seconds("allgather", ENTRY_BYTES * sum(kept))
