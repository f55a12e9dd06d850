"""GraVAC's figure 1b: how much gradients vary between workers over the starting iterations."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import numpy as np

from dgc_repro.paper import panels, plot
from dgc_repro.paper.artifact import Shown, drawing
from dgc_repro.paper.claims import Check, Claim
from dgc_repro.paper.frame import Column, Quantity, Values, measure, number, seeds
from dgc_repro.paper.gravac import MODELS, row_id
from dgc_repro.paper.gravac import training as g
from dgc_repro.paper.page import Template
from dgc_repro.paper.records import Run

POOL = "training"
STARTING = 9_000
"""The starting iterations: those before the learning rate first decays. Ours."""
NUM_PARTS = 10
EARLY = "change of the variance, first to second tenth"
LATE = "change of the variance, last tenth but one to last"
SETTLING = "early change less late change"
DRASTIC = 1.0
"""Drastically: by a factor of two, one doubling, either way. Ours."""
WORDS = Template.read(__file__)


def variance(run: Run) -> tuple[g.Series, g.Series]:
    """The recorded starting iterations, and the variance of the gradient in each."""
    when, spread = g.column(run, "step"), g.column(run, "own_square") - g.column(run, "mean_square")
    known = (when <= g.at(run, STARTING)) & np.isfinite(spread)
    return when[known], spread[known]


def in_part(run: Run, part: int) -> float:
    """Mean variance in a tenth of the starting iterations, from 1."""
    when, spread = variance(run)
    return g.mean(spread[np.ceil(NUM_PARTS * when / g.at(run, STARTING)) == part])


def change(run: Run, part: int) -> float:
    """Doublings or halvings of the variance from a tenth to the next."""
    a, b = in_part(run, part), in_part(run, part + 1)
    return abs(math.log2(b / a)) if a > 0 and b > 0 else math.nan


PARTS = {"first tenth": 1, "second tenth": 2, "last tenth but one": 9, "last tenth": 10}
QUANTITIES = {name: Quantity("", partial(in_part, part=part)) for name, part in PARTS.items()} | {
    EARLY: Quantity("doublings", partial(change, part=1)),
    LATE: Quantity("doublings", partial(change, part=9)),
    SETTLING: Quantity("doublings", lambda run: change(run, 1) - change(run, 9)),
}


def claims(one: g.Course) -> Iterator[Claim]:
    """The claims on a model."""
    row, model = row_id(one.model, "dense_variance"), MODELS[one.model]
    say = partial(WORDS.claim, of=one.model, model=model, starting=STARTING, steps=g.STEPS)
    yield say("drastic", Check(EARLY, row, above=DRASTIC), ours=True)
    slows = Check(SETTLING, row), Check(LATE, row, above=-math.inf, below=DRASTIC)
    yield say("saturates", *slows, ours=True)


def _times(doublings: Values) -> str:
    return number([2**value for value in doublings], None, "x")


def _panels(shown: Shown) -> list[panels.Panel]:
    lines = [
        panels.lines(
            [variance(run) for run in shown.runs if run.row == row], look.label, color=colour
        )
        for (row, look), colour in zip(shown.looks.items(), plot.CYCLE, strict=False)
    ]
    return [panels.panel("", *lines, x="iteration", y="variance over workers", log="y")]


page = g.page(
    __file__,
    ["dense_variance"],
    claims,
    numbers=lambda one: measure(one.runs, QUANTITIES),
    quantities=QUANTITIES,
    tables={
        "Variance of the gradient": (
            *(seeds(EARLY), *PARTS),
            Column("change: first two", EARLY, _times),
            Column("last two", LATE, _times),
        )
    },
    figures={
        "fig1b": drawing(
            "GraVAC, figure 1b: variance of the gradient",
            _panels,
            "The variance is the mean over the workers of the squared norm of their gradient, less the "
            "squared norm of the mean gradient.",
            size=(7.2, 3.6),
        )
    },
)
