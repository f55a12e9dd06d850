"""The two gains of 10x, 100x and 1000x while Top-k trains at each of them. The paper has no such figure.

The residual of a training at one factor decides the gains of all factors: what 1000x leaves out comes back
into the numerator of the norm gain, whose denominator is the gradient without its residual.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import pandas as pd

from dgc_repro.paper import facts, frame, gravac, panels, plot
from dgc_repro.paper.claims import Check, Claim
from dgc_repro.paper.frame import Column, pivot, seeds, signed
from dgc_repro.paper.gravac import DENSE, FACTORS, RESNET101, row_id
from dgc_repro.paper.gravac import shared as g
from dgc_repro.paper.gravac.shared import ENERGY, GAIN, NORM, Series, at_factor
from dgc_repro.paper.page import Page, Section, Template
from dgc_repro.paper.records import Run

POOL = "training"
TRAINED = {factor: f"topk{factor}_gains" for factor in FACTORS}
"""Rows by the factor that they train at."""
ROWS = {factor: row_id(RESNET101, method) for factor, method in TRAINED.items()}
CONTROL = row_id(RESNET101, DENSE)
EPS = 0.7
PARTS = {"": (0.0, 1.0), ", first tenth": (0.0, 0.1), ", last tenth": (0.9, 1.0)}
LESS_DENSE = "final accuracy less dense's"
LOSES = 2.0
"""Ours: points of accuracy from which a factor costs more than it should."""
SMOOTHED = 20
"""Recorded steps in a mean that is drawn."""
COLOURS = dict(zip(FACTORS, (plot.BLUE, plot.GREEN, plot.ORANGE), strict=True))
WORDS = Template.read(__file__)


def gain_of(run: Run, gain: str, factor: float) -> tuple[Series, Series]:
    """The recorded steps that measured a factor, and its gain in each, not smoothed."""
    number, raw = g.column(run, "step"), g.column(run, "raw_norms")
    if factor == float(run.setting("policy.value")):
        sent = g.column(run, "gain") if gain == ENERGY else g.column(run, "sent_norms") / raw
        return number, sent
    own = g.column(run, "candidate") == factor
    norm = g.column(run, "candidate_norms") / raw if gain == NORM else None
    return number[own], (g.column(run, "gain_candidate") if norm is None else norm)[own]


def _mean(run: Run, gain: str, factor: float, start: float = 0.0, end: float = 1.0) -> float:
    """The mean over a part of the run."""
    number, values = gain_of(run, gain, factor)
    share = number / run.last("step")
    return g.mean(values[(share > start) & (share <= end)])


def _claims() -> Iterator[Claim]:
    def gain(kind: str, at: int, trained: int, **range_: float) -> Check:
        return Check(GAIN[kind], ROWS[trained], setting=at_factor(at), **range_)  # type: ignore[arg-type]

    def over(kind: str, trained: int, other: int) -> Check:
        rows = ROWS[trained], ROWS[other]
        return Check(GAIN[kind], *rows, above=1.0, setting=at_factor(1000), ratio=True)

    say, below = partial(WORDS.claim, eps=EPS), {"above": -np.inf, "below": EPS}
    yield say("energy.dense", gain(ENERGY, 10, 10, **below))
    yield say("norm.passes", gain(NORM, 10, 10, above=EPS))
    yield say("norm.refused", gain(NORM, 1000, 10, **below))
    yield say("norm.confirms", gain(NORM, 1000, 1000, above=EPS), over(NORM, 1000, 10))
    yield say("energy.shrinks", over(ENERGY, 10, 1000))
    costs = Check(g.QUALITY, CONTROL, ROWS[1000], above=LOSES)
    yield say("costs", costs, ours=True, loses=LOSES)


CLAIMS = tuple(_claims())


def page(runs: Sequence[Run], scale: str) -> Page:
    """The page of the finished runs of one scale. Raises UserError if they are not alike."""
    (one,) = g.courses(runs, scale, (RESNET101,), (DENSE, *TRAINED.values()))
    measured = one.of(*TRAINED.values())

    def part(gain: str, factor: float, ends: tuple[float, float]) -> partial[float]:
        return partial(_mean, gain=gain, factor=factor, start=ends[0], end=ends[1])

    found = frame.join(
        g.measure(one),
        *(
            g.by_setting(
                measured, name, "",
                {at_factor(f) + said: part(gain, f, e) for f in FACTORS for said, e in PARTS.items()},
            )
            for gain, name in GAIN.items()
        ),
        frame.measure(measured, {LESS_DENSE: g.less_dense(one, "points")}),
    )  # fmt: skip
    title = f"GraVAC's two gains: {one.family}, Top-k with error feedback (dashed: eps {EPS:g})"
    looks = {CONTROL: gravac.LOOKS[DENSE]} | {ROWS[f]: gravac.LOOKS[TRAINED[f]] for f in FACTORS}
    said = facts.caption(one.runs, scale)
    drawn = [*(_panel(one, trained) for trained in FACTORS), g.quality_panel(one, looks)]
    return g.made(
        __file__, scale, one.runs, found, _sections(found), CLAIMS,
        head=[*g.head(one), *g.recorded(one.runs)], said={"eps": EPS, "found": _found(found)},
        choices=g.choices("policy.gain"),
        figures={
            "gains": lambda: plot.figure(title, said, drawn, columns=2, size=(4.8, 3.2), legend=0)
        },
    )  # fmt: skip


def _sections(found: pd.DataFrame) -> list[Section]:
    trained = {row: f"Top-k {factor}x" for factor, row in ROWS.items()}

    def gains(said: str) -> pd.DataFrame:
        columns = [
            Column(f"{gain}: {factor}x", name, 3, at_factor(factor) + said)
            for gain, name in GAIN.items()
            for factor in FACTORS
        ]
        return pivot(found, trained, columns, "trained with")

    quality = [
        seeds(g.QUALITY),
        Column("final test accuracy %", g.QUALITY, 2),
        Column("less dense", LESS_DENSE, signed),
        Column("floats, times less than dense", g.FEWER[g.FLOATS], frame.times),
    ]
    titles = ("Gains over the whole run", "Gains in the first tenth", "Gains in the last tenth")
    return [
        *(Section(title, gains(said)) for title, said in zip(titles, PARTS, strict=True)),
        Section(
            "Final accuracy", pivot(found, {CONTROL: "dense"} | trained, quality, "trained with")
        ),
    ]


def _found(numbers: pd.DataFrame) -> str:
    """What the gains say, in one or two sentences; empty where a run is missing."""

    def of(gain: str, trained: int, factor: int) -> float:
        return g.mean(np.array(frame.of(numbers, GAIN[gain], ROWS[trained], at_factor(factor))))

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


def _panel(one: g.Course, trained: int) -> panels.Panel:
    """The gains of all three factors by iteration."""
    drawn = []
    for factor in FACTORS:
        for gain, dashes in ((ENERGY, "-"), (NORM, ":")):
            lines = [_smooth(*gain_of(run, gain, factor)) for run in one.of(TRAINED[trained])]
            label = f"gain of {factor}x" if gain == ENERGY else ""
            style = {"color": COLOURS[factor], "linestyle": dashes, "linewidth": 1.0}
            drawn.append(panels.lines(lines, label, **style))
    eps = (EPS, {"linestyle": "--"})
    y = "gain: solid energy, dotted norm"
    return panels.panel(f"trained at {trained}x", *drawn, x="iteration", y=y, log="y", at_y=[eps])


def _smooth(number: Series, values: Series) -> tuple[Series, Series]:
    """Means of `SMOOTHED` recorded steps each, fewer at the end."""
    cut = [slice(start, start + SMOOTHED) for start in range(0, len(number), SMOOTHED)]
    return np.array([number[c].mean() for c in cut]), np.array([values[c].mean() for c in cut])
