"""GraVAC's figure 11: Random-k, GraVAC with both gains against Accordion; which gain explains the figure.

Random-k keeps k of n entries regardless of their values, so its energy gain is k / n = 1 / CF: at the printed
factors it lies below the printed eps, and no step is compressed. Its norm gain is sqrt(1 / CF) without a
residual, and grows with the residual.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dgc_repro.paper import facts, gravac, plot
from dgc_repro.paper import frame as frames
from dgc_repro.paper.claims import EXPECTED, OURS, Check, Claim, Note, near
from dgc_repro.paper.frame import Column, Quantity, join, number, percent, pivot, times
from dgc_repro.paper.gravac import DENSE, RESNET101, row_id
from dgc_repro.paper.gravac import fig7_10 as factors
from dgc_repro.paper.gravac import shared as steps
from dgc_repro.paper.gravac import shared as training
from dgc_repro.paper.gravac.shared import (
    BRANCH,
    FEWER,
    FLOATS,
    LARGEST,
    LEAD,
    QUALITY,
    RANK,
    at_factor,
    compressed,
    fewer_floats,
)
from dgc_repro.paper.page import Page, Section, made
from dgc_repro.paper.records import Run

POOL = "training"
ENERGY, NORM, ACCORDION = "randomk_gravac_fed", "randomk_gravac_norm", "randomk_accordion"
METHODS = (DENSE, ENERGY, NORM, ACCORDION)
EPS, FACTORS, DENSEST = 0.7, (1.5, 3.0, 6.0, 12.0, 24.0, 48.0), 12.0
GRAVAC_QUALITY, ACCORDION_QUALITY, REDUCTION = 78.0, 20.0, 18.0
NEARLY_ALL = 0.95
"""Every step but for the beginning of an average. Ours."""
GAIN_THETA_MIN, MOST = "gain of theta_min", "factor of most steps"


def energy_gain(factor: float) -> float:
    """Random-k's expected energy gain."""
    return 1 / factor


def _arithmetic() -> str:
    gains = ", ".join(f"1/{f:g} = {energy_gain(f):.3f}" for f in FACTORS)
    passing = [f"{f:g}x" for f in FACTORS if energy_gain(f) >= EPS]
    then = f"only {', '.join(passing)} passes" if passing else "every step is dense"
    return f"Random-k's energy gain is 1/CF: {gains}; eps = {EPS:g}: {then}, a reduction of 1x."


NOTES = (
    Note("With the printed gain GraVAC never compresses with Random-k.", _arithmetic()),
    Note(
        "With the norm gain of the authors' code it begins to compress.",
        f"Without a residual that gain is sqrt(1/CF) = {math.sqrt(energy_gain(FACTORS[0])):.3f} at "
        f"{FACTORS[0]:g}x, above eps = {EPS:g}. It grows with the residual, which the denominator lacks.",
    ),
)
_own, _accordion = row_id(RESNET101, ENERGY), row_id(RESNET101, ACCORDION)
_lead = GRAVAC_QUALITY - ACCORDION_QUALITY
_compresses = compressed(RESNET101, ENERGY)


def _claim(
    name: str, text: str, checks: tuple[Check, ...], reading: str, premises: tuple[Check, ...] = (),
    margin: Literal["printed", "ours"] = "printed", assumed: str = "",
) -> tuple[Claim, Claim]:  # fmt: skip
    """A finding of the figure for the rows of both gains; it cannot follow from the printed one."""
    no_way = _arithmetic()
    energy = Claim(name, text, "figure 11", checks, reading, premises, margin, no_way, assumed)
    return energy, steps.of_norm(energy, {_own: row_id(RESNET101, NORM)})


CLAIMS = (
    *_claim(
        "better", "GraVAC reaches a better model than Accordion.", (Check(QUALITY, _own, _accordion),),
        "Final test accuracy, paired by seed; the direction only.", _compresses,
    ),
    *_claim(
        "quality", f"GraVAC reaches {GRAVAC_QUALITY:g} %, Accordion stays at {ACCORDION_QUALITY:g} %.",
        (near(Check(QUALITY, _own, _accordion), _lead, _lead / 2),),
        f"The same difference, within half of the printed {_lead:g} points.", _compresses, OURS,
    ),
    *_claim(
        "reduction", f"GraVAC sends {REDUCTION:g}x less than dense training.",
        (fewer_floats(RESNET101, ENERGY, REDUCTION),),
        "Floats of the whole run, within a factor of two.", margin=OURS,
    ),
    *_claim(
        "factors", f"It uses {', '.join(f'{f:g}' for f in FACTORS)}x, {DENSEST:g}x most.",
        (
            Check(LEAD, _own, setting=at_factor(DENSEST)),
            near(Check(LARGEST, _own), FACTORS[-1], 0.5),
        ),
        f"Share of the recorded steps at {DENSEST:g}x less the largest share of any other factor, dense "
        "steps included, and the largest factor that was sent.",
    ),
    *_claim(
        "throughput", f"Compression throughput is largest at {DENSEST:g}x, where most steps are.",
        (near(Check(RANK, _own, setting=at_factor(DENSEST)), 1, 0.5),),
        "Our wording of the throughput by factor: rank among the factors that were sent.", (), OURS,
        training.ASSUMED,
    ),
    Claim(
        "energy.dense", "With the printed gain (nearly) every step is dense.", EXPECTED,
        (Check(BRANCH, _own, above=NEARLY_ALL, setting="dense"),),
        f"Share of the recorded steps that took the dense branch, above {NEARLY_ALL:.0%}.", margin=OURS,
    ),
    Claim(
        "norm.compresses", "With the norm gain most steps are compressed.", EXPECTED,
        (
            Check(
                BRANCH, row_id(RESNET101, NORM), above=-math.inf, below=steps.MOSTLY, setting="dense"
            ),
        ),
        "The same share, below a half.", margin=OURS,
    ),
)  # fmt: skip


