"""GraVAC's figure 1b: how much gradients vary between workers over the starting iterations."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dgc_repro.paper import facts, plot
from dgc_repro.paper.claims import OURS, Check, Claim
from dgc_repro.paper.frame import Column, Quantity, Values, join, measure, number, pivot, seeds
from dgc_repro.paper.gravac import DATA, FAMILIES, MILESTONES, MODELS, PAPER, row_id
from dgc_repro.paper.gravac import shared as steps
from dgc_repro.paper.gravac.shared import ALIKE, STEPS, Series, at, by_setting, column, mean
from dgc_repro.paper.page import Page, Section, made
from dgc_repro.paper.plot import Look
from dgc_repro.paper.records import Run, of_rows, require_alike

POOL = "training"
METHOD = "dense_variance"
ROWS = {row_id(model, METHOD): f"{family}, dense" for model, family in FAMILIES.items()}
LOOKS = {
    row: Look(ROWS[row], colour)
    for row, colour in zip(ROWS, (plot.BLUE, plot.GREEN, plot.ORANGE), strict=True)
}
STARTING = MILESTONES[0]
"""The starting iterations: those before the learning rate first decays. Ours."""
NUM_PARTS = 10
FIRST, SECOND = "first tenth", "second tenth"
NINTH, LAST = "last tenth but one", "last tenth"
PARTS = {FIRST: 0, SECOND: 1, NINTH: NUM_PARTS - 2, LAST: NUM_PARTS - 1}
VARIANCE, FALL = "variance of the gradient", "fall of the variance, first to last tenth"
EARLY_CHANGE = "change of the variance, first to second tenth"
LATE_CHANGE = "change of the variance, last tenth but one to last"
SETTLING = "early change less late change"
DRASTIC = 1.0
"""Drastically: by a factor of two, one doubling, either way. Ours."""


def variance(run: Run) -> tuple[Series, Series]:
    """The recorded starting iterations, and the variance of the gradient in each."""
    when, spread = column(run, "step"), column(run, "own_square") - column(run, "mean_square")
    known = (when <= at(run, STARTING)) & np.isfinite(spread)
    return when[known], spread[known]


def in_part(run: Run, part: str) -> float:
    """Mean variance in a tenth of the starting iterations."""
    when, spread = variance(run)
    end, left = at(run, STARTING), NUM_PARTS - PARTS[part]
    after = end - end / NUM_PARTS * left if PARTS[part] else -math.inf
    return mean(spread[(when > after) & (when <= end - end / NUM_PARTS * (left - 1))])


def _doublings(run: Run, before: str, after: str) -> float:
    """log2 of the variance in one part over that in another one."""
    a, b = in_part(run, before), in_part(run, after)
    return math.log2(b / a) if a > 0 and b > 0 else math.nan


def _change(run: Run, before: str, after: str) -> float:
    return abs(_doublings(run, before, after))


QUANTITIES = {
    FALL: Quantity("doublings", lambda run: -_doublings(run, FIRST, LAST)),
    EARLY_CHANGE: Quantity("doublings", lambda run: _change(run, FIRST, SECOND)),
    LATE_CHANGE: Quantity("doublings", lambda run: _change(run, NINTH, LAST)),
    SETTLING: Quantity(
        "doublings", lambda run: _change(run, FIRST, SECOND) - _change(run, NINTH, LAST)
    ),
}
_READ = (
    "Mean over workers of ||g_i||^2 less ||mean g||^2 in dense training, averaged over tenths of the "
    f"starting iterations (the first {STARTING:,} of {STEPS:,} steps, or that share of a shorter run)."
)


def _claims(model: str) -> tuple[Claim, ...]:
    row, name = row_id(model, METHOD), MODELS[model]
    return (
        Claim(
            f"{model}.falls", f"{name}: the gradient varies most at the start.", "figure 1b",
            (Check(FALL, row),),
            f"{_READ} First tenth above the last one. The wording is ours.", margin=OURS,
        ),
        Claim(
            f"{model}.drastic", f"{name}: gradients change drastically early.", "text on figure 1b",
            (Check(EARLY_CHANGE, row, above=DRASTIC),),
            f"{_READ} From the first to the second tenth by more than a factor of two, either way.",
            margin=OURS,
        ),
        Claim(
            f"{model}.saturates", f"{name}: gradients then saturate.", "text on figure 1b",
            (Check(SETTLING, row),),
            f"{_READ} The last two tenths differ by a smaller factor than the first two.",
        ),
    )  # fmt: skip


CLAIMS = tuple(claim for model in MODELS for claim in _claims(model))


def page(runs: Sequence[Run], scale: str) -> Page:
    """The page of the finished runs of one scale. Raises UserError if those of a model are not alike."""
    own = of_rows(runs, ROWS)
    for row in ROWS:
        require_alike([run for run in own if run.row == row], ALIKE)
    parts = {part: lambda run, part=part: in_part(run, part) for part in PARTS}
    found = join(by_setting(own, VARIANCE, "", parts), measure(own, QUANTITIES))
    columns = (
        seeds(FALL),
        *(Column(part, VARIANCE, setting=part) for part in PARTS),
        Column("change: first two", EARLY_CHANGE, _factor),
        Column("last two", LATE_CHANGE, _factor),
    )
    return made(
        __file__,
        scale,
        own,
        found,
        [Section("Variance of the gradient", pivot(found, ROWS, columns, first="model"))],
        CLAIMS,
        labels=ROWS,
        data=DATA,
        said={"thinning": steps.thinning(own)},
        head=steps.recorded(own),
        figures={"fig1b": lambda: _figure(own, scale)},
    )


def _factor(doublings: Values) -> str:
    return number([2**value for value in doublings], None, "x")


def _figure(runs: Sequence[Run], scale: str) -> Figure:
    def draw(axes: Axes) -> None:
        for row, look in LOOKS.items():
            own = (variance(run) for run in runs if run.row == row)
            plot.traces(axes, own, look.label, color=look.colour)
        if not axes.lines:
            plot.empty(axes, "no run")
        plot.name_axes(axes, "iteration", "variance over workers", "y")

    title = f"{PAPER.label}, figure 1b: variance of the gradient"
    caption = facts.caption(runs, scale)
    return plot.figure(title, caption, [("starting iterations", draw)], size=(7.2, 3.6))
