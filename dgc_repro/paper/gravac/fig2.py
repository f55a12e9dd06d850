"""GraVAC's figure 2: speedup to the target by compression factor, over 10x of the same compressor.

The sources have text only: known points of the figure are claims, and two contradict Table II.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pandas as pd

from dgc_repro.paper import frame, panels
from dgc_repro.paper.artifact import BARS, Shown, drawing
from dgc_repro.paper.claims import Check, Claim
from dgc_repro.paper.frame import Column, Quantity
from dgc_repro.paper.gravac import COMPRESSORS, DENSE, FACTORS, LOOKS, LSTM, MODELS, VGG16, row_id
from dgc_repro.paper.gravac import training as g
from dgc_repro.paper.page import Template

POOL = "training"
SPEEDUP, SHORT = "speedup to the target", "short of the target"
BEST_TOPK = dict(zip(MODELS, (100, 1000, 10), strict=True))
"""The factor at which Top-k meets each model's target soonest."""
WORDS = Template.read(__file__)
AT_10_ONLY = dict(zip((VGG16, LSTM), (note.arithmetic for note in WORDS.notes), strict=True))
"""Why the models that meet their target with Random-k at 10x alone contradict Table II."""


def claims(one: g.Course) -> Iterator[Claim]:
    """The claims on a model: Top-k's best factor, and Random-k."""
    model, called, best = one.model, MODELS[one.model], BEST_TOPK[one.model]
    soonest = [
        g.sooner(g.TARGET_SECONDS, model, f"topk{best}", f"topk{factor}")
        for factor in FACTORS
        if factor != best
    ]
    yield WORDS.claim("topk", *soonest, of=model, assumed=g.ASSUMED, model=called, best=best)
    why = AT_10_ONLY.get(model, "")
    checks = [Check(SHORT, row_id(model, f"randomk{factor}")) for factor in FACTORS]
    if why:
        checks[0] = replace(checks[0], above=-math.inf, below=0.0)
    met = "met at 10x only" if why else "not met at any factor"
    yield WORDS.claim("randomk", *checks, of=model, cannot_follow=why, model=called, met=met)


def _numbers(one: g.Course) -> pd.DataFrame:
    """With how far the best epoch stays short, and speedups over 10x (0: target never reached)."""

    sign, target = one.metric.sign, one.target
    quantities = {
        SHORT: Quantity(
            "%",
            lambda run: 100 * (sign * target - float(np.nanmax(sign * one.quality(run)))) / target,
        ),
        g.TARGET_SECONDS: g.seconds(lambda run: g.met_at(one.quality(run), target, sign)),
    }
    found = g.measure(one, quantities if np.isfinite(target) else {})
    parts = [found]
    for name in COMPRESSORS:
        own = found[found["row"].str.startswith(base := row_id(one.model, f"{name}10"))]
        over = frame.relative(own, g.TARGET_SECONDS, base, inverse=True, name=SPEEDUP)
        parts.append(over[np.isfinite(over["value"])])
    return frame.join(*parts)


def _panel(shown: Shown, one: g.Course) -> panels.Panel:
    """How far rows stay short of the target by factor, a line for each compressor."""
    drawn = []
    for name, label in COMPRESSORS.items():
        look = replace(LOOKS[f"{name}1000"], label=label)
        rows = {float(factor): row_id(one.model, f"{name}{factor}") for factor in FACTORS}
        short = {factor: frame.of(shown.frame, SHORT, row) for factor, row in rows.items()}
        drawn += [panels.series(short, **look.line)] if any(short.values()) else []
    x, y, at = "compression factor", "short of the target by (%)", panels.rule("y", 0.0)
    return panels.panel(f"{one.name}: {one.metric.label}", at, *drawn, x=x, y=y, log="x")


page = g.page(
    __file__,
    (DENSE, *(f"{name}{factor}" for name in COMPRESSORS for factor in FACTORS)),
    claims,
    numbers=_numbers,
    quantities=(SHORT, g.TARGET_SECONDS, SPEEDUP),
    tables={
        "Time to the target, and speedup over 10x": (
            Column("short of it by %", SHORT, 1),
            Column("seconds", g.TARGET_SECONDS),
            Column("speedup", SPEEDUP, frame.times),
        )
    },
    notes=(*WORDS.notes, g.PERPLEXITY_NOTE),
    choices=g.CHOICES,
    figures={
        "fig2": drawing(
            "GraVAC, figure 2: how far the best epoch stays short of the target",
            lambda shown: [_panel(shown, one) for one in g.courses(shown.runs, shown.scale)],
            f"At 0 or below, the target was reached. {BARS}",
        )
    },
)
