"""GraVAC's figures 7 to 11: convergence, the factors that were used, compression throughput by factor.

Figure 11 trains with Random-k, which keeps k of n entries regardless of their values. Its energy gain is
k / n = 1 / CF: at the printed factors it lies below the printed eps, and no step is compressed. Its norm gain
is sqrt(1 / CF) without a residual, and grows with the residual.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from dgc_repro.paper import frame, gravac, panels
from dgc_repro.paper.artifact import Shown, drawing
from dgc_repro.paper.claims import Check, Claim, near
from dgc_repro.paper.frame import Column, Quantity, percent, pivot
from dgc_repro.paper.gravac import (
    DENSE,
    GEOMETRIC,
    GRAVAC,
    GRAVAC_STRICT,
    LSTM,
    MODELS,
    REDUCTIONS,
    RESNET101,
    VGG16,
    row_id,
)
from dgc_repro.paper.gravac import training as g
from dgc_repro.paper.page import Template
from dgc_repro.paper.records import Run

NOTE = "Each bar has the colour of its line, and is hatched where the line is dashed."
WORDS = Template.read(__file__)
EVEN, SIMILAR, NEARLY_ALL, MOSTLY = (0.25, 0.75), 2.0, 0.95, 0.5
"""Ours but the last: two factors are even if each has such a share; densities are similar if none is twice
another; nearly all are all steps but for the beginning of an average; mostly is more than half. That half of
the steps also stands for "from iteration 16,000 on" and for "arrives at" is ours."""
SIMILAR_FACTORS = (10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 640.0)
SECOND_FACTOR, LAST_FACTOR = 40.0, 1000.0
"""Figure 8, eps 0.7: the text has the second largest compression throughput at the one, and the end of
training at the other."""
LATE_FACTOR, WINDOWS_BEFORE_LATE = 1280.0, 8
"""Figure 10 has it from step 16,000 on, after 8 windows of 2,000 steps."""
DENSEST, JUDGED_FACTORS = 12.0, (1.0, 10.0, 12.0, 40.0, 1000.0)
"""Figure 11's factor of most steps; factors whose share is a number also where no step was sent at them."""
RANDOM_FACTORS = (1.5, 3.0, 6.0, DENSEST, 24.0, 48.0)
"""The factors that figure 11 prints as used."""
RANDOM_LEAD, RANDOM_REDUCTION = 78.0 - 20.0, 18.0
"""Printed in figure 11: GraVAC's accuracy less Accordion's, and floats of dense over GraVAC's."""
SHARE, THROUGHPUT = "share of steps", "compression throughput"
MOST, LARGEST = "factor with the most steps", "largest factor"
BEST, SECOND = "factor with the largest throughput", "factor with the second largest throughput"
CURVE, EVENNESS = "mean quality over the run", "largest share over smallest"
LATE = f"share of steps at {LATE_FACTOR:g}x, late"
LAST = f"share of steps at {LAST_FACTOR:g}x, last window"
USED = "factors of figure 11 that were sent"
RANDOM_ENERGY, RANDOM_NORM = "randomk_gravac_fed", "randomk_gravac_norm"
RANDOM_ACCORDION = "randomk_accordion"
KNOWN = g.PRINTED_FLOATS | {
    (row_id(RESNET101, method), g.FEWER[g.FLOATS]): RANDOM_REDUCTION
    for method in (RANDOM_ENERGY, RANDOM_NORM)
}

# -- claims


def at_factor(factor: float) -> str:
    """The setting of a number at one factor."""
    return f"at {factor:g}x"


def _share(row: str, factor: float, above: float = MOSTLY, below: float = math.inf) -> Check:
    return Check(SHARE, row, above=above, below=below, setting=at_factor(factor))


