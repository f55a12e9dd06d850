"""Modelled time of a run on a network: what a worker computes, and the network model (network/cost.py).

Compute, compress and decompress times are those of the runs, simulated workers on one thread. A run's times
are taken relative to its own compute time, because other work may have slowed it, and then multiplied by the
workload's compute time, the median over its runs. Times of a step are means over the whole run.
Communication is hidden behind backward where DDP could hide it, for dense training as for every setting.

Letters: N = workers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pandas as pd

from dgc_repro.exchange.ledger import moved_by
from dgc_repro.network.cost import Calls, Costs, Step, seconds_of
from dgc_repro.network.profile import Network
from dgc_repro.paper.benchmark.workloads import DENSE
from dgc_repro.paper.records import Run

NETWORKS = {
    "100 Mbit/s": Network(rate="100mbit", latency="100us"),
    "1 Gbit/s": Network(rate="1gbit", latency="50us"),
    "10 Gbit/s": Network(rate="10gbit", latency="25us"),
    "100 Gbit/s": Network(rate="100gbit", latency="5us"),
}
"""Rates and latencies of conf/network/ethernet_*.yaml."""
WORKERS = 8
"""N of the modelled times, but on pages that compare numbers of workers: there it is the runs' own."""
COMPUTE = "forward and backward"
GATHER, SHARDED = "gather", "sharded"
BACKWARD = 2 / 3
"""Share of compute that communication can hide behind, as predict has it."""
PLANNED = ("Fixed", "Scheduled", "Warmup")
"""Policies whose rungs are known before the run."""
FLOAT_BYTES = 4
OTHER_OPTIMIZER = ("adam", "onebit_adam", "demo", "signsgd", "muon", "muloco", "dion")
"""Name prefixes of settings whose cost is not an effect of compression alone."""


