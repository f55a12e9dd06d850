"""GraVAC's figure 2: speedup to the target by compression factor, over 10x of the same compressor.

The sources have text only: known points of the figure are claims, and two contradict Table II.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from dgc_repro.paper import facts, frame, gravac, panels, plot
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
from dgc_repro.paper.gravac.shared import MODELLED, PAPERS, REACHED, TARGET_SECONDS
from dgc_repro.paper.gravac.table2 import printed
from dgc_repro.paper.page import Page, Section, Template
from dgc_repro.paper.records import Run

POOL = "training"
SPEEDUP, SHORT = "speedup to the target", "short of the target"
BEST_TOPK = {RESNET101: 100, VGG16: 1000, LSTM: 10}
"""The factor at which Top-k meets each model's target soonest."""
ONLY_AT_10 = (VGG16, LSTM)
"""Models that meet their target with Random-k at 10x, and at no other factor."""
STATIC = tuple(f"{name}{factor}" for name in COMPRESSORS for factor in FACTORS)
WORDS = Template.read(__file__)


def _contradiction(model: str) -> str:
    value, target = printed(model, "randomk10", "quality"), gravac.SETUP(model, "target")
    return (
        f"{MODELS[model]}, Random-k 10x: Table II prints {value:g} for a target of {target:g}, "
        f"{value:g} {'<' if value < target else '>'} {target:g}."
    )


def _claims() -> Iterator[Claim]:
    for model, best in BEST_TOPK.items():
        others = [f"topk{factor}" for factor in FACTORS if factor != best]
        checks = [g.sooner(TARGET_SECONDS, model, f"topk{best}", other) for other in others]
        words = {"model": MODELS[model], "best": best}
        yield WORDS.claim("topk", *checks, of=model, assumed=g.ASSUMED, **words)
    for model in MODELS:
        at_10 = model in ONLY_AT_10
        ends = [
            (-math.inf, 0.0) if at_10 and factor == 10 else (0.0, math.inf) for factor in FACTORS
        ]
        rows = [row_id(model, f"randomk{factor}") for factor in FACTORS]
        checks = [Check(SHORT, row, None, *both) for row, both in zip(rows, ends, strict=True)]
        read = (
            "Percent by which the best epoch stays short of the target of our dense runs: above 0."
        )
        yield WORDS.claim(
            "randomk", *checks, of=model, cannot_follow=_contradiction(model) if at_10 else "",
            model=MODELS[model], reading="" if at_10 else read,
            met="met at 10x only" if at_10 else "not met at any factor",
        )  # fmt: skip


CLAIMS = tuple(_claims())
NOTES = (*WORDS.noted(**{m: _contradiction(m) for m in ONLY_AT_10}), gravac.PERPLEXITY_NOTE)


def page(runs: Sequence[Run], scale: str) -> Page:
    """The page of the finished runs of one scale. Raises UserError if those of a model are not alike."""
    found = g.courses(runs, scale, methods=(DENSE, *STATIC))
    own, table = g.runs_of(found), frame.join(*map(_measure, found))
    targets = (f"{one.family}, {one.metric.label}: {g.target_text(one)}" for one in found)
    drawn, said = [_panel(one, table) for one in found], facts.caption(own, scale)
    title = "Figure 2: speedup to the target of our dense runs, modelled seconds"
    return g.made(
        __file__, scale, own, table, [_section(found, table), g.setup_section(found)], CLAIMS,
        labels=LABELS, notes=NOTES, said={"targets": " ".join(targets)}, choices=gravac.CHOICES,
        figures={"fig2": lambda: plot.figure(title, said, drawn, size=(4.6, 3.6), legend=0)},
    )  # fmt: skip


def _measure(one: g.Course) -> pd.DataFrame:
    """With speedups over 10x (0 where the target is never reached) and how far the best epoch stays short."""
    sign = one.metric.sign

    def short(run: Run) -> float:
        best = float(np.nanmax(sign * one.quality(run)))
        return 100 * (sign * one.target - best) / one.target

    found = frame.join(g.measure(one), frame.measure(one.runs, {SHORT: Quantity("%", short)}))
    quicker = []
    for name in COMPRESSORS:
        rows = [row_id(one.model, f"{name}{factor}") for factor in FACTORS]
        own = found[found["row"].isin(rows)]
        quicker += [
            frame.relative(own, TARGET_SECONDS + of, rows[0], inverse=True, name=SPEEDUP + of)
            for of in ("", PAPERS)
        ]
    speedups = frame.join(*quicker)
    return frame.join(found, speedups[np.isfinite(speedups["value"])])


def _section(found: Sequence[g.Course], table: pd.DataFrame) -> Section:
    columns = [Column("short of it by %", SHORT, 1)]
    for of in ("", PAPERS) if any(one.papers_target > 0 for one in found) else ("",):
        columns.append(Column(f"target reached{of}", REACHED + of, frame.hits))
        for clock in g.shown_clocks(table):
            columns.append(Column(f"seconds{of}, {clock}", TARGET_SECONDS + of, None, clock))
            columns.append(Column(f"speedup{of}, {clock}", SPEEDUP + of, frame.times, clock))
    shown = [row_id(one.model, method) for one in found for method in (DENSE, *STATIC)]
    title = "Time to the target, and speedup over 10x of the same compressor"
    return Section(title, pivot(table, {row: LABELS[row] for row in shown}, columns, "row"))


def _panel(one: g.Course, table: pd.DataFrame) -> panels.Panel:
    """A bar a row; rows that never reach the target say how far they stay short."""
    target = f"target {one.metric.label} {one.target:.2f} {one.metric.unit}"
    if math.isnan(one.target):
        return panels.panel(f"{one.family}, no target", otherwise="no dense run")
    lengths, texts = [], []
    for row in (row_id(one.model, method) for method in STATIC):
        speed = [v for v in frame.of(table, SPEEDUP, row, MODELLED) if v > 0]
        reached, short = frame.of(table, REACHED, row), frame.of(table, SHORT, row)
        lengths.append(float(np.mean(speed)) if speed else 0.0)
        text = f"{lengths[-1]:.3g}x" if speed else "reached, 10x never"
        text += "" if all(reached) else f" ({sum(reached):.0f} of {len(reached)})"
        never = f"never, {np.mean(short):.1f} % short" if reached and not any(reached) else ""
        texts.append("no run" if not reached else never or text)
    return panels.panel(
        f"{one.family}, {target}",
        panels.named_bars([LOOKS[method] for method in STATIC], lengths, texts),
        at_x=[(1.0, {"color": "#888888", "linestyle": ":"})], x="modelled speedup to the target over 10x",
    )  # fmt: skip
