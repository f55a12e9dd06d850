"""GraVAC's figures 4 to 6: norms before and after compression, quality and gain at fixed 10x and 1000x."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pandas as pd

from dgc_repro.paper import facts, gravac, panels, plot
from dgc_repro.paper.claims import Check, Claim, near
from dgc_repro.paper.frame import Column, Quantity, join, measure, pivot, seeds, signed
from dgc_repro.paper.gravac import DENSE, LSTM, MODELS, RESNET101, VGG16, row_id
from dgc_repro.paper.gravac import shared as g
from dgc_repro.paper.gravac.shared import ENERGY, GAIN, LESS_DENSE, NORM, PERPLEXITY, QUALITY
from dgc_repro.paper.page import Page, Section, Template
from dgc_repro.paper.plot import Look
from dgc_repro.paper.records import Run

FIGURE = {RESNET101: 4, VGG16: 5, LSTM: 6}
WEAK, STRONG = "dgc10_gains", "dgc1000_gains"
LOOK = {
    DENSE: gravac.LOOKS[DENSE],
    WEAK: Look("DGC 10x", plot.BLUE, "^"),
    STRONG: Look("DGC 1000x", plot.ORANGE, "s"),
}
LOW_STEPS = 1_000
EARLY, LATER = f"first {LOW_STEPS:,} steps", "later steps"
SD = {kind: f"deviation of the {name}" for kind, name in GAIN.items()}
GROWTH = {kind: f"growth of the {name}" for kind, name in GAIN.items()}
OF_NORM = {names[ENERGY]: names[NORM] for names in (GAIN, SD, GROWTH)}
BEFORE, AFTER = "norm before compression", "norm after compression"
NEAR_ONE = 0.1
"""How near a gain near 1.0 is. Ours."""
LSTM_GAIN, HALF_DECIMAL = (0.8, 0.9), 0.05
LOW_GAIN = 0.5
"""A low gain: more than half of the gradient's energy stays behind. Ours."""
TABLE_2_LOSS = 80.4 - 78.6
"""Points that ResNet101 loses between DGC 10x and DGC 1000x in Table II."""
CROSSED = 90.0
WORDS = Template.read(__file__)


def _say(model: str) -> Callable[..., Claim]:
    points = f"{TABLE_2_LOSS:.1f} points that ResNet101 loses"
    return partial(
        WORDS.claim, of=model, model=MODELS[model], where=f"figure {FIGURE[model]}", near_one=NEAR_ONE,
        low=LOW_GAIN, loss=f"the {points} in Table II between DGC 10x and DGC 1000x",
    )  # fmt: skip


def _of_gains(model: str) -> Iterator[Claim]:
    """The claims on the gain, as energy."""
    weak, strong = row_id(model, WEAK), row_id(model, STRONG)
    gain, sd, growth = (names[ENERGY] for names in (GAIN, SD, GROWTH))
    say = _say(model)
    yield say("10x", near(Check(gain, weak), 1.0, NEAR_ONE), ours=True)
    yield say("order", Check(gain, weak, strong))
    if model == RESNET101:
        yield say("low", Check(gain, strong, None, -math.inf, LOW_GAIN, EARLY), ours=True)
        yield say("grows", Check(growth, strong))
        yield say("oscillates", Check(sd, strong, weak, setting=LATER))
        yield say("below", Check(gain, weak, strong, setting=LATER))
    if model == LSTM:
        low, high = LSTM_GAIN
        yield say("1000x", Check(gain, strong, None, low - HALF_DECIMAL, high + HALF_DECIMAL))


def _of_quality(model: str) -> Iterator[Claim]:
    """The claims on how training ends."""
    dense, weak, strong = (row_id(model, method) for method in LOOK)
    say = _say(model)
    if model == RESNET101:
        checks = (Check(QUALITY, row, strong, above=TABLE_2_LOSS / 2) for row in (dense, weak))
        yield say("considerable", *checks, ours=True)
    elif model == LSTM:
        pairs = ((weak, dense), (strong, weak))
        yield say("ranking", *(Check(PERPLEXITY, *two, above=1.0, ratio=True) for two in pairs))
    else:
        little = Check(QUALITY, weak, strong, above=-math.inf, below=TABLE_2_LOSS)
        yield say("robust", little, ours=True)
        close = Check(QUALITY, dense, strong, above=-TABLE_2_LOSS, below=TABLE_2_LOSS)
        yield say("close", close, ours=True)


CLAIMS = {
    model: (
        *_of_gains(model),
        *(g.of_norm(claim, quantities=OF_NORM) for claim in _of_gains(model)),
        *_of_quality(model),
    )
    for model in MODELS
}
CROSSES = WORDS.claim("crosses", Check(QUALITY, row_id(VGG16, STRONG), above=CROSSED), of=VGG16)


