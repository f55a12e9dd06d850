"""GraVAC's figures 7 to 11: convergence, the factors that were used, compression throughput by factor.

Figure 11 trains with Random-k, which keeps k of n entries regardless of their values. Its energy gain is
k / n = 1 / CF: at the printed factors it lies below the printed eps, and no step is compressed. Its norm gain
is sqrt(1 / CF) without a residual, and grows with the residual.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from dgc_repro.paper import frame, gravac, panels
from dgc_repro.paper.claims import Check, Claim, near
from dgc_repro.paper.frame import Column, Quantity, percent, pivot
from dgc_repro.paper.gravac import (
    DENSE,
    EPS_SWEEP,
    GEOMETRIC,
    GRAVAC,
    GRAVAC_ROWS,
    GRAVAC_STRICT,
    LSTM,
    MODELS,
    REDUCTIONS,
    RESNET101,
    VGG16,
    norm_of,
    row_id,
)
from dgc_repro.paper.gravac import shared as g
from dgc_repro.paper.gravac.shared import AT_GAIN, SHARE, THROUGHPUT, at_factor, fewer, fewer_floats
from dgc_repro.paper.page import Page, Section, Template
from dgc_repro.paper.records import Run

WORDS = Template.read(__file__)
EPS, EVEN, SIMILAR, NEARLY_ALL = 0.7, (0.25, 0.75), 2.0, 0.95
"""The last three are ours: two factors are even if each has such a share; densities are similar if none is
twice another; nearly all are all steps but for the beginning of an average."""
SIMILAR_FACTORS = (10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0)
LATE_FACTOR, WINDOWS_BEFORE_LATE = 1280.0, 8
"""Figure 10 has it from step 16,000 on, after 8 windows of 2,000 steps."""
RANDOM_FACTORS, DENSEST = (1.5, 3.0, 6.0, 12.0, 24.0, 48.0), 12.0
RANDOM_LEAD, RANDOM_REDUCTION = 78.0 - 20.0, 18.0
"""Printed in figure 11: GraVAC's accuracy less Accordion's, and floats of dense over GraVAC's."""
MOST, RUNNER_UP = "factor with the most steps", "factor with the second most steps"
BEST, SECOND = "factor with the largest throughput", "factor with the second largest throughput"
LARGEST, THETA_MIN = "largest factor", "largest theta_min"
EVENNESS, LATE = "largest share over smallest", f"share of steps at {LATE_FACTOR:g}x, late"
ARRIVED, CURVE = "share of steps at 1000x, last tenth", "mean quality over the run"
RANDOM_ENERGY, RANDOM_NORM = "randomk_gravac_fed", "randomk_gravac_norm"
RANDOM_ACCORDION, RANDOM = "randomk_accordion", "Random-k, GraVAC against Accordion"
BUCKET, SHORT_WINDOW = "gravac07_bucket", "gravac07_short"
TWO_POLICIES = (GRAVAC, norm_of(GRAVAC), GEOMETRIC, norm_of(GEOMETRIC))
SWEPT = tuple(method for method in EPS_SWEEP if method not in GRAVAC_ROWS)


class Shown(NamedTuple):
    """A figure: its ``model``, the ``claims`` on its rows, the rows whose factors are shown, other rows, and
    the ``notes`` that it has (by place)."""

    model: str
    claims: Callable[[str], Iterator[Claim]]
    methods: tuple[str, ...] = tuple(GRAVAC_ROWS)
    others: tuple[str, ...] = SWEPT
    notes: slice = slice(0)
    about: str = "convergence and compression factors"


def _share(row: str, factor: float, above: float = g.MOSTLY, below: float = math.inf) -> Check:
    return Check(SHARE, row, above=above, below=below, setting=at_factor(factor))


def _is(quantity: str, row: str, factor: float) -> Check:
    return near(Check(quantity, row), factor, 0.5)


def _figure_7(model: str) -> Iterator[Claim]:
    loose, strict = row_id(model, GRAVAC), row_id(model, GRAVAC_STRICT)
    say = partial(WORDS.claim, of=model)
    both = [
        say("even", *(_share(strict, factor, *EVEN) for factor in (10, 1000)), ours=True),
        say("theta_min", _is(THETA_MIN, strict, 10), premises=g.compressed(model, GRAVAC_STRICT)),
        say("mostly", _share(loose, 1000)),
    ]
    yield from g.both_gains(both)
    premises = g.compressed(model, GRAVAC, SHORT_WINDOW)
    yield say("window", g.better(model, GRAVAC, SHORT_WINDOW), premises=premises)
    yield from (*_throughput(model), *_of_eps(model))


