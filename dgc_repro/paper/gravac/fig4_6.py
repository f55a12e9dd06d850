"""GraVAC's figures 4 to 6: norms before and after compression, quality and gain at fixed 10x and 1000x."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

from dgc_repro.paper import gravac, panels, plot
from dgc_repro.paper.artifact import Artifact, Shown, drawing
from dgc_repro.paper.claims import Check, Claim, near
from dgc_repro.paper.frame import Quantity, seeds
from dgc_repro.paper.gravac import DATA, DENSE, FAMILIES, LSTM, MODELS, RESNET101, VGG16, row_id
from dgc_repro.paper.gravac import shared as g
from dgc_repro.paper.gravac.shared import ENERGY, GAIN, NORM, PERPLEXITY, QUALITY
from dgc_repro.paper.page import Template
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
GROWTH = {kind: f"growth of the {name}" for kind, name in GAIN.items()}
BEFORE, AFTER = "norm before compression", "norm after compression"
NEAR_ONE = 0.1
"""How near a gain near 1.0 is. Ours."""
LSTM_GAIN, HALF_DECIMAL = (0.8, 0.9), 0.05
LOW_GAIN = 0.5
"""A low gain: more than half of the gradient's energy stays behind. Ours."""
TABLE_2_LOSS = 80.4 - 78.6
"""Points that ResNet101 loses between DGC 10x and DGC 1000x in Table II."""
WORDS = Template.read(__file__)


def gain_of(kind: str, part: str = "") -> str:
    """The quantity of a mean gain."""
    return f"{GAIN[kind]}, {part}" if part else GAIN[kind]


def _claims(model: str) -> Iterator[Claim]:
    dense, weak, strong = (row_id(model, method) for method in LOOK)
    say = partial(
        WORDS.claim, model=MODELS[model], where=f"figure {FIGURE[model]}", near_one=NEAR_ONE, low=LOW_GAIN,
        loss=TABLE_2_LOSS,
    )  # fmt: skip
    for kind in GAIN:
        gain = gain_of(kind)
        checks = {"10x": near(Check(gain, weak), 1.0, NEAR_ONE), "order": Check(gain, weak, strong)}
        if model == RESNET101:
            checks["low"] = Check(gain_of(kind, EARLY), strong, below=LOW_GAIN, above=-math.inf)
            checks["grows"] = Check(GROWTH[kind], strong)
        if model == LSTM:
            low, high = LSTM_GAIN
            checks["1000x"] = Check(gain, strong, None, low - HALF_DECIMAL, high + HALF_DECIMAL)
        end, which = (".norm", " (norm gain)") if kind == NORM else ("", "")
        for name, check in checks.items():
            yield say(
                name, check, id=f"{model}.{name}{end}", gain=which, ours=name in ("10x", "low")
            )
    if model == RESNET101:
        lower = (Check(QUALITY, row, strong, above=TABLE_2_LOSS / 2) for row in (dense, weak))
        yield say("considerable", *lower, of=model, ours=True)
    elif model == LSTM:
        pairs = ((weak, dense), (strong, weak))
        order = (Check(PERPLEXITY, *two, above=1.0, ratio=True) for two in pairs)
        yield say("ranking", *order, of=model)
    else:
        close = Check(QUALITY, dense, strong, above=-TABLE_2_LOSS, below=TABLE_2_LOSS)
        yield say("close", close, of=model, ours=True)


def mean_gain(run: Run, kind: str, part: str = "") -> float:
    """The mean gain of the first steps, of the later ones, or of all."""
    values, is_early = g.gains(run, kind), g.column(run, "step") <= g.at(run, LOW_STEPS)
    return g.mean(values[is_early == (part == EARLY)] if part and values.size else values)


def growth(run: Run, kind: str) -> float:
    """The mean gain of the later steps less that of the first ones."""
    return mean_gain(run, kind, LATER) - mean_gain(run, kind, EARLY)


def _quality(run: Run) -> float:
    return run.last(_metric([run]).column)


def _metric(runs: Sequence[Run]) -> g.Metric:
    """The quality of one model's runs."""
    named = "perplexity" if runs and runs[0].model == LSTM else "accuracy"
    return g.METRICS[str(runs[0].setting("stopping.metric", named) if runs else named)]


def _panels(shown: Shown) -> list[panels.Panel]:
    """Norms at 10x and at 1000x; quality; gains."""

    def by_step(
        row: str, of: Callable[[Run], g.Series], label: str = "", **style: str
    ) -> panels.Draw:
        seeds = [(g.column(run, "step"), of(run)) for run in shown.runs if run.row == row]
        return panels.lines(
            seeds, label, linewidth=1.0, **{"color": shown.looks[row].colour, **style}
        )

    before, after = (partial(g.column, name=f"norm_{when}") for when in ("before", "after"))
    _, *compressed = shown.looks.items()
    norms = [
        panels.panel(
            f"norm: {look.label}", by_step(row, before, "before (BC)", color=plot.GREEN),
            by_step(row, after, f"after (AC), {look.label}"), x="iteration", y="norm", log="y",
        )
        for row, look in compressed
    ]  # fmt: skip
    gains = [
        by_step(row, partial(g.gains, gain=kind), linestyle=dashes)
        for row, _ in compressed
        for kind, dashes in ((ENERGY, "-"), (NORM, ":"))
    ]
    metric, y = _metric(shown.runs), "gain: solid energy, dotted norm"
    curves, log = shown.curves(metric.column), "y" if metric.sign < 0 else ""
    quality = panels.panel(metric.label, curves, x="iteration", y=metric.axis, log=log)
    return [*norms, quality, panels.panel("gain", *gains, x="iteration", y=y, ylim=(0, None))]


def _artifact(model: str) -> Artifact:
    """The page of one model's figure."""
    number, family, final = FIGURE[model], FAMILIES[model], PERPLEXITY if model == LSTM else QUALITY
    gains = {
        gain_of(kind, part): Quantity("", partial(mean_gain, kind=kind, part=part))
        for kind in GAIN
        for part in ("", EARLY, LATER)
    }
    return Artifact(
        __file__,
        rows={row_id(model, m): replace(look, label=f"{family} {look.label}") for m, look in LOOK.items()},
        quantities={
            final: Quantity("" if model == LSTM else "%", _quality),
            **gains,
            **{name: Quantity("", partial(growth, kind=kind)) for kind, name in GROWTH.items()},
            BEFORE: Quantity("", lambda run: g.mean(g.column(run, "norm_before"))),
            AFTER: Quantity("", lambda run: g.mean(g.column(run, "norm_after"))),
        },
        tables={"Quality, gain and norm": (seeds(final), final, *gains, BEFORE, AFTER)},
        claims=tuple(_claims(model)),
        data=DATA,
        figures={
            f"fig{number}": drawing(
                f"GraVAC, figure {number}: {family} at fixed factors", _panels,
                columns=2, size=(4.8, 3.2), legend=3,
            )
        },
        said=lambda shown: {"number": number, "model": MODELS[model], "thinning": g.thinning(shown.runs)},
        alike=g.ALIKE,
        first="factor",
    )  # fmt: skip


ARTIFACTS = {
    f"fig{number}": SimpleNamespace(page=_artifact(model), POOL="training")
    for model, number in FIGURE.items()
}
