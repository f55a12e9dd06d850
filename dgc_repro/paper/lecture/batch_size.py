"""Steps to a target against batch size: perfect scaling, diminishing returns, a plateau.

The curve S(B) = S_min (1 + B_crit / B) follows from equation 2.11, with E = B S, of McCandlish, Kaplan,
Amodei et al., "An empirical model of large-batch training", 2018, arXiv:1812.06162: at B_crit twice
S_min steps are needed. The gradient noise scale tr(Sigma) / ||G||^2 (appendix A.1 there) is estimated from
the gradients of N workers with b images (or columns of text) each:

    ||G||^2   = (N b |mean|^2 - b mean |g_i|^2) / (N b - b)
    tr(Sigma) = (mean |g_i|^2 - |mean|^2) / (1 / b - 1 / (N b))
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
from scipy import optimize

from dgc_repro.paper import facts, panels, plot
from dgc_repro.paper.artifact import BARS, Artifact, Rows, drawing
from dgc_repro.paper.claims import Check, Claim
from dgc_repro.paper.frame import Column, join, longer, of, seeds, times
from dgc_repro.paper.lecture import by_setting, line_for_each
from dgc_repro.paper.lecture.tuning import NAMES, RATES, STEPS, tried_of, tuned_of
from dgc_repro.paper.page import Template
from dgc_repro.paper.records import Run, require_alike

WORDS = Template.read(__file__)
ALIKE = ("scale.name", "dataset", "model", "stopping.target", "optimizer.momentum")
WORKLOADS = {
    "cnn_digits": "small CNN, digits",
    "cnn_cifar10": "small CNN, CIFAR-10",
    "resnet_cifar10": "slim ResNet, CIFAR-10",
    "transformer_text": "small transformer, text",
    "lstm_text": "small LSTM, text",
}
EDGES = "batch sizes with a best learning rate at an edge"
FIRST, LAST = "steps saved by doubling the smallest batch", "steps saved by the last doubling"
CRITICAL, LEAST, NOISE = "critical batch size", "least steps", "gradient noise scale"
NOISE_RATIO = "gradient noise scale over critical batch size"
UNITS = {LEAST: "steps", CRITICAL: "samples", NOISE: "samples", NOISE_RATIO: "x", EDGES: ""}
UNITS |= {FIRST: "x", LAST: "x"}
PERFECT, FLAT = (1.6, 2.5), 1.25
"""Ours: the range around 2 that counts as perfect scaling, and the most that a plateau still saves."""
FIT = "fit, least steps x (1 + critical / batch)"
ORDER = 10.0
"""McCandlish et al. say that the noise scale gives the order of magnitude of the critical batch size."""


def inside(row: str) -> tuple[Check, ...]:
    """The premise that no best learning rate is at an edge of its grid: a better one may lie outside."""
    return (Check(EDGES, row, above=-math.inf, below=0.5),)


def _claims() -> Iterator[Claim]:
    for workload, what in WORKLOADS.items():
        checks = {
            "perfect": Check(FIRST, workload, above=PERFECT[0], below=PERFECT[1], printed=2.0),
            "plateau": Check(LAST, workload, above=-math.inf, below=FLAT),
            "noise": Check(NOISE_RATIO, workload, above=1 / ORDER, below=ORDER),
        }
        how = {"of": workload, "premises": inside(workload), "ours": True, "what": what}
        yield from (WORDS.claim(name, check, **how) for name, check in checks.items())


def is_timed(run: Run) -> bool:
    """Whether the steps of a run count. A run of several workers measures the noise scale."""
    return int(run.setting("launch.workers")) == 1


def fitted(steps: pd.Series) -> tuple[float, float]:
    """(S_min, B_crit) of steps by batch size, by least squares of the logarithm; NaN where fewer than three
    batches reach the target, or where B_crit lies outside the range of those batches."""
    known = steps[np.isfinite(steps)].sort_index()
    if len(known) < 3:
        return math.nan, math.nan
    b, log_s = known.index.to_numpy(float), np.log(known.to_numpy(float))

    def slope(log_critical: float) -> float:
        """Half the derivative of the sum of squares by log B_crit, at the best S_min."""
        ratio = np.exp(log_critical) / b
        misfit = np.log1p(ratio) - log_s
        return float((misfit - misfit.mean()) @ (ratio / (1 + ratio)))

    ends = np.log(b[0]), np.log(b[-1])
    if not slope(ends[0]) <= 0 <= slope(ends[1]):
        return math.nan, math.nan
    critical = float(np.exp(optimize.brentq(slope, *ends, xtol=1e-15)))
    return float(np.exp((log_s - np.log1p(critical / b)).mean())), critical


def saved(steps: pd.Series) -> float:
    """Steps at the first of two batch sizes over steps at the second, twice the first; else NaN, also where
    one of them never reaches the target."""
    is_doubled = len(steps) == 2 and steps.index[1] == 2 * steps.index[0]
    return steps.iloc[0] / steps.iloc[1] if is_doubled and np.isfinite(steps).all() else math.nan


def noise_scale(run: Run) -> float:
    """tr(Sigma) / ||G||^2 of the mean squares of all recorded steps, in images or columns of text."""
    own, mean = run.decisions[["own_square", "mean_square"]].dropna().mean()
    small, whole = (
        facts.batch_of(run) / int(run.setting("launch.workers")),
        float(facts.batch_of(run)),
    )
    signal = (whole * mean - small * own) / (whole - small)
    noise = (own - mean) / (1 / small - 1 / whole)
    return float(noise / signal) if signal > 0 else math.inf


def numbers(runs: Sequence[Run]) -> pd.DataFrame:
    """The frame: by workload and batch size what was tuned; by workload the fit and the noise scale."""
    for workload in WORKLOADS:
        require_alike([run for run in runs if run.model == workload], (*ALIKE, "schedule"))
    tuned = tuned_of(tried_of(run for run in runs if is_timed(run)))
    noise = {f"{run.model} {run.seed}": noise_scale(run) for run in runs if not is_timed(run)}
    found = []
    for (row, seed), own in tuned.groupby(["row", "seed"]):
        steps = own.set_index("batch")["steps"].sort_index()
        least, critical = fitted(steps)
        scale = noise.get(f"{row} {seed}", math.nan)
        fit = {LEAST: least, CRITICAL: critical, NOISE: scale, NOISE_RATIO: scale / critical}
        fit |= {EDGES: own["at_edge"].sum(), FIRST: saved(steps[:2]), LAST: saved(steps[-2:])}
        found.append({"row": row, "seed": seed, **fit})
    units = {name: (name, unit) for name, unit in UNITS.items()}
    return join(longer(tuned, NAMES), longer(pd.DataFrame(found), units))


def _panel(frame: pd.DataFrame, workload: str) -> panels.Panel:
    """Steps by batch size, the fit, the critical batch size and the noise scale."""
    steps = by_setting(frame, STEPS, workload)
    least, critical, noise = (
        float(np.mean(of(frame, name, workload) or [math.nan])) for name in (LEAST, CRITICAL, NOISE)
    )
    batches = np.geomspace(min(steps, default=1.0), max(steps, default=1.0), 100)
    return panels.panel(
        WORKLOADS[workload],
        panels.series(steps, fmt="o", color=plot.BLUE, label="measured"),
        panels.lines([(batches, least * (1 + critical / batches))], FIT, color=plot.ORANGE),
        panels.rule("x", critical, color=plot.ORANGE, label=CRITICAL),
        panels.rule("x", noise, color=plot.GREEN, linestyle="--", label=NOISE),
        x="batch size", y=STEPS, log="xy",
    )  # fmt: skip


def _target(run: Run) -> str:
    value, metric = run.setting("stopping.target"), run.setting("stopping.metric")
    return f"{WORKLOADS[run.model]}: {metric} {value:g}"


page = Artifact(
    __file__,
    rows=WORKLOADS,
    numbers=numbers,
    tables={
        "Steps to the target": line_for_each(
            "batch size", (seeds(STEPS), *RATES, Column(STEPS, STEPS, 0))
        ),
        "The curve": Rows(
            WORKLOADS,
            [
                *(Column(name, name, 0) for name in (CRITICAL, NOISE, LEAST, EDGES)),
                *(Column(name, name, times) for name in (FIRST, LAST)),
            ],
            "workload",
        ),
    },
    claims=tuple(_claims()),
    figures={
        "batch_size": drawing(
            "Steps to a target against batch size",
            lambda shown: [_panel(shown.frame, workload) for workload in WORKLOADS],
            f"The learning rate is tuned for each batch size. {BARS}",
            legend=3,
        )
    },
    head=lambda shown: [("target", facts.distinct(map(_target, filter(is_timed, shown.runs))))],
    alike=(),
)