def _figure_8(model: str) -> Iterator[Claim]:
    loose, strict = row_id(model, GRAVAC), row_id(model, GRAVAC_STRICT)
    say = partial(WORDS.claim, of=model)
    gain = Check(AT_GAIN, loose, above=EPS, setting=at_factor(40))
    given: dict[str, Any] = {"premises": (_share(loose, 40, 0.0),), "assumed": g.ASSUMED}
    both = [
        say("tight", _share(strict, 10)),
        say("loose", _is(MOST, loose, 40), _is(RUNNER_UP, loose, 1000)),
        say("second", _is(SECOND, loose, 40), gain, **given),
        say("arrives", Check(ARRIVED, loose, above=g.MOSTLY)),
    ]
    yield from (*g.both_gains(both), *_of_eps(model))


def _figure_9(model: str) -> Iterator[Claim]:
    rows = (row_id(model, method) for method in (GRAVAC, GRAVAC_STRICT))
    mostly = WORDS.claim("both", *(_share(row, 1000) for row in rows), id=f"{model}.mostly")
    yield from (*g.both_gains([mostly]), *_throughput(model), *_of_eps(model))


def _throughput(model: str) -> Iterator[Claim]:
    row = row_id(model, GRAVAC)
    given: dict[str, Any] = {"premises": (_share(row, 1000, 0.0),), "assumed": g.ASSUMED}
    largest = WORDS.claim(
        "throughput", _is(BEST, row, 1000), of=model, ours=True, called=MODELS[model], **given
    )
    return g.both_gains([largest])


def _of_eps(model: str) -> Iterator[Claim]:
    """What is sent at both eps, and the sweep of eps. By how much less is sent than in dense training is
    judged on Table II's page, which has more seeds."""
    larger, smaller = (REDUCTIONS[model][method] for method in (GRAVAC, GRAVAC_STRICT))
    least = min(g.COMPRESSED_FROM, math.sqrt(larger / smaller))  # 289x and 279x are 1.04x apart
    say = partial(WORDS.claim, of=model, called=MODELS[model], larger=larger, smaller=smaller)
    yield from g.both_gains([say("eps", fewer(model, GRAVAC, GRAVAC_STRICT, least))])
    lowest, high = next(iter(EPS_SWEEP)), norm_of(GRAVAC_STRICT)
    yield say("small_eps", g.better(model, high, lowest), premises=g.compressed(model, lowest))


def _figure_10(model: str) -> Iterator[Claim]:
    say, slow, reduction = WORDS.claim, row_id(model, GEOMETRIC), REDUCTIONS[model][GEOMETRIC]
    curve = Check(CURVE, row_id(model, GRAVAC), slow)
    premises = g.compressed(model, GRAVAC, GEOMETRIC)
    floats = fewer_floats(model, GEOMETRIC, reduction)
    both = [
        say("geometric.similar", Check(EVENNESS, slow, below=SIMILAR), ours=True),
        say("geometric.late", Check(LATE, slow, above=g.MOSTLY)),
        say("geometric.slower", curve, premises=premises),
        say("volume", floats, of=slow, ours=True, reduction=reduction),
    ]
    return g.both_gains(both)


def _figure_11(model: str) -> Iterator[Claim]:
    say, why = WORDS.claim, WORDS.notes[2].arithmetic
    energy, norm = row_id(model, RANDOM_ENERGY), row_id(model, RANDOM_NORM)
    better = Check(g.QUALITY, energy, row_id(model, RANDOM_ACCORDION))
    sent: dict[str, Any] = {
        "premises": (_share(energy, DENSEST, 0.0),),
        "assumed": g.ASSUMED,
        "id": "throughput",
    }
    reduction = fewer_floats(model, RANDOM_ENERGY, RANDOM_REDUCTION)
    printed = [
        say("reduction", reduction, ours=True, reduction=RANDOM_REDUCTION, cannot_follow=why),
        say("better", better),
        say("quality", near(better, RANDOM_LEAD, RANDOM_LEAD / 2), ours=True),
        say("factors", _is(MOST, energy, DENSEST), _is(LARGEST, energy, RANDOM_FACTORS[-1])),
        say("random", _is(BEST, energy, DENSEST), ours=True, **sent),
    ]
    yield say("energy.dense", _share(energy, 1, NEARLY_ALL), ours=True)
    yield say("norm.compresses", _share(norm, 1, -math.inf, g.MOSTLY), ours=True)
    yield printed[0]
    yield from (g.of_norm(claim, {energy: norm}) for claim in printed)


SHOWN = {
    7: Shown(RESNET101, _figure_7, others=(*SWEPT, BUCKET, SHORT_WINDOW), notes=slice(1)),
    8: Shown(VGG16, _figure_8),
    9: Shown(LSTM, _figure_9),
    10: Shown(RESNET101, _figure_10, TWO_POLICIES, (), slice(1, 2)),
    11: Shown(
        RESNET101,
        _figure_11,
        (RANDOM_ENERGY, RANDOM_NORM),
        (RANDOM_ACCORDION,),
        slice(2, 4),
        RANDOM,
    ),
}
CLAIMS = {number: tuple(shown.claims(shown.model)) for number, shown in SHOWN.items()}
KNOWN = g.PRINTED_FLOATS | {
    (row_id(RESNET101, method), g.FEWER[g.FLOATS]): RANDOM_REDUCTION for method in SHOWN[11].methods
}

