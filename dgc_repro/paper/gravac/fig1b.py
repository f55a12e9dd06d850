"""GraVAC's figure 1b: how much gradients vary between workers over the starting iterations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np

from dgc_repro.paper import facts, panels, plot
from dgc_repro.paper.claims import Check
from dgc_repro.paper.frame import Column, Quantity, Values, join, measure, number, pivot, seeds
from dgc_repro.paper.gravac import FAMILIES, MILESTONES, MODELS, PAPER, row_id
from dgc_repro.paper.gravac import shared as g
from dgc_repro.paper.page import Page, Section, Template
from dgc_repro.paper.plot import Look
from dgc_repro.paper.records import Run, of_rows, require_alike

POOL = "training"
METHOD = "dense_variance"
ROWS = {row_id(model, METHOD): f"{family}, dense" for model, family in FAMILIES.items()}
LOOKS = [Look(ROWS[row], plot.CYCLE[place]) for row, place in zip(ROWS, (0, 2, 1), strict=True)]
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


def variance(run: Run) -> tuple[g.Series, g.Series]:
    """The recorded starting iterations, and the variance of the gradient in each."""
    when, spread = g.column(run, "step"), g.column(run, "own_square") - g.column(run, "mean_square")
    known = (when <= g.at(run, STARTING)) & np.isfinite(spread)
    return when[known], spread[known]


def in_part(run: Run, part: str) -> float:
    """Mean variance in a tenth of the starting iterations."""
    when, spread = variance(run)
    end, left = g.at(run, STARTING), NUM_PARTS - PARTS[part]
    after = end - end / NUM_PARTS * left if PARTS[part] else -math.inf
    return g.mean(spread[(when > after) & (when <= end - end / NUM_PARTS * (left - 1))])


def _doublings(run: Run, before: str, after: str) -> float:
    """log2 of the variance in one part over that in another one."""
    a, b = in_part(run, before), in_part(run, after)
    return math.log2(b / a) if a > 0 and b > 0 else math.nan


def _early(run: Run) -> float:
    return abs(_doublings(run, FIRST, SECOND))


def _late(run: Run) -> float:
    return abs(_doublings(run, NINTH, LAST))


QUANTITIES = {
    FALL: Quantity("doublings", lambda run: -_doublings(run, FIRST, LAST)),
    EARLY_CHANGE: Quantity("doublings", _early),
    LATE_CHANGE: Quantity("doublings", _late),
    SETTLING: Quantity("doublings", lambda run: _early(run) - _late(run)),
}
READ = (
    "Mean over workers of ||g_i||^2 less ||mean g||^2 in dense training, averaged over tenths of the "
    f"starting iterations (the first {STARTING:,} of {g.STEPS:,} steps, or that share of a shorter run)."
)
CLAIMS = tuple(
    Template.read(__file__).claim(
        name, Check(quantity, row_id(model, METHOD), above=above), of=model, ours=name != "saturates",
        model=called, read=READ,
    )
    for model, called in MODELS.items()
    for name, quantity, above in (
        ("falls", FALL, 0.0), ("drastic", EARLY_CHANGE, DRASTIC), ("saturates", SETTLING, 0.0),
    )
)  # fmt: skip


def page(runs: Sequence[Run], scale: str) -> Page:
    """The page of the finished runs of one scale. Raises UserError if those of a model are not alike."""
    own = of_rows(runs, ROWS)
    for row in ROWS:
        require_alike([run for run in own if run.row == row], g.ALIKE)
    parts = {part: partial(in_part, part=part) for part in PARTS}
    found = join(g.by_setting(own, VARIANCE, "", parts), measure(own, QUANTITIES))
    columns = (
        seeds(FALL),
        *(Column(part, VARIANCE, setting=part) for part in PARTS),
        Column("change: first two", EARLY_CHANGE, _factor),
        Column("last two", LATE_CHANGE, _factor),
    )
    table = pivot(found, ROWS, columns, first="model")
    lines = [
        panels.lines(
            [variance(run) for run in own if run.row == row], look.label, color=look.colour, linewidth=1.0
        )
        for row, look in zip(ROWS, LOOKS, strict=True)
    ]  # fmt: skip
    shown = [
        panels.panel(
            "starting iterations", *lines, x="iteration", y="variance over workers", log="y"
        )
    ]
    title = f"{PAPER.label}, figure 1b: variance of the gradient"
    said = facts.caption(own, scale)
    return g.made(
        __file__, scale, own, found, [Section("Variance of the gradient", table)], CLAIMS, labels=ROWS,
        head=g.recorded(own), figures={"fig1b": lambda: plot.figure(title, said, shown, size=(7.2, 3.6))},
    )  # fmt: skip


def _factor(doublings: Values) -> str:
    return number([2**value for value in doublings], None, "x")