def page(runs: Sequence[Run], scale: str) -> Page:
    """The page of the finished runs of one scale. Raises UserError if they are not alike."""
    mine = steps.compared([run for run in runs if run.model == RESNET101 and run.method in METHODS])
    (one,) = training.courses(mine, scale, (RESNET101,))
    decided = [run for run in one.runs if run.method in (ENERGY, NORM)]
    quantities = {
        LARGEST: Quantity("x", partial(steps.largest, name="factor")),
        MOST: Quantity("x", partial(steps.ranked, place=0)),
        GAIN_THETA_MIN: Quantity("", lambda run: steps.mean(steps.column(run, "gain_theta_min"))),
    }
    found = join(
        training.measure(one),
        steps.by_factor(decided, lead=(DENSEST,), rank=(DENSEST,)),
        frames.measure(decided, quantities),
    )
    shared = [c for c in gravac.CHOICES if c.key in ("policy.gain", "policy.omega")]
    return made(
        __file__,
        scale,
        one.runs,
        found,
        [steps.which_gain, *_sections(one, found)],
        CLAIMS,
        judge=steps.judge_sent_apart,
        labels=gravac.labels(one.runs),
        head=steps.recorded(one.runs),
        data=gravac.DATA,
        notes=NOTES,
        said={"thinning": steps.thinning(one.runs), "samples": steps.samples_unit(one.runs)},
        choices=shared,
        figures={"fig11": lambda: _figure(one, found, scale)},
    )


def _sections(one: training.Course, found: pd.DataFrame) -> list[Section]:
    columns = (
        frames.seeds(QUALITY),
        Column("final test accuracy %", QUALITY, 2),
        Column("dense steps", BRANCH, percent, "dense"),
        Column("gain at 1.5x", GAIN_THETA_MIN),
        Column("largest factor", LARGEST, lambda values: number(values, 1, "x")),
        Column("most steps at", MOST, lambda values: number(values, 1, "x")),
        Column("floats: times less", FEWER[FLOATS], times),
    )

    def said(gain: float) -> str:
        return f"{gain:.3f}{' (enough)' if gain >= EPS else ''}"

    gains = {f"{f:g}x": (energy_gain(f), math.sqrt(energy_gain(f))) for f in FACTORS}
    arithmetic = pd.DataFrame(
        [(name, *map(said, both)) for name, both in gains.items()],
        columns=["factor", "energy gain", "norm gain without a residual"],
    )
    throughput = factors.by_factor(one, found, (ENERGY, NORM))
    return [
        Section("The rows", pivot(found, factors.labels(RESNET101, METHODS), columns)),
        Section("Compression throughput by factor", throughput),
        Section("Random-k's gains at the printed factors", arithmetic),
    ]


def _figure(one: training.Course, found: pd.DataFrame, scale: str) -> Figure:
    own = gravac.looks(RESNET101, METHODS)

    def sent(axes: Axes) -> None:
        """The factor of each recorded step; Accordion's by epoch."""
        places = {row: place for place, row in enumerate(own, start=-1)}
        for run in one.runs:
            look, aside, how = own[run.row], 1.05 ** places[run.row], "default"
            when, sent = steps.column(run, "step"), steps.column(run, "factor")
            if run.method == ACCORDION and {"epoch", "label"} <= set(run.trace.columns):
                ends = run.epochs.set_index("epoch")["step"].reindex(run.trace["epoch"])
                used = run.trace["label"].str.rpartition("=")[2].to_numpy(float)
                when, sent = np.append(0, ends.to_numpy(float)), np.append(used[:1], used)
                how = "steps-pre"
            line: dict[str, Any] = {"color": look.colour, "linestyle": look.dashes}
            axes.plot(when, sent * aside, drawstyle=how, linewidth=1.4, **line)
        plot.name_axes(axes, "iteration", "compression factor, 1 = dense", log="y", unit="x")

    both = gravac.looks(RESNET101, (ENERGY, NORM))
    panels: plot.Panels = [
        training.quality_panel(one, own),
        ("factor by iteration (rows set apart by 5 %)", sent),
        ("modelled compression throughput", partial(factors.draw_throughput, one, found, both)),
    ]
    title = f"{gravac.PAPER.label}, figure 11: {gravac.FAMILIES[RESNET101]} with Random-k"
    return plot.figure(title, facts.caption(one.runs, scale), panels)
