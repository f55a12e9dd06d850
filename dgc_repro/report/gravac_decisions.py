"""What GraVAC's figures read from a run's decisions, and how its pages write and draw numbers.

Decisions of long runs are thinned: shares and means are of the recorded steps, and pages say which these are.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dgc_repro.paper.claim import Check, Claim
from dgc_repro.paper.gravac_figures import STEPS
from dgc_repro.paper.gravac_training import PERPLEXITY, QUALITY
from dgc_repro.report import style
from dgc_repro.report.figures import Look, caption
from dgc_repro.report.gravac_pool import (
    Metric,
    Series,
    curve,
    num_steps,
    pool_header,
    rows_of,
    written,
)
from dgc_repro.report.records import Run
from dgc_repro.report.study import Block, mean_sd, scale_label
from dgc_repro.report.verdict import Values

CHARACTERS_AN_INCH = 11
"""Of a figure's title."""


def final(metric: Metric) -> str:
    """The quantity that final quality is named by."""
    return QUALITY if metric.sign > 0 else PERPLEXITY


def at(run: Run, paper_step: float) -> float:
    """A step of the paper, as a step of this run."""
    return paper_step / STEPS * num_steps(run)


def column(run: Run, name: str) -> Series:
    """A column of the recorded decisions, empty where there is none."""
    if name not in run.decisions.columns:
        return np.empty(0)
    return np.asarray(run.decisions[name], dtype=np.float64)


def mean_of(values: Series) -> float:
    """The mean of what is finite, NaN of nothing."""
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if finite.size else math.nan


def shares(run: Run) -> dict[float, float]:
    """The share of the recorded steps at each factor, ascending; 1x: sent as it is."""
    factors = column(run, "factor")
    factors, counts = np.unique(factors[np.isfinite(factors)], return_counts=True)
    return {float(f): float(c) / counts.sum() for f, c in zip(factors, counts, strict=True)}


def branch_share(run: Run, branch: str) -> float:
    """The share of the recorded steps that took a branch, NaN where none is recorded."""
    if "branch" not in run.decisions.columns or run.decisions.empty:
        return math.nan
    return float((run.decisions["branch"] == branch).mean())


def thinning(runs: Sequence[Run]) -> str:
    """Which steps are recorded, in words."""
    gaps = {
        int(np.median(np.diff(steps))) for run in runs if (steps := column(run, "step")).size > 1
    }
    said = ["every step" if gap == 1 else f"every {_ordinal(gap)} step" for gap in sorted(gaps)]
    return " or ".join(said) or "none recorded"


def _ordinal(number: int) -> str:
    """2nd, 3rd, 18th."""
    teens = number % 100 in (11, 12, 13)
    return f"{number}{'th' if teens else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"


def norm_gain(run: Run) -> Series:
    """The norm gain of each recorded step, not smoothed: sum over tensors of the norms of what was sent, over
    that of the norms of the gradient without its residual. NaN if not recorded, and for dense steps."""
    raw = column(run, "raw_norms")
    gains: Series = column(run, "sent_norms") / np.where(raw > 0, raw, np.nan)
    return gains


def points_its_way(claim: Claim, numbers: Values) -> bool | None:
    """Whether the means over seeds lie where the claim says, without a judgement; None without numbers, or
    where a premise does not hold."""
    ways = [_points(check, numbers) for check in (*claim.premises, *claim.checks)]
    premises = ways[: len(claim.premises)]
    return None if None in ways or not all(premises) else all(ways)


def _points(check: Check, numbers: Values) -> bool | None:
    """The same of one check."""
    rows = numbers.get(check.quantity, {})
    found = [rows.get(name, {}) for name in (check.greater, check.lesser)]
    if check.lesser.replace(".", "", 1).isdigit():
        found[1] = dict.fromkeys(found[0], float(check.lesser))
    seeds = found[0].keys() & found[1].keys()
    if not seeds:
        return None
    pairs = [(found[0][seed], found[1][seed]) for seed in seeds]
    mean = float(np.mean([a / b if check.ratio else a - b for a, b in pairs]))
    off = 0.0 if check.magnitude is None else abs(mean - check.magnitude)
    return check.above < mean < check.below and off <= (check.tolerance or math.inf)


