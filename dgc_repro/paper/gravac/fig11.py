"""GraVAC's figure 11: Random-k, GraVAC with both gains against Accordion; which gain explains the figure.

Random-k keeps k of n entries regardless of their values, so its energy gain is k / n = 1 / CF: at the printed
factors it lies below the printed eps, and no step is compressed. Its norm gain is sqrt(1 / CF) without a
residual, and grows with the residual.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from dgc_repro.paper import facts, frame, gravac, panels, plot
from dgc_repro.paper.claims import Check, Claim, near
from dgc_repro.paper.frame import Column, Quantity, number, percent, pivot, times
from dgc_repro.paper.gravac import DENSE, RESNET101, fig7_10, row_id
from dgc_repro.paper.gravac import shared as g
from dgc_repro.paper.page import Page, Section, Template
from dgc_repro.paper.records import Run

POOL = "training"
ENERGY, NORM, ACCORDION = "randomk_gravac_fed", "randomk_gravac_norm", "randomk_accordion"
METHODS = (DENSE, ENERGY, NORM, ACCORDION)
EPS, FACTORS, DENSEST = 0.7, (1.5, 3.0, 6.0, 12.0, 24.0, 48.0), 12.0
GRAVAC_QUALITY, ACCORDION_QUALITY, REDUCTION = 78.0, 20.0, 18.0
NEARLY_ALL = 0.95
"""Every step but for the beginning of an average. Ours."""
GAIN_THETA_MIN, MOST = "gain of theta_min", "factor of most steps"
WORDS = Template.read(__file__)


def energy_gain(factor: float) -> float:
    """Random-k's expected energy gain."""
    return 1 / factor


def _arithmetic() -> str:
    gains = ", ".join(f"1/{f:g} = {energy_gain(f):.3f}" for f in FACTORS)
    passing = [f"{f:g}x" for f in FACTORS if energy_gain(f) >= EPS]
    then = f"only {', '.join(passing)} passes" if passing else "every step is dense"
    return f"Random-k's energy gain is 1/CF: {gains}; eps = {EPS:g}: {then}, a reduction of 1x."


NOTES = WORDS.noted(arithmetic=_arithmetic(), root=math.sqrt(energy_gain(FACTORS[0])), eps=EPS)
_own, _norm, _accordion = (row_id(RESNET101, method) for method in METHODS[1:])


def _claims() -> Iterator[Claim]:
    say = partial(WORDS.claim, cannot_follow=_arithmetic())
    lead, compresses = GRAVAC_QUALITY - ACCORDION_QUALITY, g.compressed(RESNET101, ENERGY)
    better, densest = Check(g.QUALITY, _own, _accordion), g.at_factor(DENSEST)
    yield say("better", better, premises=compresses)
    words = {"own": GRAVAC_QUALITY, "other": ACCORDION_QUALITY, "lead": lead}
    yield say("quality", near(better, lead, lead / 2), premises=compresses, ours=True, **words)
    fewer = g.fewer_floats(RESNET101, ENERGY, REDUCTION)
    yield say("reduction", fewer, ours=True, reduction=REDUCTION)
    largest = near(Check(g.LARGEST, _own), FACTORS[-1], 0.5)
    yield say("factors", Check(g.LEAD, _own, setting=densest), largest)
    rank = near(Check(g.RANK, _own, setting=densest), 1, 0.5)
    yield say("throughput", rank, ours=True, assumed=g.ASSUMED)


def _expected() -> Iterator[Claim]:
    def dense(row: str, above: float, below: float = math.inf) -> Check:
        return Check(g.BRANCH, row, above=above, below=below, setting=DENSE)

    yield WORDS.claim("energy.dense", dense(_own, NEARLY_ALL), ours=True, nearly=NEARLY_ALL)
    yield WORDS.claim("norm.compresses", dense(_norm, -math.inf, g.MOSTLY), ours=True)


CLAIMS = (
    *(both for claim in _claims() for both in (claim, g.of_norm(claim, {_own: _norm}))),
    *_expected(),
)


