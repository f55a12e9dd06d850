"""Modelled time of a run on a network: what a worker computes, and the network model (network/cost.py).

CPU: compute, compress and decompress times are those of the runs themselves, simulated workers on one
thread. A run's times are taken relative to its own compute time, because other work may have slowed it, and
then multiplied by the workload's compute time, the median over its runs.
GPU: nothing is measured. The model has its full size. Compute is its floating-point operations; compress and
decompress are launches, host syncs and bytes, counted for each setting with `WORKERS` workers
(bench/launches.py). A setting that was not counted, or whose policy adapts, has no such time.
Communication is hidden behind backward where DDP could hide it, for dense training as for every setting.

Letters: N = workers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pandas as pd

from dgc_repro.network.cost import Calls, Costs, Step
from dgc_repro.network.profile import Network
from dgc_repro.paper.benchmark.workloads import workloads
from dgc_repro.paper.records import Run

NETWORKS = {
    "100 Mbit/s": Network(rate="100mbit", latency="100us"),
    "1 Gbit/s": Network(rate="1gbit", latency="50us"),
    "10 Gbit/s": Network(rate="10gbit", latency="25us"),
    "100 Gbit/s": Network(rate="100gbit", latency="5us"),
}
"""Rates and latencies of conf/network/ethernet_*.yaml."""
WORKERS = 8
"""N of the modelled times."""
CPU, GPU = "CPU", "V100"
COUNTED_GPU = "modelled_v100_ms"
COMPUTE = "forward and backward"
GATHER, SHARDED, TREE = "gather", "sharded", "gtopk"
BACKWARD = 2 / 3
"""Share of compute that communication can hide behind, as predict has it."""
PLANNED = ("Fixed", "Scheduled", "Warmup")
"""Policies whose rungs are known before the run."""
FLOAT_BYTES = 4


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


def calls_until(run: Run, steps: float, vectors: float) -> Calls:
    """Calls and payload bytes a step, in the mean over the first ``steps``. ``vectors``: bytes of a step that
    are averaged in full precision even where a method compresses.

    Epochs record the payload of all collectives together. Where a run has uncompressed and compressed steps,
    it is split into these two kinds. Within an epoch the payload is taken as even. Skipped steps send nothing
    and are not counted."""
    ends, payloads, skipped = (
        run.epochs[name].to_numpy(float)
        for name in ("step", "comm/payload_bytes", "train/skipped_steps")
    )
    if run.setting("train.local_steps", 1) > 1:
        skipped = np.zeros_like(skipped)  # of workers, whose round is exchanged all the same
    done = ends - skipped.cumsum()
    whole = done[-1]
    if not whole:
        return {}
    exchanged_steps = float(np.interp(steps, [0, *ends], [0, *done]))
    totals = {
        name: (of["calls"] / whole, of["payload_bytes"] / whole)
        for name, of in run.summary["collectives"].items()
    }
    sent = float(np.interp(steps, [0, *ends], [0, *payloads])) / max(1.0, exchanged_steps)
    gathered = sum(size for name, (_, size) in totals.items() if name != "allreduce")
    averaged = totals.get("allreduce", (0.0, 0.0))[1]
    if math.isclose(sent, gathered + averaged, rel_tol=1e-3) or not gathered:
        return totals
    dense = FLOAT_BYTES * run.summary["parameters"]
    vectors = min(vectors, averaged)
    before = uncompressed = (averaged - vectors) / (dense - vectors)  # share of the steps
    compressed = gathered / (1 - before)  # bytes of a compressed step, without vectors
    if before > 0:
        uncompressed = (sent - vectors - compressed) / (dense - vectors - compressed)
        uncompressed = min(max(uncompressed, 0.0), 1.0)
        share = (1 - uncompressed) * compressed / gathered
    else:
        share = (sent - vectors) / gathered
    more = (1 - uncompressed) / (1 - before)
    return {
        name: (calls, vectors + uncompressed * (dense - vectors))
        if name == "allreduce"
        else (more * calls, share * size)
        for name, (calls, size) in totals.items()
    }


def calls_at(run: Run, workers: int, steps: float | None = None, vectors: float = 0.0) -> Calls:
    """`calls_until`, rescaled from the run's number of workers to ``workers``. ``steps`` None: all steps.

    A shard is 1/N of the whole, of which (N-1)/N goes to others; a tree has log2 N rounds.
    """
    own = int(run.setting("launch.workers"))
    way = run.setting("exchange.aggregation")
    found = {}
    until = run.summary["steps"] if steps is None else steps
    for name, (calls, size) in calls_until(run, until, vectors).items():
        if way == SHARDED and name == "alltoall":
            size *= (1 - 1 / workers) / (1 - 1 / own)
        elif way == SHARDED and name == "allgather":
            size *= own / workers
        elif way == TREE and name == "alltoall":
            calls, size = (x * math.log2(workers) / math.log2(own) for x in (calls, size))
        found[name] = (calls, size)
    return found


@dataclass(frozen=True)
class Workload:
    """The runs of one workload. ``counted``: milliseconds of a step on the GPU by setting, empty where none
    was counted; ``full``: the model at full size, None where it was not counted; ``vectors``: bytes of the
    slim model's vectors."""

    runs: Sequence[Run]
    counted: Mapping[str, float]
    full: Sizes | None
    vectors: float

    @cached_property
    def compute(self) -> float:
        """Seconds of a worker's step on the CPU: the median over the runs."""
        return median(_mean(run, "compute") / _workers(run) for run in self.runs)

    def step(self, run: Run, device: str, workers: int, steps: float | None = None) -> Step | None:
        """A worker's step among so many, in the mean over the first ``steps``. None where the GPU's was not
        counted."""
        calls = calls_at(run, workers, steps, self.vectors)
        if device == CPU:
            relative = self.compute / _mean(run, "compute", steps)
            decompress = relative * _mean(run, "decompress", steps)
            # A mean of payloads is simulated once for all workers, and a worker's own part for each of them.
            # They were not timed separately, so this is an upper bound for gathered payloads.
            if run.setting("exchange.aggregation") == GATHER and "allgather" in calls:
                decompress *= workers
            elif run.setting("exchange.aggregation") == TREE:
                decompress *= math.log2(workers) / math.log2(_workers(run))
            compress = relative * _mean(run, "compress", steps)
            return Step(self.compute, compress, decompress, calls)
        own = self.counted.get(run.method)
        if own is None or self.full is None or policy_of(run.config) not in PLANNED:
            return None
        own /= run.setting("train.local_steps", 1)  # one exchange in so many steps
        calls = enlarged(run, calls, self.vectors, self.full)
        return Step(self.counted[COMPUTE] / 1e3, own / 1e3, 0.0, calls)

    def seconds(self, run: Run, device: str, network: Network, steps: float | None = None) -> float:
        """Of a step among `WORKERS`; NaN where it was not counted. Where the exchange of buckets can overlap
        with backward, as much communication as possible is hidden."""
        step = self.step(run, device, WORKERS, steps)
        if step is None:
            return math.nan
        costs = Costs(network, WORKERS)
        hidden = min(step.communicate(costs), BACKWARD * step.compute) if can_overlap(run) else 0.0
        return step.seconds(costs) - hidden


