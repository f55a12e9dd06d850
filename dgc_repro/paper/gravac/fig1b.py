"""GraVAC's figure 1b: how much gradients vary between workers over the starting iterations."""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from dgc_repro.paper import panels
from dgc_repro.paper.artifact import Artifact, Shown, drawing
from dgc_repro.paper.claims import Check
from dgc_repro.paper.frame import Column, Quantity, Values, number, seeds
from dgc_repro.paper.gravac import DATA, FAMILIES, MILESTONES, MODELS, row_id
from dgc_repro.paper.gravac import shared as g
from dgc_repro.paper.page import Template
from dgc_repro.paper.records import Run

POOL = "training"
ROWS = {row_id(model, "dense_variance"): f"{family}, dense" for model, family in FAMILIES.items()}
STARTING = MILESTONES[0]
"""The starting iterations: those before the learning rate first decays. Ours."""
NUM_PARTS = 10
PARTS = {"first tenth": 0, "second tenth": 1, "last tenth but one": 8, "last tenth": 9}
EARLY = "change of the variance, first to second tenth"
LATE, SETTLING = (
    "change of the variance, last tenth but one to last",
    "early change less late change",
)
DRASTIC = 1.0
"""Drastically: by a factor of two, one doubling, either way. Ours."""


def variance(run: Run) -> tuple[g.Series, g.Series]:
    """The recorded starting iterations, and the variance of the gradient in each."""
    when, spread = g.column(run, "step"), g.column(run, "own_square") - g.column(run, "mean_square")
    known = (when <= g.at(run, STARTING)) & np.isfinite(spread)
    return when[known], spread[known]


def in_part(run: Run, part: str) -> float:
    """Mean variance in a tenth of the starting iterations."""
    when, spread = variance(run)
    return g.mean(spread[np.ceil(NUM_PARTS * when / g.at(run, STARTING)) == PARTS[part] + 1])


def _change(run: Run, before: str, after: str) -> float:
    """Doublings or halvings of the variance from one part to another."""
    a, b = in_part(run, before), in_part(run, after)
    return abs(math.log2(b / a)) if a > 0 and b > 0 else math.nan


early = partial(_change, before="first tenth", after="second tenth")
late = partial(_change, before="last tenth but one", after="last tenth")
QUANTITIES = {
    **{part: Quantity("", partial(in_part, part=part)) for part in PARTS},
    EARLY: Quantity("doublings", early),
    LATE: Quantity("doublings", late),
    SETTLING: Quantity("doublings", lambda run: early(run) - late(run)),
}
CLAIMS = tuple(
    Template.read(__file__).claim(
        name, Check(quantity, row, above=above), of=model, ours=name == "drastic", model=MODELS[model],
        starting=STARTING, steps=g.STEPS,
    )
    for model, row in zip(MODELS, ROWS, strict=True)
    for name, quantity, above in (("drastic", EARLY, DRASTIC), ("saturates", SETTLING, 0.0))
)  # fmt: skip


def _times(doublings: Values) -> str:
    return number([2**value for value in doublings], None, "x")


def _panels(shown: Shown) -> list[panels.Panel]:
    lines = [
        panels.lines([variance(run) for run in shown.runs if run.row == row], look.label, color=look.colour)
        for row, look in shown.looks.items()
    ]  # fmt: skip
    return [panels.panel("", *lines, x="iteration", y="variance over workers", log="y")]


page = Artifact(
    __file__,
    rows=ROWS,
    quantities=QUANTITIES,
    tables={
        "Variance of the gradient": [
            seeds(EARLY),
            *PARTS,
            Column("change: first two", EARLY, _times),
            Column("last two", LATE, _times),
        ]
    },
    claims=CLAIMS,
    data=DATA,
    figures={
        "fig1b": drawing("GraVAC, figure 1b: variance of the gradient", _panels, size=(7.2, 3.6))
    },
    said=lambda shown: {"thinning": g.thinning(shown.runs)},
    alike=("scale.name", "launch.kind", "launch.workers"),
    first="model",
)