def _of_eps(model: str) -> Iterator[Claim]:
    """Which factors both eps use, what is sent at both, and the sweep of eps. By how much less than in dense
    training is judged on Table II's page, which has more seeds."""
    loose, strict = row_id(model, GRAVAC), row_id(model, GRAVAC_STRICT)
    larger, smaller = (REDUCTIONS(model, method) for method in (GRAVAC, GRAVAC_STRICT))
    say = partial(WORDS.claim, of=model, called=MODELS[model], larger=larger, smaller=smaller)
    if model == RESNET101:
        yield say("even", *(_share(strict, factor, *EVEN) for factor in (10, 1000)), ours=True)
        yield say("mostly", _share(loose, 1000))
    elif model == VGG16:
        yield say("tight", _share(strict, 10))
        second = near(Check(SECOND, loose), SECOND_FACTOR, 0.5)
        ends = Check(LAST, loose, above=MOSTLY)
        yield say("loose", second, ends, assumed=g.ASSUMED, ours=True)
    else:
        yield say("both", _share(loose, 1000), _share(strict, 1000), id=f"{model}.mostly")
    apart = larger / smaller  # 1.04 on the LSTM
    least = min(g.COMPRESSED_FROM, math.sqrt(apart))
    sends_less = g.fewer(model, GRAVAC, GRAVAC_STRICT, least)
    yield say("eps", sends_less, ours=True, least=least, apart=apart)
    lowest, highest = "gravac05_norm", gravac.norm_of(GRAVAC_STRICT)
    ends_worse, premises = g.better(model, highest, lowest), (g.fewer(model, lowest),)
    yield say("small_eps", ends_worse, premises=premises, ours=True)


def _geometric(model: str) -> Iterator[Claim]:
    say, slow, reduction = WORDS.claim, row_id(model, GEOMETRIC), REDUCTIONS(model, GEOMETRIC)
    floats = g.fewer_by(model, GEOMETRIC, reduction)
    yield say("geometric.similar", Check(EVENNESS, slow, below=SIMILAR), ours=True)
    yield say("geometric.late", Check(LATE, slow, above=MOSTLY), ours=True)
    both = (g.fewer(model, GRAVAC), g.fewer(model, GEOMETRIC))
    yield say("geometric.slower", Check(CURVE, row_id(model, GRAVAC), slow), premises=both)
    yield say("volume", floats, of=slow, ours=True, reduction=reduction)


def _random(model: str) -> Iterator[Claim]:
    """What is printed is judged with the norm gain: with the energy gain nothing is compressed."""
    say, why = WORDS.claim, WORDS.notes[2].arithmetic
    energy, norm = row_id(model, RANDOM_ENERGY), row_id(model, RANDOM_NORM)
    better = Check(g.QUALITY, norm, row_id(model, RANDOM_ACCORDION))
    wanted = {MOST: DENSEST, LARGEST: max(RANDOM_FACTORS), USED: len(RANDOM_FACTORS)}
    factors = (near(Check(name, norm), number, 0.5) for name, number in wanted.items())
    is_sent = (g.fewer(model, RANDOM_NORM),)
    sent = partial(say, ours=True, reduction=RANDOM_REDUCTION)
    less = (g.fewer_by(model, one, RANDOM_REDUCTION) for one in (RANDOM_ENERGY, RANDOM_NORM))
    yield say("energy.dense", _share(energy, 1, NEARLY_ALL))
    yield say("norm.compresses", _share(norm, 1, -math.inf, MOSTLY))
    yield sent("reduction", next(less), cannot_follow=why)
    yield sent("reduction.norm", next(less))
    lead = near(better, RANDOM_LEAD, RANDOM_LEAD / 2)
    yield say("better.norm", better, premises=is_sent)
    yield say("quality.norm", lead, premises=is_sent, ours=True, lead=RANDOM_LEAD)
    yield say("factors.norm", *factors)
    best, were_sent = near(Check(BEST, norm), DENSEST, 0.5), (_share(norm, DENSEST, 0.0),)
    yield say("throughput.norm", best, premises=were_sent, assumed=g.ASSUMED, ours=True)


# -- numbers


