"""GraVAC's Table II drawn: difference to the target by speedup, a panel a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dgc_repro.paper import gravac_quality as paper
from dgc_repro.paper import gravac_training as printed
from dgc_repro.paper.gravac import LABELS
from dgc_repro.report import style
from dgc_repro.report.gravac_course import (
    MODELLED,
    Course,
    differences,
    has_failed,
    n_label,
    speedups_to_plateau,
)
from dgc_repro.report.gravac_pool import Numbers
from dgc_repro.report.study import scale_label

LOOKS = {
    "topk": (style.ORANGE, "s"),
    "dgc": (style.BLUE, "o"),
    "redsync": (style.GREEN, "^"),
    "randomk": (style.PURPLE, "D"),
    printed.GRAVAC: (style.BLACK, "*"),
    printed.GRAVAC_STRICT: (style.BLACK, (4, 1, 0)),
    printed.NORM_ROWS[0]: ("#b03060", "*"),
    printed.NORM_ROWS[1]: ("#b03060", (4, 1, 0)),
    printed.DENSE: ("#777777", "X"),
}
"""Colour and marker; of a fixed factor the small marker is 10x, the large one 1000x."""
OURS_ONLY = (printed.DENSE, printed.GRAVAC_STRICT, *printed.NORM_ROWS)
METHODS = (*(row.id for row in paper.TABLE_2.rows), *OURS_ONLY)
"""In the order they are drawn: where GraVAC is dense the marks lie on one another."""


def draw(courses: Sequence[Course], found: Numbers, scale: str) -> Figure:
    """Filled: ours, mean over seeds, by modelled speedup; hollow: the paper's."""
    counts = [count for one in courses for method in METHODS if (count := len(one.of(method)))]
    bars = "; bars: one standard deviation" if max(counts, default=0) > 1 else ""
    with style.house_style():
        drawing = Figure(figsize=(10.2, 4.6), layout="constrained")
        for axes, one in zip(drawing.subplots(1, len(courses)), courses, strict=True):
            _draw(axes, one, found)
            unit = "points" if one.metric.unit else "perplexity"
            axes.set_ylabel(f"better than the target by ({unit})")
            axes.set_title(LABELS[one.model], loc="left", fontweight="bold", pad=16)
            axes.text(0, 1.02, _failed_text(one), transform=axes.transAxes, fontsize=7.5)
        drawing.suptitle(
            f"Table II: quality and speedup over Top-k 10x ({scale_label(scale)}, {n_label(counts)}; "
            f"modelled seconds to the plateau{bars})",
            x=0.01, ha="left", fontsize=9.5,
        )  # fmt: skip
        handles: dict[str, Any] = {}
        for axes in drawing.axes:
            handles |= {
                label: h for h, label in zip(*axes.get_legend_handles_labels(), strict=True)
            }
        drawing.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=6)
    return drawing


def _failed_text(one: Course) -> str:
    """The rows whose runs have failed, all or some: they have no mark, or one of the others."""
    parts, ran = [], 0
    for method in METHODS:
        own = one.of(method)
        count = sum(has_failed(run, one.metric, one.target) for run in own)
        ran += bool(own)
        if count:
            some = "" if count == len(own) else f" ({count} of {len(own)})"
            parts.append(printed.METHOD_LABELS[method] + some)
    if not ran:
        return "not run"
    if len(parts) == ran and not any("(" in part for part in parts):
        return "failed: all, dense too" if one.of(printed.DENSE) else "failed: all"
    return f"failed: {', '.join(parts) or 'none'}"


def _draw(axes: Axes, one: Course, found: Numbers) -> None:
    for method in METHODS:
        family = method if method in LOOKS else method.rstrip("0123456789")
        colour, marker = LOOKS[family]
        size = {"*": 13, (4, 1, 0): 9, "X": 8}.get(marker, 8 if method.endswith("1000") else 5)
        look: dict[str, Any] = {
            "marker": marker,
            "markersize": size,
            "color": colour,
            "linestyle": "none",
        }
        axes.plot([], [], label=printed.METHOD_LABELS[method], **look)
        is_printed = method not in OURS_ONLY
        if is_printed and not paper.is_printed_failed(one.model, method):
            axes.plot(
                paper.printed(one.model, method, "speedup"),
                paper.printed(one.model, method, "difference"),
                markerfacecolor="none", alpha=0.55, **look,
            )  # fmt: skip
        _draw_ours(axes, one, found, method, look)
    axes.plot([], [], marker="o", markersize=7, color="#666666", markerfacecolor="none",
              linestyle="none", label="hollow: the paper's")  # fmt: skip
    axes.axhline(0.0, color=style.BLACK, linewidth=0.8)
    axes.set_xscale("log")
    low, high = axes.get_xlim()
    subs = (1.0, 2.0, 5.0) if high < 100 * low else (1.0, 3.0)
    style.plain_log(axes.xaxis, subs, unit="x")
    axes.set_xlabel("modelled speedup over Top-k 10x (log)")


def _draw_ours(axes: Axes, one: Course, found: Numbers, method: str, look: dict[str, Any]) -> None:
    """Mean and deviation of the runs that have not failed; nothing of a row that has none."""
    speedups = speedups_to_plateau(found, one.model, method, paper.BASELINE, MODELLED)
    if one.target is None or not speedups:
        return
    better = [
        difference
        for run, difference in zip(
            one.of(method), differences(one, method, one.target), strict=True
        )
        if not has_failed(run, one.metric, one.target)
    ]
    spreads = [float(np.std(v, ddof=1)) if len(v) > 1 else 0.0 for v in (speedups, better)]
    axes.errorbar(
        float(np.mean(speedups)), float(np.mean(better)), xerr=spreads[0], yerr=spreads[1],
        elinewidth=0.8, **look,
    )  # fmt: skip
