"""GraVAC's figure 2: speedup to the target by compression factor, normalized by 10x of the same compressor.

0 = not reached. Not the speedup to the plateau of Table II: a row that misses the target has none here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dgc_repro.paper import gravac_target as paper
from dgc_repro.paper import gravac_training as printed
from dgc_repro.paper.gravac import LABELS, METHODS
from dgc_repro.report import style
from dgc_repro.report.gravac_course import (
    MODELLED,
    OURS,
    Course,
    Target,
    clocks_text,
    course,
    met_at,
    n_label,
    seconds_to_target,
    shown_clocks,
)
from dgc_repro.report.gravac_pool import (
    Numbers,
    csv_line,
    judge,
    merged,
    pool_header,
    quality,
    written,
)
from dgc_repro.report.gravac_setup import setup_block
from dgc_repro.report.gravac_volume import of_row
from dgc_repro.report.records import Run
from dgc_repro.report.study import Block, Page, scale_label

REACHED = "reached"
"""Where a factor meets the target and there is no time of 10x to compare with."""
SHADES = dict(zip(printed.FACTORS, (style.SKY, style.BLUE, style.BLACK), strict=True))


def page(runs: Sequence[Run], scale: str) -> Page:
    """The page from the finished runs of one scale; UserError if those of a model are not alike."""
    courses = [course(runs, model, scale) for model in printed.MODEL_IDS]
    found = merged(*(reached(one, target) for one in courses for target in one.targets[:1]))
    clocks = shown_clocks(courses)
    whose = list(dict.fromkeys(target.whose for one in courses for target in one.targets))
    return Page(
        title="GraVAC, figure 2: speedup to the target by compression factor, over 10x",
        scale=scale,
        header=pool_header([run for one in courses for run in one.runs], scale),
        warning="",
        blocks=(
            _target_block(courses, clocks),
            *(_block(courses, name, clock) for name in whose or [OURS] for clock in clocks),
            setup_block(courses),
        ),
        verdicts=judge(paper.CLAIMS, found, scale),
        notes=(*paper.CONTRADICTIONS.values(), printed.PERPLEXITY_NOTE),
        choices=paper.CHOICES,
        numbers=tuple(
            line for one in courses for t in one.targets for line in _lines(one, t, clocks)
        ),
    )


def reached(one: Course, target: Target) -> Numbers:
    """What claims compare, by row and seed: whether a target is met, and the modelled speedup over 10x."""
    met: dict[str, dict[int, float]] = {}
    quicker: dict[str, dict[int, float]] = {}
    for method, _ in METHODS:
        for factor in printed.FACTORS:
            name = printed.row_id(one.model, f"{method}{factor}")
            for run in one.of(f"{method}{factor}"):
                met.setdefault(name, {})[run.seed] = float(is_met(run, one, target))
            for seed, value in speedups(one, target, method, factor, MODELLED).items():
                quicker.setdefault(name, {})[seed] = value
    return {printed.REACHED: met, printed.TO_TARGET: quicker}


def is_met(run: Run, one: Course, target: Target) -> bool:
    """Whether a run meets a target after any of its epochs."""
    return met_at(quality(run, one.metric), target.value, one.metric.sign) is not None


def speedups(one: Course, target: Target, method: str, factor: int, clock: str) -> dict[int, float]:
    """Seconds of 10x to the target over those of a factor, by seed; 0 where the factor does not meet it.
    None of a seed whose 10x does not, or that has no such clock."""
    weak = {run.seed: seconds_to_target(run, one, target, clock) for run in one.of(f"{method}10")}
    found = {}
    for run in one.of(f"{method}{factor}"):
        own = seconds_to_target(run, one, target, clock)
        if math.isinf(own):
            found[run.seed] = 0.0
        elif math.isfinite(own) and own > 0 and math.isfinite(weak.get(run.seed, math.nan)):
            found[run.seed] = weak[run.seed] / own
    return found


def _target_block(courses: Sequence[Course], clocks: Sequence[str]) -> Block:
    rows = []
    for one in courses:
        dense = one.target.dense if one.target is not None else None
        rows.append(
            (
                LABELS[one.model],
                one.metric.label,
                str(dense.n if dense is not None else 0),
                written(
                    [float(quality(run, one.metric)[-1]) for run in one.of("dense")], decimals=2
                ),
                "-" if one.target is None else f"{one.target.value:.2f}",
                f"{printed.SETUP.printed(one.model, 'target'):g} ({printed.METRICS[one.model]})",
            )
        )
    return Block(
        "The targets",
        "Ours: the final quality of dense runs, mean over seeds less one standard deviation (a perplexity: "
        "plus), with one seed the mean. The paper's is a target of its own at scale paper only. Speedups "
        f"below are by {len(clocks)} clocks: {clocks_text(clocks)}",
        ("model", "metric", "n", "dense", "target", "the paper's"),
        tuple(rows),
    )


def _cell(one: Course, target: Target, method: str, factor: int, clock: str) -> str:
    """Speedup, and how many of the runs have met the target."""
    own = one.of(f"{method}{factor}")
    if not own:
        return "-"
    count = sum(is_met(run, one, target) for run in own)
    of = f"({count} of {len(own)})"
    values = [v for v in speedups(one, target, method, factor, clock).values() if v > 0]
    if not count:
        return f"0 {of}"
    return f"{written(values, 'x') if values else REACHED} {of}"


def _block(courses: Sequence[Course], whose: str, clock: str) -> Block:
    rows = []
    for one in courses:
        target = next((target for target in one.targets if target.whose == whose), None)
        for method, label in METHODS:
            cells = [
                "-" if target is None else _cell(one, target, method, factor, clock)
                for factor in printed.FACTORS
            ]
            rows.append((LABELS[one.model], label, *cells))
    return Block(
        f"Speedup to {whose} target, {clock}",
        "Seconds of 10x over those of the factor, paired by seed, mean +- standard deviation of the seeds "
        "that reach it; in brackets how many do. 0: not reached. Reached: it is, but 10x does not, or has no "
        "time by this clock. Times are whole epochs.",
        ("model", "compressor", *(f"{factor}x" for factor in printed.FACTORS)),
        tuple(rows),
    )


def _lines(one: Course, target: Target, clocks: Sequence[str]) -> list[dict[str, Any]]:
    """One line a number, for table.csv."""
    found, lines = reached(one, target), []
    for method, _ in METHODS:
        for factor in printed.FACTORS:
            name = f"{method}{factor}"
            met = list(of_row(found, printed.REACHED, one.model, name).values())
            what = f"{target.whose} target"
            lines.append(csv_line(one.model, name, f"reached, {what}", "runs", met))
            for clock in clocks:
                own = list(speedups(one, target, method, factor, clock).values())
                column = f"speedup_to_target, {what}, {clock}"
                lines.append(csv_line(one.model, name, column, "x", own))
    return lines


def figure(runs: Sequence[Run], scale: str) -> Figure:
    """A panel a model, bars by compressor and factor."""
    courses = [course(runs, model, scale) for model in printed.MODEL_IDS]
    names = [f"{method}{factor}" for method, _ in METHODS for factor in printed.FACTORS]
    counts = [count for one in courses for name in names if (count := len(one.of(name)))]
    with style.house_style():
        drawing = Figure(figsize=(10.2, 3.8), layout="constrained")
        for axes, one in zip(drawing.subplots(1, len(courses)), courses, strict=True):
            _draw(axes, one)
            axes.set_title(LABELS[one.model], loc="left", fontweight="bold")
        drawing.axes[0].set_ylabel("speedup to the target over 10x")
        handles, labels = drawing.axes[0].get_legend_handles_labels()
        drawing.legend(handles, labels, loc="outside lower center", ncols=3)
        drawing.suptitle(
            f"Figure 2: speedup to our dense runs' target, modelled seconds ({scale_label(scale)}, "
            f"{n_label(counts)}); 0: not reached",
            x=0.01, ha="left", fontsize=9.5,
        )  # fmt: skip
    return drawing


def _draw(axes: Axes, one: Course) -> None:
    width = 0.26
    for number, factor in enumerate(printed.FACTORS):
        for place, (method, _) in enumerate(METHODS):
            height, text = _bar(one, method, factor)
            x = place + (number - 1) * width
            label = f"{factor}x" if place == 0 else None
            axes.bar(x, height, width, color=SHADES[factor], label=label)
            axes.annotate(text, (x, height), ha="center", va="bottom", fontsize=7,
                          rotation=90 if text == REACHED else 0)  # fmt: skip
    axes.set_xticks(range(len(METHODS)), [label for _, label in METHODS])
    axes.grid(axis="x", visible=False)
    axes.axhline(1.0, color="#888888", linewidth=0.8, linestyle=":")


def _bar(one: Course, method: str, factor: int) -> tuple[float, str]:
    """The mean speedup of the seeds that reach the target, and what is written over the bar: how many do
    where not all, 0 where none does, nothing of a row that was not run."""
    own = one.of(f"{method}{factor}")
    if not own or one.target is None:
        return 0.0, ""
    count = sum(is_met(run, one, one.target) for run in own)
    values = [v for v in speedups(one, one.target, method, factor, MODELLED).values() if v > 0]
    if not values:
        return 0.0, REACHED if count else "0"
    return float(np.mean(values)), "" if count == len(own) else f"{count}/{len(own)}"
