"""The lecture's question on waiting for the slowest of K workers: simulation beside theory.

Growth is judged by least squares of the mean largest delay over a + b f(K), f = log K or its root.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from numpy.typing import NDArray

from dgc_repro.paper import lecture
from dgc_repro.paper.lecture import (
    EXPONENTIAL,
    GAUSSIAN,
    HARMONIC,
    LOG,
    SIMULATED,
    SQRT_LOG,
    THEORY,
)
from dgc_repro.report import style
from dgc_repro.report.records import Measurement
from dgc_repro.report.study import (
    Block,
    Page,
    groups,
    header,
    judged,
    mean_sd,
    require_one_study,
    scale_label,
    summary,
    table_of,
)
from dgc_repro.report.verdict import Values

LAWS = (GAUSSIAN, EXPONENTIAL)
GROWTH: dict[str, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {
    LOG: np.log,
    SQRT_LOG: lambda count: np.sqrt(np.log(count)),
}
NATURAL = {GAUSSIAN: (SQRT_LOG, math.sqrt(2)), EXPONENTIAL: (LOG, 1.0)}
"""Of each law: what it grows like, and theory's slope for large K."""
COLUMNS = ("slowest", "theory", "first_term", "lost", "share_lost")
LOOKS = {GAUSSIAN: (style.BLUE, "o"), EXPONENTIAL: (style.ORANGE, "s")}


def fit(counts: Sequence[float], means: Sequence[float], growth: str) -> tuple[float, float]:
    """Slope b and RMS residual of means over a + b f(K)."""
    x = GROWTH[growth](np.asarray(counts, dtype=float))
    design = np.stack([np.ones_like(x), x], axis=1)
    coefficients, *_ = np.linalg.lstsq(design, np.asarray(means, dtype=float), rcond=None)
    residual = np.asarray(means) - design @ coefficients
    return float(coefficients[1]), float(np.sqrt(np.mean(residual**2)))


def values(frame: pd.DataFrame) -> Values:
    """What the claims compare, by seed."""
    found: dict[str, dict[str, dict[int, float]]] = {
        "fit_residual": {}, "slope": {}, "waiting_error": {},
    }  # fmt: skip

    def put(quantity: str, row: str, seed: int, value: float) -> None:
        found[quantity].setdefault(row, {})[seed] = value

    for law, seed, group in groups(frame, "law", "seed"):
        far = group[group["workers"] >= lecture.FIT_FROM_WORKERS]
        for growth in GROWTH:
            slope, residual = fit(far["workers"].tolist(), far["slowest"].tolist(), growth)
            put("fit_residual", f"{law}, {growth}", seed, residual)
            if growth == NATURAL[law][0]:
                put("slope", f"{law}, {SIMULATED}", seed, slope)
                put("slope", f"{law}, {THEORY}", seed, NATURAL[law][1])
        if law == EXPONENTIAL:
            error = float((group["slowest"] / group["theory"] - 1).abs().max())
            put("waiting_error", f"{law}, {SIMULATED}", seed, error)
            put("waiting_error", f"{law}, {HARMONIC}", seed, 0.0)
    return found


def half_interval(group: pd.DataFrame) -> float:
    """Of the mean over seeds: 95 %, from the intervals over each seed's own trials (thousands, so normal)."""
    halves = (group["high"] - group["low"]) / 2
    return float(np.sqrt((halves**2).sum()) / len(halves))


def page(records: Sequence[Measurement], scale: str) -> Page:
    """The page from the finished records of one scale; UserError if they are not alike."""
    require_one_study(records)
    frame = table_of(records)
    settings = records[0].config["study"]
    blocks = []
    for law in LAWS:
        own = frame[frame["law"] == law]
        rows = []
        for count, group in groups(own, "workers"):
            shares = [100 * share for share in group["share_lost"]]
            rows.append(
                (
                    str(count),
                    mean_sd(group["slowest"].tolist(), 4),
                    f"{((group['high'] - group['low']) / 2).mean():.2g}",
                    f"{group['theory'].iloc[0]:.4g}",
                    f"{group['first_term'].iloc[0]:.4g}",
                    mean_sd(group["lost"].tolist()),
                    mean_sd(shares),
                )
            )
        exact = "the integral of theory" if law == GAUSSIAN else "1 + 1/2 + ... + 1/K"
        first = "sqrt(2 log K)" if law == GAUSSIAN else "log K"
        mean = 0 if law == GAUSSIAN else 1
        blocks.append(
            Block(
                f"{law.capitalize()} delays",
                f"In standard deviations of one worker's delay, whose mean is {mean}; mean +- sd over "
                "seeds. Half interval: 95 %, over the trials of a seed. Lost: slowest less mean. Share: "
                f"of a step of {settings['mean_ms']:g} ms on average with a deviation of "
                f"{settings['deviation_ms']:g} ms.",
                ("K", "slowest of K", "half interval", exact, first, "lost", "% of a step lost"),
                tuple(rows),
                narrow=(0, 1, 3, 4, 6),
            )
        )
    return Page(
        title="Waiting for the slowest of K workers (lecture)",
        scale=scale,
        header=header(
            records, scale, [("trials", f"{settings['trials']:,} steps for each K, law and seed")]
        ),
        warning="",
        blocks=tuple(blocks),
        verdicts=judged(lecture.WAITING_CLAIMS, values(frame), scale),
        notes=(),
        choices=(),
        numbers=tuple(summary(frame, ("law", "workers"), COLUMNS)),
    )


def figure(records: Sequence[Measurement], scale: str) -> Figure:
    """Left: the mean largest delay by K, simulated and in theory. Right: the share of a step lost."""
    frame = table_of(records)
    settings = records[0].config["study"]
    n = frame["seed"].nunique()
    with style.house_style():
        drawing = Figure(figsize=(9.2, 4.0), layout="constrained")
        left, right = drawing.subplots(1, 2)
        for law in LAWS:
            colour, marker = LOOKS[law]
            own = frame[frame["law"] == law].groupby("workers")
            mean = own["slowest"].mean()
            bars = [half_interval(group) for _, group in own]
            left.plot(mean.index, own["theory"].first(), color=colour, label=f"{law}, theory")
            left.errorbar(
                mean.index, mean, yerr=bars, capsize=2, color=colour, marker=marker,
                markersize=5, linestyle="none", label=f"{law}, simulated",
            )  # fmt: skip
            first = own["first_term"].first()
            name = "sqrt(2 log K)" if law == GAUSSIAN else "log K"
            left.plot(first.index, first, color=colour, linestyle=":", label=f"{name} alone")
            share = 100 * own["share_lost"].mean()
            right.plot(share.index, share, color=colour, marker=marker, markersize=5, label=law)
        for axes in (left, right):
            _by_count(axes)
        left.set_ylabel("slowest of K (deviations of one worker)")
        right.set_ylabel("% of a step lost to waiting")
        style.title(
            left, "The slowest of K workers",
            f"{scale_label(scale)}, {settings['trials']:,} trials, n = {n} seeds; bars: 95 % over trials",
        )  # fmt: skip
        style.title(
            right, "What it costs",
            f"a step of {settings['mean_ms']:g} ms, deviation {settings['deviation_ms']:g} ms",
        )  # fmt: skip
        left.legend(loc="upper left")
        right.legend(loc="upper left")
    return drawing


def _by_count(axes: Axes) -> None:
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(LogLocator(base=2, numticks=12))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("workers K (log)")
    axes.set_ylim(bottom=0)