def factor_table(run: Run, factors: Iterable[float] = ()) -> pd.DataFrame:
    """A line for each factor of what was sent, and for ``factors``: `SHARE` of the recorded steps, and mean
    `THROUGHPUT` (samples a second of the workers whose step is modelled). Factor 1 is dense. There is no line
    where no step is recorded."""
    recorded = run.decisions.reindex(columns=["factor", "throughput"])
    grouped = recorded.replace([np.inf, -np.inf], np.nan).groupby("factor")["throughput"]
    workers = int(run.setting("launch.workers"))
    times = (run.setting("network.as_workers") or workers) / workers
    shares = grouped.size() / grouped.size().sum()
    table = pd.DataFrame({SHARE: shares, THROUGHPUT: times * grouped.mean()})
    wanted = table.index.union(sorted(set(factors))) if len(table) else table.index
    return table.reindex(wanted).fillna({SHARE: 0.0}).rename_axis("factor")


def _evenness(run: Run) -> float:
    """The largest share of the figure's factors over the smallest, infinite where one is missing."""
    found = factor_table(run, SIMILAR_FACTORS)[SHARE].reindex(SIMILAR_FACTORS)
    return float(found.max() / found.min()) if found.min() else math.inf


def _late(run: Run) -> float:
    """The share of `LATE_FACTOR` after the windows before it."""
    after = WINDOWS_BEFORE_LATE * float(run.setting("policy.window", math.nan))
    return g.mean(g.column(run, "factor")[g.column(run, "step") > after] == LATE_FACTOR)


def _last(run: Run) -> float:
    """The share of `LAST_FACTOR` in the last window of the run."""
    step, window = g.column(run, "step"), float(run.setting("policy.window", math.nan))
    is_last = step > run.last("step") - window
    return g.mean(g.column(run, "factor")[is_last] == LAST_FACTOR)


def _used(run: Run) -> float:
    """How many of `RANDOM_FACTORS` were sent; NaN for a run that is not figure 11's."""
    found = factor_table(run, RANDOM_FACTORS)[SHARE].reindex(RANDOM_FACTORS)
    return float((found > 0).sum()) if run.method in (RANDOM_ENERGY, RANDOM_NORM) else math.nan


def _ranked(run: Run, by: str, place: int = 0) -> float:
    """The factor of the largest share or throughput; ``place`` 1: of the second largest. NaN without one."""
    found = factor_table(run)[by].dropna().sort_values(ascending=False, kind="stable")
    return float(found.index[place]) if place < len(found) else math.nan


QUANTITIES = {
    MOST: Quantity("x", partial(_ranked, by=SHARE)),
    BEST: Quantity("x", partial(_ranked, by=THROUGHPUT)),
    SECOND: Quantity("x", partial(_ranked, by=THROUGHPUT, place=1)),
    LARGEST: Quantity("x", lambda run: float(factor_table(run).index.max())),
    EVENNESS: Quantity("x", _evenness),
    LATE: Quantity("", _late),
    LAST: Quantity("", _last),
    USED: Quantity("factors", _used),
}


def _numbers(one: g.Course) -> pd.DataFrame:
    """Everything that tables and claims say of these runs."""
    decided = [run for run in one.runs if not run.decisions.empty]
    sent = {*JUDGED_FACTORS, *(factor for run in decided for factor in factor_table(run).index)}
    units = {SHARE: (SHARE, ""), THROUGHPUT: (THROUGHPUT, "samples/s", "modelled")}
    curve = Quantity(one.metric.unit, lambda run: float(one.quality(run).mean()))
    found = [g.measure(one, {CURVE: curve, **QUANTITIES})]
    for run in decided:
        table = factor_table(run, sent).assign(row=run.row, seed=run.seed)
        found.append(frame.longer(table.assign(setting=table.index.map(at_factor)), units))
    return frame.join(*found)


# -- the pages


class Figure(NamedTuple):
    """A figure: its ``model``, the ``claims`` on its rows, the rows that are drawn, other rows, and the
    ``notes`` that it has (by place)."""

    model: str
    claims: Callable[[str], Iterator[Claim]] = _of_eps
    methods: tuple[str, ...] = gravac.GRAVAC_ROWS
    others: tuple[str, ...] = ("gravac05_norm", "gravac06_norm", "gravac08_norm", "gravac095_norm")
    notes: slice = slice(0)
    about: str = "convergence and compression factors"


