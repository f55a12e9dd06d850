"""Runs beside those of a reference: quality, cost, bytes, and what the costs show.

The benchmark's pages compare with dense training. ``compare --against`` compares with any setting.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dgc_repro.paper.benchmark import speed
from dgc_repro.paper.benchmark.classes import Judged, below_mean, judge, paired
from dgc_repro.paper.benchmark.workloads import Workload
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