def gains_block(energy: Sequence[Claim], norm: Sequence[Claim], numbers: Values) -> Block:
    """Which of the two gains shows the findings. ``energy``, ``norm``: the same claims on either."""
    words = {True: "yes", False: "no", None: "-"}
    ways = [[points_its_way(claim, numbers) for claim in claims] for claims in (energy, norm)]
    counts = [f"{sum(way is True for way in own)} of {len(own)}" for own in ways]
    return Block(
        "Which gain explains the figure",
        f"The energy gain (as printed) shows {counts[0]} findings, the norm gain (as in the authors' code) "
        f"{counts[1]}. Means over seeds, without a test; the verdicts are below.",
        ("finding", "energy", "norm"),
        tuple((claim.text, words[a], words[b]) for claim, a, b in zip(energy, *ways, strict=True)),
    )


def cell(numbers: Values, quantity: str, name: str, digits: int = 3) -> str:
    """Mean and spread over seeds, '-' where there is none."""
    return mean_sd(list(numbers.get(quantity, {}).get(name, {}).values()), digits)


def amount(numbers: Values, quantity: str, name: str) -> str:
    """The same of a large number, without an exponent."""
    return written(list(numbers.get(quantity, {}).get(name, {}).values()))


def times(numbers: Values, quantity: str, name: str) -> str:
    """The same of a quotient."""
    return written(list(numbers.get(quantity, {}).get(name, {}).values()), "x")


def percent(numbers: Values, quantity: str, name: str) -> str:
    """The mean share over seeds in percent."""
    values = list(numbers.get(quantity, {}).get(name, {}).values())
    return f"{100 * np.mean(values):.1f} %" if values else "-"


def csv_lines(numbers: Values) -> tuple[Mapping[str, Any], ...]:
    """One line a number: mean, standard deviation and n over seeds."""
    return tuple(
        {
            "row": name,
            "quantity": quantity,
            "mean": float(np.mean(list(found.values()))),
            "sd": _deviation(list(found.values())),
            "n": len(found),
        }
        for quantity, rows in numbers.items()
        for name, found in rows.items()
    )


def _deviation(values: Sequence[float]) -> float:
    """The sample standard deviation; NaN of one value, and of an infinite one."""
    finite = len(values) > 1 and bool(np.isfinite(values).all())
    return float(np.std(values, ddof=1)) if finite else math.nan


def header(runs: Sequence[Run], scale: str) -> tuple[tuple[str, str], ...]:
    """What the runs are, and which of their steps are recorded."""
    return (*pool_header(runs, scale), ("decisions recorded of", thinning(runs)))


def draw_quality(
    axes: Axes, runs: Sequence[Run], metric: Metric, rows: Mapping[str, tuple[str, Look]]
) -> None:
    """The quality by step of each row that was run; one that lies on another says so in the legend.
    ``rows``: label and look by row."""
    drawn: list[tuple[str, pd.DataFrame]] = []
    for name, (label, look) in rows.items():
        own = rows_of(runs, name)
        if not own:
            continue
        points = curve(own, metric)
        below = next((other for other, line in drawn if line.equals(points)), None)
        drawn.append((label, points))
        steps, mean, sd = points.index.to_numpy(float), points["mean"], points["sd"]
        if len(own) > 1:
            low, high = mean - sd, mean + sd
            axes.fill_between(steps, low, high, color=look.colour, alpha=0.15, linewidth=0)
        axes.plot(
            steps, mean, color=look.colour, linestyle=look.dashes, marker=look.marker, markersize=4,
            markevery=max(1, len(steps) // 10), label=f"{label} (= {below})" if below else label,
            markerfacecolor="white" if look.dashes != "-" else look.colour,
        )  # fmt: skip
    if metric.sign < 0:
        axes.set_yscale("log")
        style.plain_log(axes.yaxis)
    axes.set_xlabel("iteration")
    axes.set_ylabel(f"{metric.label}{f' ({metric.unit})' if metric.unit else ''}")


def heading(figure: Figure, what: str, runs: Sequence[Run], scale: str) -> None:
    """The figure's title, with scale, data, world and n under it."""
    under = caption(runs, scale) if runs else scale_label(scale)
    under = textwrap.fill(under, int(CHARACTERS_AN_INCH * figure.get_figwidth()))
    figure.suptitle(f"{what}\n{under}", x=0.01, ha="left", fontsize=9.5)


def panel(axes: Axes, what: str) -> None:
    """A panel's own title."""
    axes.set_title(what, loc="left", fontweight="bold")
