"""GraVAC's figure 2: speedup to the target by compression factor, over 10x of the same compressor.

The sources have text only: known points of the figure are claims, and two contradict Table II.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd

from dgc_repro.paper import frame, gravac, panels
from dgc_repro.paper.claims import Check, Claim
from dgc_repro.paper.frame import Column, Quantity, pivot
from dgc_repro.paper.gravac import (
    COMPRESSORS,
    DENSE,
    FACTORS,
    LABELS,
    LOOKS,
    LSTM,
    MODELS,
    RESNET101,
    VGG16,
    row_id,
)
from dgc_repro.paper.gravac import shared as g
from dgc_repro.paper.gravac.shared import TARGET_SECONDS
from dgc_repro.paper.page import Page, Section, Template
from dgc_repro.paper.records import Run

POOL = "training"
SPEEDUP, SHORT = "speedup to the target", "short of the target"
BEST_TOPK = {RESNET101: 100, VGG16: 1000, LSTM: 10}
"""The factor at which Top-k meets each model's target soonest."""
STATIC = tuple(f"{name}{factor}" for name in COMPRESSORS for factor in FACTORS)
WORDS = Template.read(__file__)
AT_10_ONLY = dict(zip((VGG16, LSTM), (note.arithmetic for note in WORDS.notes), strict=True))
"""Why the models that meet their target with Random-k at 10x alone contradict Table II."""


def _claims() -> Iterator[Claim]:
    for model, best in BEST_TOPK.items():
        others = [f"topk{factor}" for factor in FACTORS if factor != best]
        checks = [g.sooner(TARGET_SECONDS, model, f"topk{best}", other) for other in others]
        words = {"model": MODELS[model], "best": best}
        yield WORDS.claim("topk", *checks, of=model, assumed=g.ASSUMED, **words)
    for model, called in MODELS.items():
        why, checks = AT_10_ONLY.get(model, ""), []
        for factor in FACTORS:
            ends = (-math.inf, 0.0) if why and factor == 10 else (0.0, math.inf)
            checks.append(Check(SHORT, row_id(model, f"randomk{factor}"), None, *ends))
        words = {"model": called, "met": "met at 10x only" if why else "not met at any factor"}
        yield WORDS.claim("randomk", *checks, of=model, cannot_follow=why, **words)


CLAIMS = tuple(_claims())


def page(runs: Sequence[Run], scale: str) -> Page:
    """The page of the finished runs of one scale. Raises UserError if those of a model are not alike."""
    found = g.courses(runs, scale, methods=(DENSE, *STATIC))
    own, table = g.runs_of(found), frame.join(*map(_measure, found))
    columns = (
        Column("short of it by %", SHORT, 1),
        Column("seconds", TARGET_SECONDS),
        Column("speedup", SPEEDUP, frame.times),
    )
    rows = {
        row_id(m, method): LABELS[row_id(m, method)] for m in MODELS for method in (DENSE, *STATIC)
    }
    title = "figure 2: how far the best epoch stays short of the target (0 or less: reached)"
    section = Section(
        "Time to the target, and speedup over 10x", pivot(table, rows, columns, "row")
    )
    return g.made(
        WORDS, scale, own, table, [section], CLAIMS, labels=LABELS, choices=gravac.CHOICES,
        notes=(*WORDS.notes, gravac.PERPLEXITY_NOTE),
        said={"targets": " ".join(map(g.target_text, found))},
        figures={"fig2": g.drawn(title, own, scale, [_panel(one, table) for one in found])},
    )  # fmt: skip


def _measure(one: g.Course) -> pd.DataFrame:
    """With how far the best epoch stays short, and speedups over 10x (0: target never reached)."""

    def short(run: Run) -> float:
        best = float(np.nanmax(one.metric.sign * one.quality(run)))
        return 100 * (one.metric.sign * one.target - best) / one.target

    seconds = Quantity("s", partial(g.target_seconds, one=one), "modelled")
    found = g.measure(one, {SHORT: Quantity("%", short), TARGET_SECONDS: seconds})
    for name in COMPRESSORS:
        rows = [row_id(one.model, f"{name}{factor}") for factor in FACTORS]
        own = found[found["row"].isin(rows)]
        speedups = frame.relative(own, TARGET_SECONDS, rows[0], inverse=True, name=SPEEDUP)
        found = frame.join(found, speedups[np.isfinite(speedups["value"])])
    return found


def _panel(one: g.Course, table: pd.DataFrame) -> panels.Panel:
    """How far rows stay short of the target by factor, a line for each compressor."""
    drawn = []
    for name, label in COMPRESSORS.items():
        look = replace(LOOKS[f"{name}1000"], label=label)
        rows = {float(f): row_id(one.model, f"{name}{f}") for f in FACTORS}
        short = {factor: frame.of(table, SHORT, row) for factor, row in rows.items()}
        drawn += [panels.series(short, spread=True, **look.line)] if any(short.values()) else []
    y = "short of the target by (%)"
    title = f"{one.family}: {one.metric.label}"
    return panels.panel(title, panels.rule("y", 0.0), *drawn, x="compression factor", y=y, log="x")
