"""GraVAC's Table II drawn: difference to the target by speedup, a panel a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from dgc_repro.paper import gravac_quality as paper
from dgc_repro.paper.gravac import LABELS, METHODS
from dgc_repro.report import style
from dgc_repro.report.gravac_course import MODELLED, Course, differences, speedups_to_plateau
from dgc_repro.report.gravac_pool import Numbers
from dgc_repro.report.study import scale_label

LOOKS = {
    "topk": (style.ORANGE, "s"),
    "dgc": (style.BLUE, "o"),
    "redsync": (style.GREEN, "^"),
    "randomk": (style.PURPLE, "D"),
    "gravac": (style.BLACK, "*"),
}


def draw(courses: Sequence[Course], found: Numbers, scale: str) -> Figure:
    """Filled: ours, mean over seeds, by modelled speedup; hollow: the paper's."""
    counts = {len(one.of(row.id)) for one in courses for row in paper.TABLE_2.rows} - {0}
    n = (
        " to ".join(dict.fromkeys(str(count) for count in (min(counts), max(counts))))
        if counts
        else "0"
    )
    with style.house_style():
        drawing = Figure(figsize=(10.2, 4.4), layout="constrained")
        for axes, one in zip(drawing.subplots(1, len(courses)), courses, strict=True):
            _draw(axes, one, found)
            unit = "points" if one.metric.unit else "perplexity"
            axes.set_ylabel(f"better than the target by ({unit})")
            axes.set_title(LABELS[one.model], loc="left", fontweight="bold")
        drawing.suptitle(
            f"Table II: quality and speedup over Top-k 10x ({scale_label(scale)}, n = {n}; modelled "
            "seconds to the plateau)",
            x=0.01, ha="left", fontsize=9.5,
        )  # fmt: skip
        handles: dict[str, Any] = {}
        for axes in drawing.axes:
            handles |= {
                label: h for h, label in zip(*axes.get_legend_handles_labels(), strict=True)
            }
        drawing.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=5)
    return drawing


def _draw(axes: Axes, one: Course, found: Numbers) -> None:
    names = {**dict(METHODS), "gravac": "GraVAC"}
    for method in (row.id for row in paper.TABLE_2.rows):
        family = method.rstrip("0123456789") if not method.startswith("gravac") else "gravac"
        colour, marker = LOOKS[family]
        strong = method.endswith("1000")
        size = 13 if family == "gravac" else 8 if strong else 5
        label = names[family] + ("" if family == "gravac" else f" {'1000x' if strong else '10x'}")
        if not paper.is_printed_failed(one.model, method):
            axes.plot(
                paper.printed(one.model, method, "speedup"),
                paper.printed(one.model, method, "difference"),
                marker=marker, markersize=size, color=colour, markerfacecolor="none",
                linestyle="none", alpha=0.55,
            )  # fmt: skip
        speedups = speedups_to_plateau(found, one.model, method, paper.BASELINE, MODELLED)
        if one.target is not None and speedups:
            ours = differences(one, method, one.target)
            axes.plot(
                np.mean(speedups), np.mean(ours), marker=marker, markersize=size, color=colour,
                linestyle="none", label=label,
            )  # fmt: skip
    axes.plot([], [], marker="o", markersize=7, color="#666666", markerfacecolor="none",
              linestyle="none", label="hollow: the paper's")  # fmt: skip
    axes.axhline(0.0, color=style.BLACK, linewidth=0.8)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("modelled speedup over Top-k 10x (log)")
