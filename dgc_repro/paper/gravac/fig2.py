"""GraVAC's figure 2: speedup to the target by compression factor, over 10x of the same compressor.

The sources have text only: known points of the figure are claims, and two contradict Table II.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dgc_repro.paper import facts, frame, gravac, plot
from dgc_repro.paper.claims import Check, Claim, Note
from dgc_repro.paper.frame import Column, Quantity, pivot
from dgc_repro.paper.gravac import COMPRESSORS, DENSE, FACTORS, LABELS, LOOKS, MODELS, row_id
from dgc_repro.paper.gravac import shared as training
from dgc_repro.paper.gravac.shared import ASSUMED, MODELLED, PAPERS, REACHED, TARGET_SECONDS, Course
from dgc_repro.paper.gravac.table2 import printed
from dgc_repro.paper.page import Page, Section, made
from dgc_repro.paper.records import Run

POOL = "training"
SPEEDUP, SHORT = "speedup to the target", "short of the target"
BEST_TOPK = {gravac.RESNET101: 100, gravac.VGG16: 1000, gravac.LSTM: 10}
"""The factor at which Top-k meets each model's target soonest."""
ONLY_AT_10 = (gravac.VGG16, gravac.LSTM)
"""Models that meet their target with Random-k at 10x, and at no other factor."""
STATIC = tuple(f"{name}{factor}" for name in COMPRESSORS for factor in FACTORS)


def _contradiction(model: str) -> str:
    value, target = printed(model, "randomk10", "quality"), gravac.SETUP(model, "target")
    return (
        f"{MODELS[model]}, Random-k 10x: Table II prints {value:g} for a target of {target:g}, "
        f"{value:g} {'<' if value < target else '>'} {target:g}."
    )


def _reached(model: str, factor: int, *, is_met: bool) -> Check:
    row = row_id(model, f"randomk{factor}")
    return Check(SHORT, row, above=-math.inf, below=0.0) if is_met else Check(SHORT, row)


CLAIMS = (
    *(
        Claim(
            f"{model}.topk", f"{MODELS[model]}, Top-k: the target is met soonest at {best}x.", "figure 2",
            tuple(
                Check(TARGET_SECONDS, row_id(model, f"topk{factor}"), row_id(model, f"topk{best}"),
                      above=1.0, ratio=True, setting=MODELLED)
                for factor in FACTORS
                if factor != best
            ),
            "Modelled seconds to the target, paired by seed; infinite where it is not reached. Not tested "
            "where two factors both never reach it.",
            assumed=ASSUMED,
        )
        for model, best in BEST_TOPK.items()
    ),
    Claim(
        "resnet101.randomk", f"{MODELS[gravac.RESNET101]}, Random-k: the target is not met at any factor.",
        "figure 2", tuple(_reached(gravac.RESNET101, factor, is_met=False) for factor in FACTORS),
        "Percent by which the best epoch stays short of the target of our dense runs: above 0.",
    ),
    *(
        Claim(
            f"{model}.randomk", f"{MODELS[model]}, Random-k: the target is met at 10x only.", "figure 2",
            tuple(_reached(model, factor, is_met=factor == 10) for factor in FACTORS),
            cannot_follow=_contradiction(model),
        )
        for model in ONLY_AT_10
    ),
)  # fmt: skip
NOTES = (
    *(
        Note(
            "Figure 2 has Random-k meet a target that Table II has it miss.", _contradiction(model)
        )
        for model in ONLY_AT_10
    ),
    gravac.PERPLEXITY_NOTE,
)


def page(runs: Sequence[Run], scale: str) -> Page:
    """The page of the finished runs of one scale. Raises UserError if those of a model are not alike."""
    found = training.courses(runs, scale, methods=(DENSE, *STATIC))
    table = frame.join(*map(_measure, found))
    return made(
        __file__,
        scale,
        training.runs_of(found),
        table,
        [_section(found, table), training.setup_section(found)],
        CLAIMS,
        labels=LABELS,
        data=gravac.DATA,
        notes=NOTES,
        said=_said(found, table),
        choices=gravac.CHOICES,
        figures={"fig2": lambda: _figure(found, table, scale)},
    )


