"""Waiting for the slowest of K workers, delays of unit variance: simulation beside theory.

Growth is judged by least squares of the mean largest delay over a + b f(K), where f is log K or its root.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dgc_repro.paper import facts, panels, plot
from dgc_repro.paper.claims import Check
from dgc_repro.paper.frame import Column, join, lines, longer, percent, pivot
from dgc_repro.paper.lecture import exact, study_of
from dgc_repro.paper.page import Page, Section, Template, made
from dgc_repro.paper.plot import Look
from dgc_repro.paper.records import Run

WORDS = Template.read(__file__)
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
NUMBERS = {
    "slowest": ("slowest of K", "deviations"),
    "theory": ("theory", "deviations"),
    "first_term": ("first term of theory", "deviations"),
    "lost": ("lost to waiting", "deviations"),
    "share_lost": ("share of a step lost", ""),
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


_near = Check(ERROR, EXPONENTIAL, above=-math.inf, below=ERROR_TOLERANCE)
CLAIMS = (
    WORDS.claim("gaussian", *_grows_like(GAUSSIAN), ours=True),
    WORDS.claim("exponential", _near, *_grows_like(EXPONENTIAL), ours=True),
)


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
            found = zip((SLOPE, RESIDUAL), fit(far["workers"], far["slowest"], growth), strict=True)
            row = {"row": f"{law}, {growth}", "seed": seed, "unit": "deviations"}
            fitted += [
                {**row, "quantity": name, "value": value} for name, value in reversed([*found])
            ]
    return join(lines(fitted), longer(places, NUMBERS))


def page(runs: Sequence[Run], scale: str) -> Page:
    """The page of the finished runs of one scale. Raises UserError if they are not alike."""
    table, study = study_of(runs), runs[0].config["study"]
    frame = numbers(table)
    said = (
        f"{facts.scale_text(scale)}, {study['trials']:,} trials, n = {len(runs)} seeds; "
        f"right: a step of {study['mean_ms']:g} ms with a deviation of {study['deviation_ms']:g} ms"
    )
    how: dict[str, Any] = {"x": "workers K (log)", "xticks": "binary"}
    deviations, lost = "slowest of K (deviations of one worker)", "lost to waiting (% of a step)"
    shown = [
        panels.panel("slowest of K workers", *_slowest(table), y=deviations, **how),
        panels.panel("share of a step lost", *_lost(table), y=lost, **how),
    ]
    return made(
        __file__, scale, runs, frame,
        [_section(frame, law, sorted(set(table["workers"]))) for law in LOOKS], CLAIMS,
        head=[("trials", f"{study['trials']:,} simulated steps for each K, law and seed")], said=study,
        figures={
            "waiting": lambda: plot.figure(
                "Waiting for the slowest of K workers", said, shown, legend=2
            )
        },
    )  # fmt: skip


def _section(frame: pd.DataFrame, law: str, counts: Sequence[int]) -> Section:
    rows = {f"{law}, K = {count}": str(count) for count in counts}
    names = {column: name for column, (name, _) in NUMBERS.items()}
    columns = (
        Column("slowest of K", names["slowest"], 3),
        Column(EXACT[law], names["theory"], exact),
        Column(FIRST_TERM[law], names["first_term"], exact),
        Column("lost", names["lost"], 3),
        Column("of a step", names["share_lost"], lambda shares: percent(shares, 2)),
    )
    return Section(LOOKS[law].label.capitalize(), pivot(frame, rows, columns, first="K"))


SIMULATED = "simulated, mean over seeds"


def _slowest(table: pd.DataFrame) -> Iterator[panels.Draw]:
    for law, look in LOOKS.items():
        curves: dict[str, dict[str, Any]] = {
            "theory": {"label": f"{look.label}: {EXACT[law]}"},
            "first_term": {"label": f"{look.label}: {FIRST_TERM[law]} alone", "linestyle": ":"},
            "slowest": {
                "label": f"{look.label}: {SIMULATED}",
                "linestyle": "",
                "marker": look.marker,
            },
        }
        for column, line in curves.items():
            own = table[table["law"] == law]
            yield panels.means(own, "workers", column, color=look.colour, markersize=5, **line)


def _lost(table: pd.DataFrame) -> Iterator[panels.Draw]:
    table = table.assign(percent=100 * table["share_lost"])
    for law, look in LOOKS.items():
        line = {**look.line, "label": f"{look.label}: {SIMULATED}"}
        yield panels.means(table[table["law"] == law], "workers", "percent", **line)
