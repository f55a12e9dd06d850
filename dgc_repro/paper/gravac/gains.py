"""The two gains of 10x, 100x and 1000x while Top-k trains at each of them. The paper has no such figure.

The residual of a training at one factor decides the gains of all factors: what 1000x leaves out comes back
into the numerator of the norm gain, whose denominator is the gradient without its residual.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dgc_repro.paper import facts, frame, gravac, plot
from dgc_repro.paper.claims import EXPECTED, OURS, Check, Claim
from dgc_repro.paper.frame import Column, Quantity, pivot, seeds, signed
from dgc_repro.paper.gravac import DENSE, FACTORS, RESNET101, row_id
from dgc_repro.paper.gravac import shared as steps
from dgc_repro.paper.gravac import shared as training
from dgc_repro.paper.gravac.shared import (
    ENERGY,
    FLOATS,
    NORM,
    QUALITY,
    Course,
    Series,
    at_factor,
    column,
    mean,
)
from dgc_repro.paper.page import Page, Section, made
from dgc_repro.paper.records import Run

POOL = "training"
TRAINED = {factor: f"topk{factor}_gains" for factor in FACTORS}
"""Rows by the factor that they train at."""
ROWS = {factor: row_id(RESNET101, method) for factor, method in TRAINED.items()}
CONTROL = row_id(RESNET101, DENSE)
GAIN = {ENERGY: "energy gain", NORM: "norm gain"}
EPS = 0.7
FIRST, LAST = "first tenth", "last tenth"
LESS_DENSE = "final accuracy less dense's"
LOSES = 2.0
"""Ours: points of accuracy from which a factor costs more than it should."""
SMOOTHED = 20
"""Recorded steps in a mean that is drawn."""
COLOURS = dict(zip(FACTORS, (plot.BLUE, plot.GREEN, plot.ORANGE), strict=True))


def gain_of(run: Run, gain: str, factor: float) -> tuple[Series, Series]:
    """The recorded steps that measured a factor, and its gain in each, not smoothed."""
    is_sent = factor == float(run.setting("policy.value"))
    number, raw = column(run, "step"), column(run, "raw_norms")
    if is_sent:
        values = column(run, "gain") if gain == ENERGY else column(run, "sent_norms") / raw
        return number, values
    own = column(run, "candidate") == factor
    values = column(run, "gain_candidate")
    if gain == NORM:
        values = column(run, "candidate_norms") / raw
    return number[own], values[own]


def _mean(run: Run, gain: str, factor: float, start: float = 0.0, end: float = 1.0) -> float:
    """The mean over a part of the run."""
    number, values = gain_of(run, gain, factor)
    share = number / run.last("step")
    return mean(values[(share > start) & (share <= end)])


def _check(gain: str, trained: int, factor: int, above: float, below: float = np.inf) -> Check:
    return Check(GAIN[gain], ROWS[trained], above=above, below=below, setting=at_factor(factor))


_MEAN = "Mean over the recorded steps of the whole run, with error feedback."
CLAIMS = (
    Claim(
        "energy.dense", f"The printed gain of 10x stays below eps {EPS:g}: GraVAC as printed trains dense.",
        EXPECTED, (_check(ENERGY, 10, 10, -np.inf, EPS),), f"{_MEAN} While training at 10x.",
    ),
    Claim(
        "norm.passes", f"The norm gain of 10x passes eps {EPS:g}.", EXPECTED,
        (_check(NORM, 10, 10, EPS),), f"{_MEAN} While training at 10x.",
    ),
    Claim(
        "norm.refused", f"The norm gain of 1000x does not pass eps {EPS:g} while training at 10x.", EXPECTED,
        (_check(NORM, 10, 1000, -np.inf, EPS),), _MEAN,
    ),
    Claim(
        "norm.confirms",
        f"The norm gain of 1000x confirms itself: it passes eps {EPS:g} once 1000x is what trains.", EXPECTED,
        (
            _check(NORM, 1000, 1000, EPS),
            Check(
                GAIN[NORM], ROWS[1000], ROWS[10], above=1.0, setting=at_factor(1000), ratio=True
            ),
        ),
        f"{_MEAN} And it lies above the gain of 1000x while training at 10x.",
    ),
    Claim(
        "energy.shrinks", "The energy gain of 1000x shrinks once 1000x is what trains.", EXPECTED,
        (Check(GAIN[ENERGY], ROWS[10], ROWS[1000], above=1.0, setting=at_factor(1000), ratio=True),), _MEAN,
    ),
    Claim(
        "costs", f"1000x ends more than {LOSES:g} points below dense training.", EXPECTED,
        (Check(QUALITY, CONTROL, ROWS[1000], above=LOSES),), "Test accuracy after the last epoch.",
        margin=OURS,
    ),
)  # fmt: skip


def page(runs: Sequence[Run], scale: str) -> Page:
    """The page of the finished runs of one scale. Raises UserError if they are not alike."""
    methods = (DENSE, *TRAINED.values())
    (one,) = training.courses(runs, scale, (RESNET101,), methods)
    numbers = _numbers(one)
    return made(
        __file__,
        scale,
        one.runs,
        numbers,
        _sections(numbers, one),
        CLAIMS,
        labels=gravac.labels(one.runs),
        data=gravac.DATA,
        head=[*training.head(one), *steps.recorded(one.runs)],
        said={"thinning": steps.thinning(one.runs), "eps": EPS, "found": _found(numbers)},
        choices=[choice for choice in gravac.CHOICES if choice.key == "policy.gain"],
        figures={"gains": partial(_figure, one, scale)},
    )


def _numbers(one: Course) -> pd.DataFrame:
    measured = [run for run in one.runs if run.method in TRAINED.values()]
    parts = {"": (0.0, 1.0), f", {FIRST}": (0.0, 0.1), f", {LAST}": (0.9, 1.0)}
    found = [
        steps.by_setting(
            measured,
            name,
            "",
            {
                at_factor(factor) + said: partial(
                    _mean, gain=gain, factor=factor, start=start, end=end
                )
                for factor in FACTORS
                for said, (start, end) in parts.items()
            },
        )
        for gain, name in GAIN.items()
    ]
    dense = {run.seed: one.last(run) for run in one.of(DENSE)}
    less = Quantity("points", lambda run: one.last(run) - dense.get(run.seed, np.nan))
    return frame.join(training.measure(one), *found, frame.measure(measured, {LESS_DENSE: less}))


def _sections(numbers: pd.DataFrame, one: Course) -> list[Section]:
    trained = {row: f"Top-k {factor}x" for factor, row in ROWS.items()}

    def gains(said: str = "") -> list[Column]:
        return [
            Column(f"{name.split()[0]}: {factor}x", GAIN[gain], 3, at_factor(factor) + said)
            for gain, name in GAIN.items()
            for factor in FACTORS
        ]

    first = "trained with"
    quality = [
        seeds(QUALITY),
        Column("final test accuracy %", QUALITY, 2),
        Column("less dense", LESS_DENSE, signed),
        Column("floats, times less than dense", training.FEWER[FLOATS], frame.times),
    ]
    whole = pivot(numbers, trained, gains(), first)
    return [
        Section("Gains over the whole run", whole),
        Section("Gains in the first tenth", pivot(numbers, trained, gains(f", {FIRST}"), first)),
        Section("Gains in the last tenth", pivot(numbers, trained, gains(f", {LAST}"), first)),
        Section("Final accuracy", pivot(numbers, {CONTROL: "dense"} | trained, quality, first)),
    ]


def _found(numbers: pd.DataFrame) -> str:
    """What the gains say, in one or two sentences; empty where a run is missing."""

    def of(gain: str, trained: int, factor: int) -> float:
        return mean(np.array(frame.of(numbers, GAIN[gain], ROWS[trained], at_factor(factor))))

    energy, norm = of(ENERGY, 10, 10), of(NORM, 10, 10)
    refused, confirmed = of(NORM, 10, 1000), of(NORM, 1000, 1000)
    if not np.isfinite([energy, norm, refused, confirmed]).all():
        return ""
    verb = "does not pass" if energy < EPS else "passes"
    return (
        f"While Top-k trains at 10x, the energy gain of 10x is {energy:.2f}, which {verb} eps {EPS:g}; the "
        f"norm gain of 10x is {norm:.2f}. The norm gain of 1000x is {refused:.2f} while training at 10x, and "
        f"{confirmed:.2f} while training at 1000x."
    )


# -- the figure


def _figure(one: Course, scale: str) -> Figure:
    """For each trained factor the gains of all three by iteration; and the accuracy."""

    def draw(axes: Axes, trained: int) -> None:
        own = one.of(TRAINED[trained])
        for factor in FACTORS:
            for gain, dashes in ((ENERGY, "-"), (NORM, ":")):
                lines = [_smooth(*gain_of(run, gain, factor)) for run in own]
                label = f"gain of {factor}x" if gain == ENERGY else ""
                plot.traces(axes, lines, label, color=COLOURS[factor], linestyle=dashes)
        if not own:
            plot.empty(axes, "no run")
        axes.axhline(EPS, color=plot.BLACK, linewidth=0.8, linestyle="--")
        plot.name_axes(axes, "iteration", "gain: solid energy, dotted norm", "y")

    looks = {CONTROL: gravac.LOOKS[DENSE]} | {ROWS[f]: gravac.LOOKS[TRAINED[f]] for f in FACTORS}
    panels: plot.Panels = [(f"trained at {f}x", partial(draw, trained=f)) for f in FACTORS]
    panels.append(training.quality_panel(one, looks))
    title = f"GraVAC's two gains: {one.family}, Top-k with error feedback (dashed: eps {EPS:g})"
    caption = facts.caption(one.runs, scale)
    return plot.figure(title, caption, panels, columns=2, size=(4.8, 3.2), legend=0)


def _smooth(number: Series, values: Series) -> tuple[Series, Series]:
    """Means of `SMOOTHED` recorded steps each, fewer at the end."""
    parts = range(0, len(number), SMOOTHED)
    cut = [slice(start, start + SMOOTHED) for start in parts]
    return np.array([number[c].mean() for c in cut]), np.array([values[c].mean() for c in cut])
