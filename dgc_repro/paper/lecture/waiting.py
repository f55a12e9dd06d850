"""Waiting for the slowest of K workers, delays of unit variance: simulation beside theory.

Growth is judged by least squares of the mean largest delay over a + b f(K), where f is log K or its root.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from dgc_repro.paper.artifact import BARS, Artifact, drawing
from dgc_repro.paper.claims import Check
from dgc_repro.paper.frame import Column, join, lines, longer, percent, study_of
from dgc_repro.paper.lecture import by_number, exact, line_for_each
from dgc_repro.paper.page import Template
from dgc_repro.paper.records import Run

WORDS = Template.read(__file__)
GAUSSIAN, EXPONENTIAL = "gaussian", "exponential"
LOG, ROOT = "log K", "sqrt(log K)"
NATURAL = {GAUSSIAN: (ROOT, LOG, math.sqrt(2)), EXPONENTIAL: (LOG, ROOT, 1.0)}
"""What the expected largest delay of each law grows like, what not, and the slope in theory for large K."""
RESIDUAL, SLOPE = "RMS residual of the fit", "slope of the fit"
ERROR = "largest relative distance from theory"
SLOWEST, THEORY, FIRST_TERM = "slowest of K", "theory", "first term of theory"
LOST = "share of a step lost"
UNITS = {"slowest": (SLOWEST, "deviations"), "theory": (THEORY, "deviations")}
UNITS |= {"first_term": (FIRST_TERM, "deviations"), "share_lost": (LOST, "")}
FIT_FROM_WORKERS = 4
"""Growth is fitted from this number of workers on: the laws hold for large K. Ours."""
SLOPE_TOLERANCE = 0.15
"""Of theory's slope. Ours: K is finite."""
ERROR_TOLERANCE = 0.03
"""Ours: the noise of the simulation."""


def _grows_like(law: str) -> tuple[Check, ...]:
    """The fit by the law's own function leaves less, and its slope is theory's."""
    own, other, slope = NATURAL[law]
    low, high = slope * (1 - SLOPE_TOLERANCE), slope * (1 + SLOPE_TOLERANCE)
    return (
        Check(RESIDUAL, f"{law}, {other}", f"{law}, {own}"),
        Check(SLOPE, f"{law}, {own}", above=low, below=high),
    )


def fit(counts: pd.Series, means: pd.Series, growth: str) -> tuple[float, float]:
    """Slope b and RMS residual of means over a + b f(K)."""
    x = np.log(counts.to_numpy(float)) ** (0.5 if growth == ROOT else 1.0)
    line = np.polynomial.Polynomial.fit(x, means, 1).convert()
    return float(line.coef[1]), float(np.sqrt(np.mean((means - line(x)) ** 2)))


def numbers(runs: Sequence[Run]) -> pd.DataFrame:
    """The frame: rows are laws and settings K; and what the claims compare."""
    table, fitted = study_of(runs), []
    for (law, seed), own in table.groupby(["law", "seed"]):
        far = own[own["workers"] >= FIT_FROM_WORKERS]
        error = float((own["slowest"] / own["theory"] - 1).abs().max())
        fitted.append({"row": law, "seed": seed, "quantity": ERROR, "value": error})
        for growth in (LOG, ROOT):
            slope, residual = fit(far["workers"], far["slowest"], growth)
            row = {"row": f"{law}, {growth}", "seed": seed, "unit": "deviations"}
            fitted.append({**row, "quantity": SLOPE, "value": slope})
            fitted.append({**row, "quantity": RESIDUAL, "value": residual})
    table = table.assign(row=table["law"], setting=table["workers"].astype(str))
    return join(lines(fitted), longer(table, UNITS))


LAWS = {GAUSSIAN: "Gaussian delays", EXPONENTIAL: "exponential delays"}
page = Artifact(
    __file__,
    rows=LAWS,
    numbers=numbers,
    tables={
        "Slowest of K workers": line_for_each(
            "law, K",
            (
                *(Column(SLOWEST, SLOWEST, 3), Column(THEORY, THEORY, exact)),
                Column(FIRST_TERM, FIRST_TERM, exact),
                Column(LOST, LOST, lambda shares: percent(shares, 2)),
            ),
        )
    },
    claims=(
        WORDS.claim("gaussian", *_grows_like(GAUSSIAN), ours=True),
        WORDS.claim(
            "exponential",
            Check(ERROR, EXPONENTIAL, above=-math.inf, below=ERROR_TOLERANCE),
            *_grows_like(EXPONENTIAL),
            ours=True,
        ),
    ),
    figures={
        "waiting": drawing(
            "Waiting for the slowest of K workers",
            lambda shown: [
                by_number(shown, name, LAWS, x="workers K", log="x") for name in (SLOWEST, LOST)
            ],
            BARS,
        )
    },
    said=lambda shown: shown.runs[0].config["study"],
    alike=(),
)
