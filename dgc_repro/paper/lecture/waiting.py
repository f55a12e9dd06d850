"""Waiting for the slowest of K workers, delays of unit variance: simulation beside theory.

Growth is judged by least squares of the mean largest delay over a + b f(K), where f is log K or its root.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from dgc_repro.paper import facts, plot
from dgc_repro.paper.claims import OURS, Check, Claim
from dgc_repro.paper.frame import Column, join, lines, longer, percent, pivot
from dgc_repro.paper.lecture import by_workers, exact, study_of
from dgc_repro.paper.page import Page, Section, made
from dgc_repro.paper.plot import Look
from dgc_repro.paper.records import Run

GAUSSIAN, EXPONENTIAL = "gaussian", "exponential"
LOOKS = {
    GAUSSIAN: Look("Gaussian delays", plot.BLUE, "o"),
    EXPONENTIAL: Look("exponential delays", plot.ORANGE, "s"),
}
LOG, ROOT = "log K", "sqrt(log K)"
GROWTH: dict[str, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {
    LOG: np.log,
    ROOT: lambda count: np.sqrt(np.log(count)),
}
NATURAL = {GAUSSIAN: (ROOT, math.sqrt(2)), EXPONENTIAL: (LOG, 1.0)}
"""What the expected largest delay of each law grows like, and the slope in theory for large K."""
FIRST_TERM = {GAUSSIAN: "sqrt(2 log K)", EXPONENTIAL: "log K"}
EXACT = {GAUSSIAN: "the integral of theory", EXPONENTIAL: "1 + 1/2 + ... + 1/K"}
RESIDUAL, SLOPE = "RMS residual of the fit", "slope of the fit"
ERROR = "largest relative distance from theory"
SLOWEST, THEORY, FIRST, LOST, SHARE = (
    *("slowest of K", "theory", "first term of theory", "lost to waiting", "share of a step lost"),
)
NUMBERS = {
    "slowest": (SLOWEST, "deviations"),
    "theory": (THEORY, "deviations"),
    "first_term": (FIRST, "deviations"),
    "lost": (LOST, "deviations"),
    "share_lost": (SHARE, ""),
}
FIT_FROM_WORKERS = 4
"""Growth is fitted from this number of workers on: the laws hold for large K. Ours."""
SLOPE_TOLERANCE = 0.15
"""Of theory's slope. Ours: K is finite."""
ERROR_TOLERANCE = 0.03
"""Ours: the noise of the simulation."""


def _grows_like(law: str) -> tuple[Check, ...]:
    """The fit by the law's own function leaves less, and its slope is theory's."""
    own, slope = NATURAL[law]
    other = LOG if own == ROOT else ROOT
    low, high = slope * (1 - SLOPE_TOLERANCE), slope * (1 + SLOPE_TOLERANCE)
    return (
        Check(RESIDUAL, f"{law}, {other}", f"{law}, {own}"),
        Check(SLOPE, f"{law}, {own}", above=low, below=high),
    )


CLAIMS = (
    Claim(
        "gaussian", "Gaussian delays of unit variance: the time lost grows like sqrt(log K).",
        "waiting for the slowest worker", _grows_like(GAUSSIAN),
        f"The mean largest delay of K >= {FIT_FROM_WORKERS} workers, fitted by a + b sqrt(log K) and by "
        "a + b log K: the first leaves the smaller residual, and b is within 15 % of sqrt(2), the slope "
        "of sqrt(2 log K).", margin=OURS,
    ),
    Claim(
        "exponential",
        "Exponential delays of unit variance: the time lost grows like the sum of 1/i, about log K.",
        "waiting for the slowest worker",
        (Check(ERROR, EXPONENTIAL, above=-math.inf, below=ERROR_TOLERANCE), *_grows_like(EXPONENTIAL)),
        "The mean largest delay is within 3 % of 1 + 1/2 + ... + 1/K at every K; a + b log K leaves a "
        "smaller residual than a + b sqrt(log K), and b is within 15 % of 1.", margin=OURS,
    ),
)  # fmt: skip