def enlarged(run: Run, calls: Calls, vectors: float, full: Sizes) -> Calls:
    """The calls with a larger model. ``vectors``: bytes of the run's own. What is sent of matrices grows with
    their number of values, vectors and factors of low rank grow as they do."""
    local_steps = run.setting("train.local_steps", 1)
    matrices = (full.parameters - full.vectors) / (
        run.summary["parameters"] - vectors / FLOAT_BYTES
    )
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


def workload(name: str, runs: Sequence[Run], counts: pd.DataFrame | None) -> Workload:
    """``counts``: settings.csv of the bench, None where there is none."""
    own = [run for run in runs if run.model == name]
    averaged = [
        of["allreduce"]["payload_bytes"] / steps
        for run in own
        if {"allgather", "allreduce"} <= (of := run.summary["collectives"]).keys()
        and (steps := exchanged(run))
    ]
    counted: dict[str, float] = {}
    full = None
    full_size = workloads()[name].full_size
    if counts is not None and full_size:
        rows = counts[counts["model"] == full_size].set_index("method")
        counted = dict(rows[COUNTED_GPU].dropna())
        full = Sizes(*rows.loc[COMPUTE, ["parameters", "vectors", "factors"]].astype(float))
    return Workload(own, counted, full, min(averaged, default=0.0))


def exchanged(run: Run) -> float:
    """Steps whose gradient was finite. With local steps all: a worker that leaves one out is in the round."""
    if run.setting("train.local_steps", 1) > 1:
        return float(run.summary["steps"])
    return float(run.summary["steps"] - run.epochs["train/skipped_steps"].sum())


def can_overlap(run: Run) -> bool:
    """Whether its buckets can be exchanged during backward: by layer, in each step, by a plan."""
    policy = policy_of(run.config)
    by_epoch = policy == "Stepwise" or (
        policy == "Accordion" and run.setting("policy.norm") != "own"
    )
    is_planned = policy in PLANNED or by_epoch
    by_step = run.setting("train.local_steps", 1) == 1
    return is_planned and by_step and run.setting("exchange.unit", "layer") == "layer"


def policy_of(config: Mapping[str, Any]) -> str:
    """The class name of a run's policy."""
    return str(config["policy"]["_target_"]).rpartition(".")[2]


def steps_to_target(run: Run) -> float:
    """Steps until the run's target (``stopping.target``); inf: it was not reached, NaN: there is none."""
    found = run.summary.get("stopping")
    if not found:
        return math.nan
    return float(found["step"]) if found["reached"] else math.inf


def counts(results: Path) -> pd.DataFrame | None:
    """The newest published counts of the settings. They do not depend on the machine."""
    tables = [pd.read_csv(file) for file in results.glob("bench/*/settings.csv")]
    return max(tables, key=lambda table: str(table["date"].iloc[0]), default=None)


def _workers(run: Run) -> int:
    return int(run.setting("launch.workers"))


def _mean(run: Run, what: str, steps: float | None = None) -> float:
    """Seconds of a step, all workers together, in the mean over the first ``steps``."""
    ends = run.epochs["step"].to_numpy(float)
    begins = np.concatenate([[0.0], ends[:-1]])
    until = ends[-1] if steps is None else steps
    weights = np.clip(until, begins, ends) - begins
    return float(np.average(run.epochs[f"time/{what}_ms"], weights=weights)) / 1e3