def _measure(one: Course) -> pd.DataFrame:
    """With speedups over 10x (0 where the target is never reached) and how far the best epoch stays short."""
    sign = one.metric.sign

    def short(run: Run) -> float:
        best = float(np.nanmax(sign * one.quality(run)))
        return 100 * (sign * one.target - best) / one.target

    found = frame.join(
        training.measure(one), frame.measure(one.runs, {SHORT: Quantity("%", short)})
    )
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


def _section(found: Sequence[Course], table: pd.DataFrame) -> Section:
    clocks = training.shown_clocks(table)
    columns = [Column("short of it by %", SHORT, 1)]
    for of in ("", PAPERS) if any(one.papers_target > 0 for one in found) else ("",):
        reached = Column(f"target reached{of}", REACHED + of, frame.hits)
        columns.append(reached)
        for clock in clocks:
            columns.append(Column(f"seconds{of}, {clock}", TARGET_SECONDS + of, None, clock))
            columns.append(Column(f"speedup{of}, {clock}", SPEEDUP + of, frame.times, clock))
    shown = [row_id(one.model, method) for one in found for method in (DENSE, *STATIC)]
    title = "Time to the target, and speedup over 10x of the same compressor"
    return Section(title, pivot(table, {row: LABELS[row] for row in shown}, columns, "row"))


def _said(found: Sequence[Course], table: pd.DataFrame) -> dict[str, str]:
    targets = (
        f"{gravac.FAMILIES[one.model]}, {one.metric.label}: {training.target_text(one)}"
        for one in found
    )
    clocks = training.clocks_text(training.shown_clocks(table))
    return {"targets": " ".join(targets), "clocks": clocks}


def _figure(found: Sequence[Course], table: pd.DataFrame, scale: str) -> Figure:
    """A panel a model, a bar a row; rows that never reach the target say how far they stay short."""

    def draw(axes: Axes, one: Course) -> None:
        if math.isnan(one.target):
            plot.empty(axes, "no dense run")
            return
        heights, texts = [], []
        for row in (row_id(one.model, method) for method in STATIC):
            speed = [v for v in frame.of(table, SPEEDUP, row, MODELLED) if v > 0]
            reached, short = frame.of(table, REACHED, row), frame.of(table, SHORT, row)
            heights.append(float(np.mean(speed)) if speed else 0.0)
            if not reached:
                text = "no run"
            elif not any(reached):
                text = f"never, {np.mean(short):.1f} % short"
            else:
                text = f"{heights[-1]:.3g}x" if speed else "reached, 10x never"
                text += "" if all(reached) else f" ({sum(reached):.0f} of {len(reached)})"
            texts.append(text)
        looks = [LOOKS[method] for method in STATIC]
        drawn = axes.barh(range(len(looks)), heights, 0.75, color=[look.colour for look in looks])
        axes.bar_label(drawn, texts, padding=3, fontsize=7.5, color="#444444")
        axes.set_yticks(range(len(looks)), [look.label for look in looks])
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.axvline(1.0, color="#888888", linewidth=0.8, linestyle=":")
        axes.set_xlim(0, 1.35 * max(1.5, axes.get_xlim()[1]))
        axes.set_xlabel("modelled speedup to the target over 10x")

    panels: plot.Panels = []
    for one in found:
        known = f"target {one.metric.label} {one.target:.2f} {one.metric.unit}"
        target = "no target" if math.isnan(one.target) else known
        panels.append((f"{gravac.FAMILIES[one.model]}, {target}", partial(draw, one=one)))
    caption = facts.caption(training.runs_of(found), scale)
    title = "Figure 2: speedup to the target of our dense runs, modelled seconds"
    return plot.figure(title, caption, panels, size=(4.6, 3.6), legend=0)