@dataclass(frozen=True)
class Sizes:
    """Numbers of values of a model: all of them, those of its vectors (which most methods average as they
    are), and those of PowerSGD's factors of rank 1."""

    parameters: float
    vectors: float
    factors: float

    @classmethod
    def of(cls, shapes: Iterable[Sequence[int]]) -> Sizes:
        """``shapes``: of all parameters."""
        sizes = [(len(shape), math.prod(shape), *shape[:1]) for shape in shapes]
        return cls(
            sum(size for _, size, *_ in sizes),
            sum(size for dims, size, *_ in sizes if dims < 2),
            sum(rows[0] + size // rows[0] for dims, size, *rows in sizes if dims > 1),
        )


def calls_at(run: Run, workers: int) -> Calls:
    """Calls and payload bytes of an exchanged step among ``workers``; none where no step was exchanged.

    A shard is 1/N of the whole, of which (N-1)/N goes to others.
    """
    own, steps = workers_of(run), exchanged(run)
    way = run.setting("exchange.aggregation")
    found = {}
    for name, of in run.summary["collectives"].items() if steps else ():
        calls, size = of["calls"] / steps, of["payload_bytes"] / steps
        if way == SHARDED and name == "alltoall":
            size *= (1 - 1 / workers) / (1 - 1 / own)
        elif way == SHARDED and name == "allgather":
            size *= own / workers
        found[name] = (calls, size)
    return found


@dataclass(frozen=True)
class Workload:
    """The runs of one workload."""

    runs: Sequence[Run]

    @cached_property
    def compute(self) -> float:
        """Seconds of a worker's forward and backward: the median over the runs."""
        return median(_mean(run, "compute") / workers_of(run) for run in self.runs)

    @cached_property
    def vectors(self) -> float:
        """Bytes of the vectors, which are averaged in full precision even where a method compresses."""
        calls = [calls_at(run, workers_of(run)) for run in self.runs]
        both = [of["allreduce"][1] for of in calls if {"allgather", "allreduce"} <= of.keys()]
        return min(both, default=0.0)

    @cached_property
    def parameters(self) -> float:
        """Values that the model learns, which dense training sends; frozen ones are not among them."""
        calls = [calls_at(run, workers_of(run)) for run in self.runs if run.method == DENSE]
        return max(sum(size for _, size in of.values()) for of in calls) / FLOAT_BYTES

    def step(self, run: Run, workers: int) -> Step:
        """A worker's step among ``workers``."""
        relative, way = self.compute / _mean(run, "compute"), run.setting("exchange.aggregation")
        calls = calls_at(run, workers)
        decompress = relative * _mean(run, "decompress")
        # A mean of payloads is simulated once for all workers, and a worker's own part for each of them.
        # They were not timed separately, so this is an upper bound for gathered payloads.
        if way == GATHER and "allgather" in calls:
            decompress *= workers
        return Step(self.compute, relative * _mean(run, "compress"), decompress, calls)

    def seconds(self, run: Run, network: Network, steps: float, workers: int = WORKERS) -> float:
        """Of a step among ``workers``, with the bytes of the first ``steps`` in the mean. Where buckets can
        be exchanged during backward, as much communication as possible is hidden."""
        step, costs = self.step(run, workers), Costs(network, workers)
        share = share_of(run, steps)
        step = replace(step, calls={k: (n, share * size) for k, (n, size) in step.calls.items()})
        _, hidden = talked(run, step.calls, costs, step.compute)
        return step.seconds(costs) - hidden


def enlarged(run: Run, calls: Calls, parameters: float, vectors: float, full: Sizes) -> Calls:
    """The calls with a larger model. ``parameters``, ``vectors``: values that the run's model learns, and
    bytes of its vectors. What is sent of matrices grows with their number of values, vectors and factors of
    low rank grow as they do."""
    local_steps = run.setting("train.local_steps", 1)
    matrices = (full.parameters - full.vectors) / (parameters - vectors / FLOAT_BYTES)
    found = {}
    for name, (count, size) in calls.items():
        if name != "allreduce":
            found[name] = (count, matrices * size)
        elif str(run.setting("compressor._target_")).endswith("PowerSGD"):
            rank = run.setting("compressor.rank")
            found[name] = (count, FLOAT_BYTES * (full.vectors + rank * full.factors))
        else:
            rest = max(0.0, size - vectors / local_steps)
            found[name] = (count, matrices * rest + FLOAT_BYTES * full.vectors / local_steps)
    return found


def exchanged(run: Run) -> float:
    """Steps whose gradient was finite. With local steps all: a worker that leaves one out is in the round."""
    if run.setting("train.local_steps", 1) > 1:
        return float(run.summary["steps"])
    return float(run.summary["steps"] - run.epochs["train/skipped_steps"].sum())


def wire_a_step(run: Run, workers: int) -> float:
    """Bytes that a worker would send among so many in an exchanged step, in the mean over the run: the run's
    collectives with the ring's factors."""
    calls = calls_at(run, workers)
    return sum(moved_by(name, workers) * size for name, (_, size) in calls.items())


def wire_until(run: Run, workers: int, step: float) -> float:
    """Bytes that a worker would send among so many in the first steps: the share that these steps have of the
    run's own wire bytes, of all that it would send. Infinite or NaN if ``step`` is."""
    if not np.isfinite(step):
        return step
    ends, sent = (run.epochs[name].to_numpy(float) for name in ("step", "comm/wire_bytes"))
    share = np.interp(step, [0.0, *ends], [0.0, *sent]) / (sent[-1] or 1.0)
    return float(share * wire_a_step(run, workers) * exchanged(run))


def is_predicted(run: Run) -> bool:
    """Whether the time of a step can be predicted: the setting changes with the steps by no more than a plan,
    and has no optimizer of its own and no local steps."""
    return not (
        run.method.startswith(OTHER_OPTIMIZER)
        or run.setting("train.local_steps", 1) > 1
        or policy_of(run.config) not in PLANNED
    )


def talked(run: Run, calls: Calls, costs: Costs, compute: float) -> tuple[float, float]:
    """Seconds of a step's communication, and those of them that backward hides. ``compute``: of forward and
    backward."""
    communicate = seconds_of(calls, costs)
    return communicate, min(communicate, BACKWARD * compute) if can_overlap(run) else 0.0


def can_overlap(run: Run) -> bool:
    """Whether its buckets can be exchanged during backward: by layer, in each step, by a plan."""
    policy = policy_of(run.config)
    by_epoch = policy == "Stepwise" or (
        policy == "Accordion" and run.setting("policy.norm") != "own"
    )
    by_step = run.setting("train.local_steps", 1) == 1
    by_layer = run.setting("exchange.unit", "layer") == "layer"
    return (policy in PLANNED or by_epoch) and by_step and by_layer


def share_of(run: Run, steps: float) -> float:
    """Bytes of a step in the mean of the first ``steps``, over those in the mean of all."""
    ends, sent = (run.epochs[name].to_numpy(float) for name in ("step", "comm/payload_bytes"))
    until = np.interp(steps, [0, *ends], [0, *sent]) / steps
    return float(until / (sent[-1] / ends[-1])) if sent[-1] else 1.0


def policy_of(config: Mapping[str, Any]) -> str:
    """The class name of a run's policy."""
    return str(config["policy"]["_target_"]).rpartition(".")[2]


def counts(results: Path) -> pd.DataFrame | None:
    """The newest published counts of the settings. They do not depend on the machine."""
    tables = [pd.read_csv(file) for file in results.glob("bench/*/settings.csv")]
    return max(tables, key=lambda table: str(table["date"].iloc[0]), default=None)


def workers_of(run: Run) -> int:
    """The number of workers that trained."""
    return int(run.setting("launch.workers"))


def _mean(run: Run, what: str) -> float:
    """Seconds of a step, all workers together."""
    steps = np.diff(run.epochs["step"].to_numpy(float), prepend=0.0)
    return float(np.average(run.epochs[f"time/{what}_ms"], weights=steps)) / 1e3
