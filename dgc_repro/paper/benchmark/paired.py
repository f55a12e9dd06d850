"""Runs beside those of a reference with the same seed: quality, cost, bytes, and what the costs show.

The benchmark's pages compare with dense training. ``compare --against`` compares with any setting.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from dgc_repro.paper import frame
from dgc_repro.paper.benchmark import speed
from dgc_repro.paper.benchmark.classes import Judged, judge
from dgc_repro.paper.benchmark.workloads import Workload
from dgc_repro.paper.frame import Quantity, Relative
from dgc_repro.paper.records import Run

OF_WORKLOAD = (
    *("dataset", "model", "schedule"),
    *("train.epochs", "train.batch_size", "launch.workers"),
)
"""What the runs of a workload share: runs that differ in it compare more than their settings."""
QUALITY, COST, PAYLOAD = "test quality", "cost against dense", "payload a step"
LESS = "payload: times less than dense"


def with_reference(
    runs: Sequence[Run], row: str, workload: Workload
) -> tuple[list[Run], dict[int, Run]]:
    """Return the runs whose seed the reference ``row`` has, and the reference's runs by seed. Those of the
    reference that diverged are left out."""
    own = (run for run in runs if run.row == row and np.isfinite(workload.quality(run)))
    reference = {run.seed: run for run in own}
    return [run for run in runs if run.seed in reference], reference


def quantities(
    workload: Workload, row: str, reference: Mapping[int, Run]
) -> dict[str, Quantity | Relative]:
    """Return the quantities of `frame.measure` that compare runs with the reference ``row``."""
    return {
        QUALITY: Quantity("", workload.quality),
        COST: Quantity(workload.unit, lambda run: workload.cost(run, reference[run.seed])),
        PAYLOAD: Quantity("bytes", payload),
        LESS: Relative(PAYLOAD, row, inverse=True),
    }


def judged(found: pd.DataFrame, workload: Workload) -> Judged:
    """Judge the costs of a frame's rows, those that send the most bytes first."""
    own = found[found["quantity"] == PAYLOAD]
    rows = (
        own.groupby("row", sort=False)["value"]
        .mean()
        .sort_values(ascending=False, kind="stable")
        .index
    )
    return judge({row: frame.of(found, COST, row) for row in rows}, workload)


def payload(run: Run) -> float:
    """Return the payload bytes of one worker in an exchanged step."""
    return run.last("comm/payload_bytes") / max(1.0, speed.exchanged(run))