def _frame(runs: Sequence[Run], one: g.Course) -> pd.DataFrame:
    """Gains and norms of each run and of its first and later steps, and final quality."""

    def of_steps(run: Run, of: Callable[[g.Series], float], kind: str, early: bool) -> float:
        """Of the finite gains of the first, or of the later steps."""
        values, first = g.gains(run, kind), g.column(run, "step") <= g.at(run, LOW_STEPS)
        chosen = values[np.isfinite(values) & (first == early)] if values.size else values
        return of(chosen) if chosen.size else math.nan

    def of_kind(kind: str) -> pd.DataFrame:
        first = partial(of_steps, of=g.mean, kind=kind, early=True)
        later = partial(of_steps, of=g.mean, kind=kind, early=False)
        spread = partial(of_steps, of=lambda values: float(values.std()), kind=kind, early=False)
        whole: Callable[[Run], float] = lambda run: g.mean(g.gains(run, kind))  # noqa: E731
        return join(
            g.by_setting(runs, GAIN[kind], "", {"": whole, EARLY: first, LATER: later}),
            g.by_setting(runs, SD[kind], "", {LATER: spread}),
            measure(runs, {GROWTH[kind]: Quantity("", lambda run: later(run) - first(run))}),
        )

    unit = one.metric.unit
    quantities = {
        BEFORE: Quantity("", lambda run: g.mean(g.column(run, "norm_before"))),
        AFTER: Quantity("", lambda run: g.mean(g.column(run, "norm_after"))),
        one.final: Quantity(unit, one.last),
        LESS_DENSE: g.less_dense(one, unit),
    }
    return join(*map(of_kind, GAIN), measure(runs, quantities))


def page(model: str, runs: Sequence[Run], scale: str) -> Page:
    """The page of one model's figure. Raises UserError if the runs are not alike."""
    rows = {row_id(model, method): look.label for method, look in LOOK.items()}
    (one,) = g.courses([run for run in runs if run.row in rows], scale, (model,))
    own = g.compared(one.runs)
    found, family, number = _frame(own, one), gravac.FAMILIES[model], FIGURE[model]
    crosses = (CROSSES,) if model == VGG16 and scale == facts.PAPER_SCALE else ()
    title = f"{gravac.PAPER.label}, figure {number}: {family} at fixed factors"
    drawn, said = _panels(replace(one, runs=tuple(own))), facts.caption(own, scale)
    return g.made(
        __file__, scale, own, found, [g.which_gain, *_sections(found, rows, one)],
        (*CLAIMS[model], *crosses), labels={row: f"{family} {label}" for row, label in rows.items()},
        head=g.recorded(own), said={"number": number, "model": MODELS[model]},
        figures={
            f"fig{number}": lambda: plot.figure(title, said, drawn, columns=2, size=(4.8, 3.2), legend=3)
        },
    )  # fmt: skip


ARTIFACTS = {
    f"fig{number}": SimpleNamespace(page=partial(page, model), POOL="training")
    for model, number in FIGURE.items()
}


def _sections(found: pd.DataFrame, rows: Mapping[str, str], one: g.Course) -> list[Section]:
    columns = [seeds(GAIN[ENERGY])]
    for kind, name in GAIN.items():
        columns.append(Column(f"{name}: all", GAIN[kind]))
        columns.append(Column(f"{name}: first", GAIN[kind], setting=EARLY))
        columns.append(Column(f"{name}: later", GAIN[kind], setting=LATER))
        columns.append(Column(f"{name}: sd", SD[kind], setting=LATER))
    columns += [Column("norm: before (BC)", BEFORE), Column("norm: after (AC)", AFTER)]
    quality = (
        seeds(one.final),
        Column(f"{one.metric.label} {one.metric.unit}".rstrip(), one.final, 2),
        Column("less dense", LESS_DENSE, signed),
    )
    compressed = dict(list(rows.items())[1:])
    return [
        Section("Gain and norm", pivot(found, compressed, columns, first="factor")),
        Section(
            f"Final {one.metric.label}",
            pivot(found, rows, quality, first="factor"),
            "After the last epoch, paired by seed.",
        ),
    ]


def _panels(one: g.Course) -> list[panels.Panel]:
    """Norms at 10x and at 1000x; quality; gains."""

    def by_step(
        method: str, of: Callable[[Run], g.Series], label: str = "", **line: str
    ) -> panels.Draw:
        seeds = [(g.column(run, "step"), of(run)) for run in one.of(method)]
        return panels.lines(seeds, label, linewidth=1.0, **line)

    def norms(title: str, method: str) -> panels.Panel:
        before, after = (partial(g.column, name=f"norm_{when}") for when in ("before", "after"))
        label, colour = f"after (AC), {LOOK[method].label}", LOOK[method].colour
        return panels.panel(
            title, by_step(method, before, "before (BC)", color=plot.GREEN),
            by_step(method, after, label, color=colour), x="iteration", y="norm of the gradient", log="y",
        )  # fmt: skip

    gains = [
        by_step(method, partial(g.gains, gain=kind), color=LOOK[method].colour, linestyle=dashes)
        for method in (WEAK, STRONG)
        for kind, dashes in ((ENERGY, "-"), (NORM, ":"))
    ]
    recorded = any(np.isfinite(g.gains(run, NORM)).any() for run in one.runs)
    lacks = "gain by iteration" if recorded else "gain (these records lack the norm gain)"
    y = "gain: solid energy, dotted norm"
    return [
        norms("norm at 10x", WEAK),
        norms("norm at 1000x", STRONG),
        g.quality_panel(one, {row_id(one.model, m): look for m, look in LOOK.items()}),
        panels.panel(lacks, *gains, x="iteration", y=y, ylim=(0, None)),
    ]