def fit(counts: pd.Series, means: pd.Series, growth: str) -> tuple[float, float]:
    """Slope b and RMS residual of means over a + b f(K)."""
    x = GROWTH[growth](counts.to_numpy(float))
    line = np.polynomial.Polynomial.fit(x, means, 1).convert()
    return float(line.coef[1]), float(np.sqrt(np.mean((means - line(x)) ** 2)))


def numbers(table: pd.DataFrame) -> pd.DataFrame:
    """The frame: the numbers of each law and K, and what the claims compare."""
    places = table.assign(row=table["law"] + ", K = " + table["workers"].astype(str))
    fitted: list[dict[str, object]] = []
    for (law, seed), group in table.groupby(["law", "seed"]):
        far = group[group["workers"] >= FIT_FROM_WORKERS]
        error = float((group["slowest"] / group["theory"] - 1).abs().max())
        if law == EXPONENTIAL:
            fitted.append({"row": law, "seed": seed, "quantity": ERROR, "value": error})
        for growth in GROWTH:
            slope, residual = fit(far["workers"], far["slowest"], growth)
            row = {"row": f"{law}, {growth}", "seed": seed, "unit": "deviations"}
            fitted.append({**row, "quantity": RESIDUAL, "value": residual})
            fitted.append({**row, "quantity": SLOPE, "value": slope})
    return join(lines(fitted), longer(places, NUMBERS))


def page(runs: Sequence[Run], scale: str) -> Page:
    """The page of the finished runs of one scale. Raises UserError if they are not alike."""
    table = study_of(runs)
    frame = numbers(table)
    study = runs[0].config["study"]
    counts = sorted(set(table["workers"]))
    return made(
        __file__,
        scale,
        runs,
        frame,
        [_section(frame, law, counts) for law in LOOKS],
        CLAIMS,
        head=[("trials", f"{study['trials']:,} simulated steps for each K, law and seed")],
        said=study,
        figures={"waiting": lambda: _figure(table, runs, scale)},
    )


def _section(frame: pd.DataFrame, law: str, counts: Sequence[int]) -> Section:
    rows = {f"{law}, K = {count}": str(count) for count in counts}
    columns = (
        Column("slowest of K", SLOWEST, 3),
        Column(EXACT[law], THEORY, exact),
        Column(FIRST_TERM[law], FIRST, exact),
        Column("lost", LOST, 3),
        Column("of a step", SHARE, lambda shares: percent(shares, 2)),
    )
    return Section(LOOKS[law].label.capitalize(), pivot(frame, rows, columns, first="K"))


SIMULATED = "simulated, mean over seeds"


def _figure(table: pd.DataFrame, runs: Sequence[Run], scale: str) -> Figure:
    study = runs[0].config["study"]

    def slowest(axes: Axes) -> None:
        for law, look in LOOKS.items():
            own, name = table[table["law"] == law], look.label
            curves: dict[str, dict[str, Any]] = {
                "theory": {"label": f"{name}: {EXACT[law]}"},
                "first_term": {"label": f"{name}: {FIRST_TERM[law]} alone", "linestyle": ":"},
                "slowest": {
                    "label": f"{name}: {SIMULATED}",
                    "linestyle": "",
                    "marker": look.marker,
                },
            }
            for column, line in curves.items():
                plot.means(axes, own, "workers", column, color=look.colour, markersize=5, **line)
        by_workers(axes, "workers K (log)", "slowest of K (deviations of one worker)")

    def lost(axes: Axes) -> None:
        for law, look in LOOKS.items():
            own = table[table["law"] == law]
            own = own.assign(percent=100 * own["share_lost"])
            line = {**look.line, "label": f"{look.label}: {SIMULATED}"}
            plot.means(axes, own, "workers", "percent", **line)
        by_workers(axes, "workers K (log)", "lost to waiting (% of a step)")

    said = (
        f"{facts.scale_text(scale)}, {study['trials']:,} trials, n = {len(runs)} seeds; "
        f"right: a step of {study['mean_ms']:g} ms with a deviation of {study['deviation_ms']:g} ms"
    )
    panels = [("slowest of K workers", slowest), ("share of a step lost", lost)]
    return plot.figure("Waiting for the slowest of K workers", said, panels, legend=2)  # fmt: skip
