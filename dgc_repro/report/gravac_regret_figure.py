"""GraVAC's regret drawn: a point for each row of its table, right of the oracle's 1x where it is slower.

A row without regret stands at the edge of the axis, with the reason.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dgc_repro.paper.gravac import LABELS
from dgc_repro.report import style
from dgc_repro.report.figures import Look
from dgc_repro.report.gravac_course import MODELLED, Course, seconds_at
from dgc_repro.report.gravac_decisions import amount, heading, panel, times
from dgc_repro.report.gravac_pool import Numbers, rows_of
from dgc_repro.report.gravac_regret import (
    REGRET,
    SECONDS,
    nearly_dense,
    numbers,
    of_oracle,
    oracle,
    oracle_label,
    paired,
    statics,
    statics_text,
    target_text,
)
from dgc_repro.report.records import Run

LEAST_LIMITS = (0.45, 2.2)
"""The axis goes this far at least, so that a hundredth does not look like much."""
ROOM = 1.15
"""Between the outermost point and the end of the axis."""


def figure(
    course: Course, rows: Mapping[str, str], looks: Mapping[str, Look], title: str, scale: str
) -> Figure:
    """``rows``: labels of the rows that adapt, as in the table; ``looks``: theirs."""
    course = paired(course, rows)
    compared = [run for run in course.runs if run.row in {*rows, *statics(course)}]
    with style.house_style():
        drawing = Figure(figsize=(7.2, 1.75 + 0.3 * len(rows)), layout="constrained")
        _draw(drawing.subplots(), course, rows, looks)
        heading(drawing, f"{title}\nOracle of: {statics_text(course)}", compared, scale)
    return drawing


def _draw(axes: Axes, course: Course, rows: Mapping[str, str], looks: Mapping[str, Look]) -> None:
    found = numbers(course, rows)
    best = oracle(course, found)
    for place, name in enumerate(rows):
        values = list(found.get(REGRET, {}).get(name, {}).values())
        if values:
            _point(axes, place, values, looks[name])
            met = _share(len(found[SECONDS][name]), len(rows_of(course.runs, name)))
            _say(axes, place, _marked(f"{times(found, REGRET, name)}{met}", found, name))
        else:
            is_met = name in found.get(SECONDS, {})
            reason = _reason(course, rows_of(course.runs, name), is_met)
            _at_the_edge(axes, place, _marked(reason, found, name))
    tried = [run for name in statics(course) for run in rows_of(course.runs, name)]
    if best:
        axes.plot(1.0, len(rows), color=style.BLACK, marker="o", markersize=6)
        met = _share(len(best), len({run.seed for run in tried}))
        _say(axes, len(rows), f"1x = {amount(of_oracle(best), SECONDS, 'oracle')} s{met}")
    else:
        _at_the_edge(axes, len(rows), _reason(course, tried, is_met=False))
    axes.axvline(1.0, color=style.BLACK, linewidth=0.8, zorder=1)
    axes.set_yticks(range(len(rows) + 1), [*rows.values(), oracle_label(best)])
    axes.set_ylim(len(rows) + 0.5, -0.5)
    _by_regret(axes, list(found.get(REGRET, {}).values()))
    what = LABELS[course.model]
    if course.target is not None:
        what += f": target {course.metric.label} {target_text(course)}"
    panel(axes, what)


def _point(axes: Axes, place: int, values: Sequence[float], look: Look) -> None:
    """The mean, its way from 1x, and a whisker from the least to the largest: a standard deviation may
    reach beyond 0."""
    mean = float(np.mean(values))
    reach = [[mean - min(values)], [max(values) - mean]] if len(values) > 1 else None
    axes.hlines(place, 1.0, mean, color=look.colour, linestyle=look.dashes, linewidth=1.6)
    axes.errorbar(
        mean, place, xerr=reach, color=look.colour, marker=look.marker, markersize=6, capsize=3,
        markerfacecolor="white" if look.dashes != "-" else look.colour, linestyle="none",
        elinewidth=1.0, zorder=3,
    )  # fmt: skip


def _marked(text: str, found: Numbers, name: str) -> str:
    mark = nearly_dense(found, name)
    return f"{text},\n{mark}" if mark else text


def _at_the_edge(axes: Axes, place: int, reason: str) -> None:
    axes.plot(
        1.0, place, color="#666666", marker="x", markersize=7, linestyle="none", clip_on=False,
        transform=axes.get_yaxis_transform(),
    )  # fmt: skip
    _say(axes, place, reason)


def _say(axes: Axes, place: int, text: str) -> None:
    """Right of the axis, where no point is."""
    axes.annotate(
        text, xy=(1.0, place), xycoords=axes.get_yaxis_transform(), xytext=(9, 0),
        textcoords="offset points", va="center", fontsize=8.0,
    )  # fmt: skip


def _share(met: int, num_seeds: int) -> str:
    return "" if met == num_seeds else f", met by {met} of {num_seeds}"


def _reason(course: Course, runs: Sequence[Run], is_met: bool) -> str:
    """Why rows of these runs have no regret."""
    if not runs:
        return "not run"
    if course.target is None:
        return "no target: no dense run"
    if all(math.isnan(seconds_at(run, -1, MODELLED)) for run in runs):
        return "no network named"
    return "met, by no static row" if is_met else "target not met"


def _by_regret(axes: Axes, rows: Sequence[Mapping[int, float]]) -> None:
    """The axis; ``rows``: regret by seed."""
    drawn = [1.0, *(regret for row in rows for regret in row.values())]
    low, high = LEAST_LIMITS
    axes.set_xscale("log")
    axes.set_xlim(min(low, min(drawn) / ROOM), max(high, max(drawn) * ROOM))
    style.plain_log(axes.xaxis, unit="x")
    whiskers = "; whiskers: all seeds" if any(len(row) > 1 for row in rows) else ""
    axes.set_xlabel(f"modelled time to the target over the oracle's (log{whiskers})")