# -- numbers


def _evenness(run: Run) -> float:
    """The largest share of the figure's factors over the smallest, infinite where one is missing."""
    found = g.factor_table(run, SIMILAR_FACTORS)[SHARE].reindex(SIMILAR_FACTORS)
    return float(found.max() / found.min()) if found.min() else math.inf


def _share_after(run: Run, factor: float, step: float) -> float:
    late = g.column(run, "factor")[g.column(run, "step") > step]
    return float((late == factor).mean()) if late.size else math.nan


def _late(run: Run) -> float:
    before = WINDOWS_BEFORE_LATE * float(run.setting("policy.window", math.nan))
    return _share_after(run, LATE_FACTOR, before)


def _numbers(one: g.Course) -> pd.DataFrame:
    """Everything that tables and claims say of these runs."""
    ranks = {
        MOST: (SHARE, 0),
        RUNNER_UP: (SHARE, 1),
        BEST: (THROUGHPUT, 0),
        SECOND: (THROUGHPUT, 1),
    }
    largest = {LARGEST: "factor", THETA_MIN: "theta_min"}
    quantities = {
        CURVE: Quantity(one.metric.unit, lambda run: float(one.quality(run).mean())),
        **{n: Quantity("x", partial(g.ranked, by=by, place=p)) for n, (by, p) in ranks.items()},
        **{n: Quantity("x", partial(g.largest, name=name)) for n, name in largest.items()},
        EVENNESS: Quantity("x", _evenness),
        LATE: Quantity("", _late),
        ARRIVED: Quantity("", lambda run: _share_after(run, 1000, 0.9 * run.last("step"))),
    }
    decided = [run for run in one.runs if not run.decisions.empty]
    return frame.join(g.measure(one, quantities), g.by_factor(decided, (1, 10, DENSEST, 40, 1000)))


# -- the page


def page(number: int, runs: Sequence[Run], scale: str) -> Page:
    """The page of a figure. Raises UserError if the runs are not alike."""
    shown = SHOWN[number]
    (one,) = g.courses(runs, scale, (shown.model,), (DENSE, *shown.methods, *shown.others))
    found, looks = _numbers(one), gravac.looks(one.model, (DENSE, *shown.methods, *shown.others))
    factors = g.factors_of(one.of(*shown.methods))
    names = {factor: "dense" if factor == 1 else f"{factor:g}x" for factor in factors}
    labels = {row: look.label for row, look in looks.items()}
    own = {row_id(one.model, method): labels[row_id(one.model, method)] for method in shown.methods}

    def by_factor(
        quantity: str, form: Callable[[Sequence[float]], str] | None = None
    ) -> pd.DataFrame:
        columns = [
            Column(name, quantity, form, at_factor(factor)) for factor, name in names.items()
        ]
        return pivot(found, own, columns)

    heights = {
        row: [100 * g.mean(np.array(frame.of(found, SHARE, row, at_factor(f)))) for f in factors]
        for row in own
    }
    sent = (
        frame.seeds(one.final),
        Column(f"final {one.metric.label}", one.final, 2),
        Column("dense steps", SHARE, percent, at_factor(1)),
        *(Column(name, name) for name in (LARGEST, MOST)),
        *g.sent_columns(KNOWN),
    )
    keys = (f"policy.{key}" for key in ("gain", "smoothing", "freeze", "throughput"))
    title = f"figure {number}: {one.family}, compression factors"
    y = "share of steps (%)"
    drawn = [
        g.quality_panel(one, gravac.looks(one.model, (DENSE, *shown.methods))),
        panels.panel("steps by factor", panels.bars(list(names.values()), heights, looks), y=y),
    ]
    return g.made(
        WORDS, scale, one.runs, found,
        [
            Section("What is sent", pivot(found, labels, sent)),
            Section("Steps by factor", by_factor(SHARE, percent)),
            Section("Compression throughput by factor", by_factor(THROUGHPUT)),
        ],
        CLAIMS[number], head=g.head(one), printed=KNOWN,
        said={"number": number, "model": MODELS[shown.model], "about": shown.about},
        notes=WORDS.notes[shown.notes], choices=g.choices(*keys),
        figures={f"fig{number}": g.drawn(title, one.runs, scale, drawn, columns=2, legend=3)},
    )  # fmt: skip


ARTIFACTS = {
    f"fig{number}": SimpleNamespace(page=partial(page, number), POOL="training") for number in SHOWN
}
