"""Dense training with fewer steps: what each share of the steps costs, the yardstick of equivalent steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from dgc_repro.errors import UserError
from dgc_repro.paper import frame, panels, plot
from dgc_repro.paper.artifact import Artifact, described
from dgc_repro.paper.benchmark import ALIKE
from dgc_repro.paper.benchmark.equivalent import Calibration, calibrations, loss_of
from dgc_repro.paper.benchmark.workloads import workloads
from dgc_repro.paper.frame import Column, Quantity, seeds
from dgc_repro.paper.page import Drawing, Page
from dgc_repro.paper.records import Run

ALSO = ("images", "text")
"""``experiment.artifact`` of the runs, which benchmark/methods has too."""
STEPS, ACCURACY, LOSS, FIT = "steps", "test accuracy", "loss", "loss on training data"


def page(runs: Sequence[Run], scale: str) -> Page:
    """The page of the finished runs of one scale. Raises UserError if they are not alike."""
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
            LOSS: Quantity("nats", loss_of),
            FIT: Quantity(
                "nats", lambda run: run.last("fit/loss") if "fit/loss" in run.epochs else math.nan
            ),
        },
    )
    columns = [
        seeds(LOSS),
        Column(STEPS, STEPS, 0),
        Column("test accuracy, %", ACCURACY, 2),
        Column("loss, nats", LOSS, 4),
        Column("loss on training data, nats", FIT, 4),
    ]
    tables: dict[str, pd.DataFrame] = {}
    for name in present:
        shares = {
            run.row: float(run.setting("train.steps_share", 1.0))
            for run in runs
            if run.model == name
        }
        rows = {row: f"{shares[row]:g}" for row in sorted(shares, key=lambda row: -shares[row])}
        tables[workloads()[name].title] = frame.pivot(found, rows, columns, "share of the steps")
    fitted = calibrations(runs, {name: workloads()[name] for name in present})
    curves = "\n".join(map(_curve, fitted.values())) or "- too few runs for a curve"
    made = Artifact(
        __file__,
        rows={},
        numbers=lambda _: found,
        tables={"What a saved step costs": (), **tables},
        head=lambda _: [("model", "see the titles")],
        said=lambda _: {"curves": curves},
        figures={"steps": _figure(fitted, runs, scale)} if fitted else {},
        alike=ALIKE,
    )
    return made(runs, scale)


def _curve(calibration: Calibration) -> str:
    """A calibration in a sentence."""
    a, b = calibration.curve
    tenth = -math.log(0.9)
    return (
        f"- {calibration.workload.title}: {a * tenth + b * tenth**2:.4f} nats for a tenth of the steps; the "
        f"curve is {a:.4f} ln(1/f) {'+' if b >= 0 else '-'} {abs(b):.4f} ln(1/f)^2 with a residual standard "
        f"deviation of {calibration.sd:.4f} nats and {calibration.df} degrees of freedom."
    )


def _figure(fitted: Mapping[str, Calibration], runs: Sequence[Run], scale: str) -> Drawing:
    """Describe the figure of the runs and their curves: a panel a workload."""

    def parts() -> plot.Panels:
        return [
            panels.panel(
                one.workload.title,
                partial(_draw, one=one),
                x="share of the steps that is saved (%)",
                y="loss above whole training (nats)",
            )
            for one in fitted.values()
        ]

    note = (
        "Points are runs, each less what the fit gives whole training on the run's kind of processor. "
        "Lines are the quadratics."
    )
    title = "What dense training loses with fewer steps"
    return described(title, note, runs, scale, parts, size=(4.2, 3.2), legend=0)


def _draw(axes: Axes, one: Calibration) -> None:
    saved = 100 * (1 - np.array(one.fractions))
    axes.plot(saved, one.above, "o", color=plot.BLUE, markersize=4, alpha=0.7)
    share = np.linspace(0, one.most, 200)
    at, (a, b) = -np.log(1 - share / 100), one.curve
    axes.plot(share, a * at + b * at**2, color=plot.BLACK)
