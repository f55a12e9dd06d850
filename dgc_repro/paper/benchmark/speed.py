"""Modelled time of a run on a network: what a worker computes, and the network model (network/cost.py).

CPU: compute, compress and decompress times are those of the runs themselves, simulated workers on one
thread. A run's times are taken relative to its own compute time, because other work may have slowed it, and
then multiplied by the workload's compute time, the median over its runs.
GPU: nothing is measured. The model has its full size; compute is its floating-point operations, compress
and decompress are launches, host syncs and bytes that were counted (bench/launches.py), payloads grow with
the number of parameters. A setting whose method was not counted, or is no plain gather, has no such time.

Letters: N = workers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import pandas as pd

from dgc_repro.network.cost import Costs
from dgc_repro.network.iteration import Calls, Part, Step
from dgc_repro.network.profile import Network
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
FULL_SIZE = {"resnet": "resnet18", "lstm": "lstm", "transformer": "transformer"}
"""The model of bench/launches.py that a workload's slim model stands for."""
COMPUTE = "forward and backward"
FED = "uniform + error feedback"
GATHER, SHARDED = "gather", "sharded"


def calls_at(run: Run, workers: int) -> Calls:
    """Calls and payload bytes of a step among so many workers, from the run's collectives among its own.

    A shard is 1/N of the whole, of which (N-1)/N goes to others; a tree has log2 N rounds.
    """
    own = int(run.setting("launch.workers"))
    steps = int(run.summary["steps"])
    way = run.setting("exchange.aggregation")
    found = {}
    for name, of in run.summary["collectives"].items():
        calls, size = of["calls"] / steps, of["payload_bytes"] / steps
        if way == SHARDED and name == "alltoall":
            size *= (1 - 1 / workers) / (1 - 1 / own)
        elif way == SHARDED and name == "allgather":
            size *= own / workers
        elif way not in (GATHER, SHARDED) and name == "alltoall":
            calls, size = (x * math.log2(workers) / math.log2(own) for x in (calls, size))
        found[name] = (calls, size)
    return found


@dataclass(frozen=True)
class Workload:
    """The runs of one workload. ``compute``: seconds of a worker's step on the CPU;
    ``counted``: milliseconds on the GPU by method of bench/launches.py, empty where none was counted;
    ``enlarged``: parameters of the full model over those of the slim one."""

    runs: Sequence[Run]
    counted: Mapping[str, float]
    enlarged: float

    @property
    def compute(self) -> float:
        return median(_mean(run, "compute") / _workers(run) for run in self.runs)

    def step(self, run: Run, device: str, workers: int) -> Step | None:
        """A worker's step among so many, None where the GPU's was not counted."""
        calls = calls_at(run, workers)
        if device == CPU:
            relative = self.compute / _mean(run, "compute")
            decompress = relative * _mean(run, "decompress")
            # A mean of payloads is simulated once for all workers, and a worker's own part for each of them.
            # The two were not timed apart: of what is gathered, this is an upper bound.
            if run.setting("exchange.aggregation") == GATHER and "allgather" in calls:
                decompress *= workers
            part = Part(0.0, relative * _mean(run, "compress"), decompress, calls, {})
            return Step(self.compute, [part], {})
        own = self.counted.get(self._method(run))
        if own is None or run.setting("exchange.aggregation") != GATHER:
            return None
        own /= run.setting("train.local_steps", 1)  # one exchange in so many steps
        part = Part(0.0, own / 1e3, 0.0, enlarged(run, calls, self.enlarged), {})
        return Step(self.counted[COMPUTE] / 1e3, [part], {})

    def _method(self, run: Run) -> str:
        """Of bench/launches.py: the longest one that the setting's name begins with, or its compressor, where
        the setting has the name of a policy."""
        names = [name for name in self.counted if f"{run.method}_".startswith(f"{name}_")]
        compressor = str(run.setting("compressor._target_")).split(".")[-2]
        name = max(names, key=len, default=compressor)
        return FED if name == "uniform" and "error_feedback" in run.setting("wrap") else name

    def seconds(self, run: Run, device: str, network: Network, workers: int = WORKERS) -> float:
        """Of a step; NaN where it was not counted."""
        step = self.step(run, device, workers)
        return math.nan if step is None else step.after_backward(Costs(network, workers))


def enlarged(run: Run, calls: Calls, parameters: float) -> Calls:
    """The calls of a model with so many times the parameters. What follows the width grows by the square
    root: vectors that a method leaves as they are, and factors of low rank."""
    is_low_rank = str(run.setting("compressor._target_")).endswith("PowerSGD")
    by_width = is_low_rank or set(calls) != {"allreduce"}
    return {
        name: (
            count,
            size * (math.sqrt(parameters) if by_width and name == "allreduce" else parameters),
        )
        for name, (count, size) in calls.items()
    }


def workload(name: str, runs: Sequence[Run], counts: pd.DataFrame | None) -> Workload:
    """``counts``: launches.csv, None where there is none."""
    own = [run for run in runs if run.model == name]
    counted: dict[str, float] = {}
    enlarged = math.nan
    if counts is not None and COMPUTE in set(counts["method"]):
        rows = counts[counts["model"] == FULL_SIZE[name]].dropna(subset=COUNTED_GPU)
        counted = dict(zip(rows["method"], rows[COUNTED_GPU], strict=True))
        full = float(rows.loc[rows["method"] == COMPUTE, "parameters"].iloc[0])
        enlarged = full / own[0].summary["parameters"]
    return Workload(own, counted, enlarged)


def steps_to_target(run: Run) -> float:
    """Steps until the run's target (``stopping.target``); inf: it was not reached, NaN: there is none."""
    found = run.summary.get("stopping")
    if not found:
        return math.nan
    return float(found["step"]) if found["reached"] else math.inf


def counts(results: Path) -> pd.DataFrame | None:
    """The published counts of launches, of any machine: they do not depend on it."""
    files = sorted(results.glob("bench/*/launches.csv"))
    return pd.read_csv(files[0]) if files else None


def _workers(run: Run) -> int:
    return int(run.setting("launch.workers"))


def _mean(run: Run, what: str) -> float:
    """Seconds of a step, all workers together, in the mean over epochs."""
    return float(run.epochs[f"time/{what}_ms"].mean()) / 1e3
