"""Runs beside those of a reference: quality, cost, bytes, and what the costs show.

The benchmark's pages compare with dense training. ``compare --against`` compares with any setting.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np
import pandas as pd

from dgc_repro.paper import frame
from dgc_repro.paper.benchmark import speed
from dgc_repro.paper.benchmark.classes import Judged, below_mean, judge, paired
from dgc_repro.paper.benchmark.speed import NETWORKS, wire_a_step, wire_until
from dgc_repro.paper.benchmark.workloads import DENSE, Workload, together, workloads
from dgc_repro.paper.frame import Quantity, Relative
from dgc_repro.paper.records import Run
from dgc_repro.paper.statistics import Sample

OF_WORKLOAD = (
    *("dataset", "model", "schedule"),
    *("train.epochs", "train.steps_share", "train.batch_size", "launch.workers"),
)
"""What the runs of a workload share: runs that differ in it compare more than their settings."""
QUALITY, COST, PAYLOAD = "test quality", "cost against dense", "payload a step"
LESS = "payload: times less than dense"
LOSS, TRAINING_LOSS, STEPS = "loss", "training loss", "steps to the target"
WIRE = {workers: f"wire a step, N = {workers}" for workers in (8, 32, 128)}
OWN_WIRE = "wire a step, N of the runs"
SENT = f"wire to the target, N = {speed.WORKERS}"
"""Infinite where the target is not reached."""
TARGET = "modelled speedup to the target, slim model on a CPU"
"""Its ``setting`` in the frame is the network."""


class Reference:
    """The runs of the row that others are compared with, those that diverged left out."""

    def __init__(self, runs: Sequence[Run], row: str, workload: Workload) -> None:
        self.row, self.workload = row, workload
        own = (run for run in runs if run.row == row)
        self.by_seed = {run.seed: run for run in own if np.isfinite(workload.quality(run))}
        self.samples = [self.sample(run) for run in self.by_seed.values()]

    def sample(self, run: Run) -> Sample:
        """The quality by which a run is judged."""
        return Sample(self.workload.judged(run), run.seed, run.processor)

    def can_compare(self, run: Run) -> bool:
        """Whether the reference has trained on the run's kind of processor; for a metric that is compared by
        seed, with the run's seed."""
        if run.row == self.row:
            return run.seed in self.by_seed
        if self.workload.is_difference:
            return any(one.block == run.processor for one in self.samples)
        return bool(paired([self.sample(run)], self.samples))

    def cost(self, run: Run) -> float:
        """By how much a run is worse: points of accuracy against the mean of the reference on the same kind
        of processor, or percent against the reference's run of the same seed there. NaN without one."""
        own = self.sample(run)
        if not self.workload.is_difference:
            pairs = paired([own], self.samples)
            return 100 * (pairs[0][0] / pairs[0][1] - 1) if pairs else math.nan
        return below_mean(own, self.samples)


def with_reference(
    runs: Sequence[Run], row: str, workload: Workload
) -> tuple[list[Run], Reference]:
    """Return the runs that can be compared with the reference ``row``, and the reference."""
    reference = Reference(runs, row, workload)
    return [run for run in runs if reference.can_compare(run)], reference


def quantities(reference: Reference) -> dict[str, Quantity | Relative]:
    """Return the quantities of `frame.measure` that compare runs with the reference."""
    workload = reference.workload
    return {
        QUALITY: Quantity("", workload.quality),
        COST: Quantity(workload.unit, reference.cost),
        PAYLOAD: Quantity("bytes", payload),
        LESS: Relative(PAYLOAD, reference.row, inverse=True),
    }


def judged(
    runs: Sequence[Run], reference: Reference, families: Sequence[Sequence[str]] | None = None
) -> Judged:
    """Judge the rows of runs, those that send the most bytes first. ``families``: of rows."""
    sent: dict[str, list[float]] = {}
    samples: dict[str, list[Sample]] = {}
    for run in runs:
        sent.setdefault(run.row, []).append(payload(run))
        samples.setdefault(run.row, []).append(reference.sample(run))
    ordered = sorted(samples, key=lambda row: -float(np.mean(sent[row])))
    return judge(
        {row: samples[row] for row in ordered}, reference.row, reference.workload, families
    )


def payload(run: Run) -> float:
    """Return the payload bytes of one worker in an exchanged step."""
    return run.last("comm/payload_bytes") / max(1.0, speed.exchanged(run))


def numbers(runs: Sequence[Run], workers: int | None = speed.WORKERS) -> pd.DataFrame:
    """The frame of the benchmark: quality, cost against dense, bytes and modelled speedups of each row
    ``<workload>.<setting>``. Runs without dense training to compare with are left out. ``workers``:
    among how many times are modelled; None: among those that trained."""
    return frame.join(*(_numbers_of(runs, name, workers) for name in workloads()))


def _numbers_of(runs: Sequence[Run], name: str, workers: int | None) -> pd.DataFrame:
    """The frame of one workload."""
    own, reference = _with_dense(runs, name)
    work, steps = speed.Workload(own), reference.workload.steps_to_target
    fast = {seed: run for seed, run in reference.by_seed.items() if np.isfinite(steps(run))}
    late = {run.row for run in own if run.seed in fast and not np.isfinite(steps(run))}

    def speedup(run: Run, network: str) -> float:
        """Seconds of dense training to the target over the run's; NaN where a seed misses it."""
        if run.seed not in fast or run.row in late:
            return np.nan
        needed = [
            number * work.seconds(one, NETWORKS[network], number, workers or speed.workers_of(run))
            for one in (fast[run.seed], run)
            for number in [steps(one)]
        ]
        return needed[0] / needed[1]

    by_accuracy = reference.workload.is_difference
    measured: dict[str, Quantity | Relative] = {
        **quantities(reference),
        **({LOSS: Quantity("nats", partial(together, metric="loss"))} if by_accuracy else {}),
        TRAINING_LOSS: Quantity("nats", lambda run: run.last("train/loss")),
        STEPS: Quantity("steps", steps),
        SENT: Quantity("bytes", lambda run: wire_until(run, speed.WORKERS, steps(run))),
        **{title: Quantity("bytes", partial(wire_a_step, workers=n)) for n, title in WIRE.items()},
        OWN_WIRE: Quantity("bytes", lambda run: wire_a_step(run, speed.workers_of(run))),
    }
    modelled = [
        frame.measure(
            own, {TARGET: Quantity("x", partial(speedup, network=network), "modelled")}
        ).assign(setting=network)
        for network in NETWORKS
    ]
    return frame.join(frame.measure(own, measured), *modelled)


def judged_of(runs: Sequence[Run], name: str) -> Judged:
    """What the costs of a workload's settings show: those that send the most bytes first."""
    own, dense = _with_dense(runs, name)
    families = [[f"{name}.{setting}" for setting in one.rows] for one in dense.workload.families]
    return judged(own, dense, families or None)


def _with_dense(runs: Sequence[Run], name: str) -> tuple[list[Run], Reference]:
    own = [run for run in runs if run.model == name]
    return with_reference(own, f"{name}.{DENSE}", workloads()[name])
