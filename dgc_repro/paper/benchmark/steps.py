"""Dense training with fewer steps: what each share of the steps costs, the yardstick of equivalent steps."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from dgc_repro.errors import UserError
from dgc_repro.paper import frame
from dgc_repro.paper.benchmark.workloads import workloads
from dgc_repro.paper.frame import Column, Quantity, seeds
from dgc_repro.paper.page import Page, Section, made
from dgc_repro.paper.records import Run, require_alike

ALIKE = ("scale.name", "train.on_nonfinite")
STEPS, ACCURACY, LOSS, FIT = "steps", "test accuracy", "test loss", "loss on training data"


def page(runs: Sequence[Run], scale: str) -> Page:
    """The page of the finished runs of one scale. Raises UserError if they are not alike."""
    require_alike(runs, ALIKE)
    present = [name for name in workloads() if any(run.model == name for run in runs)]
    if not present:
        raise UserError(
            "experiment.row: dense training of a workload, got no finished run of it; run "
            "`python -m dgc_repro reproduce benchmark/steps`"
        )
    found = frame.measure(
        runs,
        {
            STEPS: Quantity("steps", lambda run: float(run.summary["steps"])),
            ACCURACY: Quantity("%", lambda run: run.last("test/accuracy_percent")),
            LOSS: Quantity("nats", lambda run: run.last("test/loss")),
            FIT: Quantity("nats", lambda run: run.last("fit/loss")),
        },
    )
    tables = []
    for name in present:
        own = {
            run.row: float(run.setting("train.steps_share", 1.0))
            for run in runs
            if run.model == name
        }
        rows = {row: f"{own[row]:g}" for row in sorted(own, key=lambda row: -own[row])}
        columns = [
            seeds(LOSS),
            Column(STEPS, STEPS, 0),
            Column("test accuracy, %", ACCURACY, 2),
            Column("test loss, nats", LOSS, 4),
            Column("loss on training data, nats", FIT, 4),
        ]
        table: pd.DataFrame = frame.pivot(found, rows, columns, "share of the steps")
        tables.append(Section(workloads()[name].title, table))
    return made(__file__, scale, runs, found, tables, head=[("model", "see the titles")])