def page(runs: Sequence[Run], scale: str) -> Page:
    """The page of the finished runs of one scale. Raises UserError if they are not alike."""
    mine = g.compared([run for run in runs if run.model == RESNET101 and run.method in METHODS])
    (one,) = g.courses(mine, scale, (RESNET101,))
    decided = one.of(ENERGY, NORM)
    quantities = {
        g.LARGEST: Quantity("x", partial(g.largest, name="factor")),
        MOST: Quantity("x", partial(g.ranked, place=0)),
        GAIN_THETA_MIN: Quantity("", lambda run: g.mean(g.column(run, "gain_theta_min"))),
    }
    found = frame.join(
        g.measure(one),
        g.by_factor(decided, lead=(DENSEST,), rank=(DENSEST,)),
        frame.measure(decided, quantities),
    )
    own = gravac.looks(RESNET101, METHODS)
    drawn = [
        g.quality_panel(one, own),
        panels.panel(
            "factor by iteration (rows set apart by 5 %)", partial(_sent, one), log="y", unit="x",
            x="iteration", y="compression factor, 1 = dense",
        ),
        fig7_10.throughput_panel(one, found, gravac.looks(RESNET101, (ENERGY, NORM))),
    ]  # fmt: skip
    title = f"{gravac.PAPER.label}, figure 11: {gravac.FAMILIES[RESNET101]} with Random-k"
    return g.made(
        __file__, scale, one.runs, found, [g.which_gain, *_sections(one, found)], CLAIMS,
        judge=g.judge_sent_apart, head=g.recorded(one.runs), notes=NOTES,
        choices=g.choices("policy.gain", "policy.omega"),
        figures={"fig11": lambda: plot.figure(title, facts.caption(one.runs, scale), drawn)},
    )  # fmt: skip


def _sections(one: g.Course, found: pd.DataFrame) -> list[Section]:
    factor = partial(number, decimals=1, unit="x")
    columns = (
        frame.seeds(g.QUALITY),
        Column("final test accuracy %", g.QUALITY, 2),
        Column("dense steps", g.BRANCH, percent, "dense"),
        Column("gain at 1.5x", GAIN_THETA_MIN),
        Column("largest factor", g.LARGEST, factor),
        Column("most steps at", MOST, factor),
        Column("floats: times less", g.FEWER[g.FLOATS], times),
    )

    def said(gain: float) -> str:
        return f"{gain:.3f}{' (enough)' if gain >= EPS else ''}"

    gains = {f"{f:g}x": (energy_gain(f), math.sqrt(energy_gain(f))) for f in FACTORS}
    arithmetic = pd.DataFrame(
        [(name, *map(said, both)) for name, both in gains.items()],
        columns=["factor", "energy gain", "norm gain without a residual"],
    )
    throughput = fig7_10.by_factor(one, found, (ENERGY, NORM))
    return [
        Section("The rows", pivot(found, fig7_10.labels(RESNET101, METHODS), columns)),
        Section("Compression throughput by factor", throughput),
        Section("Random-k's gains at the printed factors", arithmetic),
    ]


def _sent(one: g.Course, axes: Axes) -> None:
    """The factor of each recorded step; Accordion's by epoch."""
    looks = gravac.looks(RESNET101, METHODS)
    places = {row: place for place, row in enumerate(looks, start=-1)}
    for run in one.runs:
        look, aside, how = looks[run.row], 1.05 ** places[run.row], "default"
        when, sent = g.column(run, "step"), g.column(run, "factor")
        if run.method == ACCORDION and {"epoch", "label"} <= set(run.trace.columns):
            ends = run.epochs.set_index("epoch")["step"].reindex(run.trace["epoch"])
            used = run.trace["label"].str.rpartition("=")[2].to_numpy(float)
            when, sent = np.append(0, ends.to_numpy(float)), np.append(used[:1], used)
            how = "steps-pre"
        line: dict[str, Any] = {"color": look.colour, "linestyle": look.dashes}
        axes.plot(when, sent * aside, drawstyle=how, linewidth=1.4, **line)
