"""The two gains of 10x, 100x and 1000x while Top-k trains at each of them. The paper has no such figure.

The residual of a training at one factor decides the gains of all factors: what 1000x leaves out comes back
into the numerator of the norm gain, whose denominator is the gradient without its residual.
"""

from __future__ import annotations

import math
from functools import partial

from dgc_repro.paper import panels
from dgc_repro.paper.artifact import BANDS, Shown, drawing
from dgc_repro.paper.claims import Check
from dgc_repro.paper.frame import Column, Quantity, of, seeds
from dgc_repro.paper.gravac import DENSE, FACTORS, RESNET101, row_id
from dgc_repro.paper.gravac import training as g
from dgc_repro.paper.gravac.training import ENERGY, GAIN, NORM
from dgc_repro.paper.page import Template
from dgc_repro.paper.records import Run
from dgc_repro.paper.statistics import interval

POOL = "training"
METHODS = {factor: f"topk{factor}_gains" for factor in FACTORS}
"""By the factor that a row trains at."""
EPS = 0.7
LOSES = 2.0
"""Ours: points of accuracy from which a factor costs more than it should."""


def gain_at(kind: str, factor: float) -> str:
    """The quantity of the mean gain of a factor."""
    return f"{GAIN[kind]} at {factor:g}x"


CONTROL, WEAK, STRONG = (row_id(RESNET101, m) for m in (DENSE, METHODS[10], METHODS[1000]))
_strong = gain_at(NORM, 1000)
_confirms = Check(_strong, STRONG, above=EPS), Check(_strong, STRONG, WEAK, above=1.0, ratio=True)
say = partial(Template.read(__file__).claim, eps=EPS, loses=LOSES)
CLAIMS = (
    say("energy.dense", Check(gain_at(ENERGY, 10), WEAK, above=-math.inf, below=EPS)),
    say("norm.passes", Check(gain_at(NORM, 10), WEAK, above=EPS)),
    say("norm.refused", Check(_strong, WEAK, above=-math.inf, below=EPS)),
    say("norm.confirms", *_confirms),
    say("energy.shrinks", Check(gain_at(ENERGY, 1000), WEAK, STRONG, above=1.0, ratio=True)),
    say("costs", Check(g.QUALITY, CONTROL, STRONG, above=LOSES)),
)


def mean_gain(run: Run, kind: str, factor: float) -> float:
    """The mean gain of a factor over the recorded steps that measured it: of what was sent, or of what the
    candidate would have sent."""
    if factor == float(run.setting("policy.value") or math.nan):
        return g.mean(g.gains(run, kind))
    norms = g.column(run, "candidate_norms") / g.column(run, "raw_norms")
    found = g.column(run, "gain_candidate") if kind == ENERGY else norms
    return g.mean(found[g.column(run, "candidate") == factor] if found.size else found)


GAINS = {
    gain_at(kind, factor): Quantity("", partial(mean_gain, kind=kind, factor=factor))
    for kind in GAIN
    for factor in FACTORS
}


def _panels(shown: Shown) -> list[panels.Panel]:
    _, *trained = shown.looks

    def bars(kind: str) -> panels.Panel:
        found = {
            row: [interval(of(shown.frame, gain_at(kind, f), row)) for f in FACTORS]
            for row in trained
        }
        means = {row: [mean for mean, *_ in own] for row, own in found.items()}
        halves = {row: [mean - low for mean, low, _ in own] for row, own in found.items()}
        groups = [f"at {factor:g}x" for factor in FACTORS]
        drawn = panels.bars(groups, means, shown.looks, halves=halves)
        return panels.panel(GAIN[kind], drawn, panels.rule("y", EPS), y="mean gain", log="y")

    curves = [one.curves(shown.looks) for one in g.courses(shown.runs, shown.scale)]
    return [*map(bars, GAIN), *curves]


TITLE = "GraVAC's two gains, while Top-k trains at 10x, 100x and 1000x"
NOTE = f"The line across the gains is eps {EPS:g}. Whiskers are 95 % intervals. {BANDS}"
page = g.page(
    __file__,
    (DENSE, *METHODS.values()),
    lambda one: CLAIMS,
    numbers=lambda one: g.measure(one, GAINS),
    quantities=GAINS,
    models=(RESNET101,),
    tables={
        "Gains and final accuracy": (
            *(seeds(g.QUALITY), g.FINAL_COLUMN[g.QUALITY]),
            *(Column(name, name, 3) for name in GAINS),
        )
    },
    choices=g.POLICY_CHOICES,
    said={"eps": EPS},
    figures={"gains": drawing(TITLE, _panels, NOTE, size=(4.2, 3.4))},
)