_short = ("gravac07_bucket", "gravac07_short")
_policies = tuple(method for one in (GRAVAC, GEOMETRIC) for method in (one, gravac.norm_of(one)))
_fed, _about = (RANDOM_ENERGY, RANDOM_NORM, RANDOM_ACCORDION), "Random-k, GraVAC against Accordion"
FIGURES = {
    7: Figure(RESNET101, others=(*Figure._field_defaults["others"], *_short), notes=slice(1)),
    8: Figure(VGG16),
    9: Figure(LSTM),
    10: Figure(RESNET101, _geometric, _policies, (), slice(1, 2)),
    11: Figure(RESNET101, _random, _fed, (), slice(2, 4), _about),
}


def _own(shown: Shown, methods: Sequence[str]) -> tuple[dict[str, str], dict[float, str]]:
    """The rows of a figure that record factors, and these factors, with their labels."""
    found = [(run.row, factor_table(run).index) for run in shown.runs if run.method in methods]
    factors = sorted({factor for _, of in found for factor in of})
    names = {factor: "dense" if factor == 1 else f"{factor:g}x" for factor in factors}
    return {row: shown.looks[row].label for row, of in found if len(of)}, names


def _by_factor(shown: Shown, of: Column, methods: Sequence[str]) -> pd.DataFrame:
    """A column of each row for each factor."""
    rows, names = _own(shown, methods)
    columns = [
        replace(of, heading=name, setting=at_factor(factor)) for factor, name in names.items()
    ]
    return pivot(shown.frame, rows, columns)


def _panels(shown: Shown, methods: Sequence[str]) -> list[panels.Panel]:
    """Quality, and steps by factor: bars have the colours of the lines."""
    rows, names = _own(shown, methods)
    heights = {
        row: [
            100 * g.mean(np.array(frame.of(shown.frame, SHARE, row, at_factor(f)))) for f in names
        ]
        for row in rows
    }
    bars = {row: replace(shown.looks[row], label="_") for row in rows}
    drawn = panels.bars(list(names.values()), heights, bars)
    found = g.courses(shown.runs, shown.scale)
    looks = {
        row: look for row, look in shown.looks.items() if row.partition(".")[2] in (DENSE, *methods)
    }
    curves = [one.curves(looks) for one in found]
    return [*curves, panels.panel("steps by factor", drawn, y="share of steps (%)")]


def _artifact(number: int, of: Figure) -> SimpleNamespace:
    """The artifact of one figure."""
    by_factor = {
        "Steps by factor": Column("", SHARE, percent),
        "Compression throughput by factor": Column("", THROUGHPUT),
    }
    final, drawn = g.FINAL[of.model], partial(_panels, methods=of.methods)
    layout: dict[str, Any] = {"columns": 2, "size": (5.0, 3.6), "legend": 3}
    figure = drawing(f"GraVAC, figure {number}: {of.about}", drawn, NOTE, **layout)
    page = g.page(
        __file__,
        (DENSE, *of.methods, *of.others),
        lambda one: g.both_gains(of.claims(one.model)),
        numbers=_numbers,
        quantities=(CURVE, *QUANTITIES, SHARE, THROUGHPUT),
        models=(of.model,),
        tables={
            "What is sent": (
                *(frame.seeds(final), g.FINAL_COLUMN[final]),
                Column("dense steps", SHARE, percent, at_factor(1)),
                *(LARGEST, MOST, *g.SENT_COLUMNS),
            ),
            **{
                title: partial(_by_factor, of=column, methods=of.methods)
                for title, column in by_factor.items()
            },
        },
        printed=KNOWN,
        notes=WORDS.notes[of.notes],
        choices=g.POLICY_CHOICES,
        said={"number": number, "model": MODELS[of.model], "about": of.about},
        figures={f"fig{number}": figure},
    )
    return SimpleNamespace(page=page, POOL="training")


ARTIFACTS = {f"fig{number}": _artifact(number, of) for number, of in FIGURES.items()}
