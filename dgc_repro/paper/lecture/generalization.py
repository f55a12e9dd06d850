"""Measures of generalization against the generalization gap, over a grid of seven hyper-parameters.

Jiang, Neyshabur, Mobahi, Krishnan, Bengio, "Fantastic generalization measures and where to find them", 2019,
arXiv:1912.02178, section 2. The measures are in dgc_repro/study. Every network is trained to the same
cross-entropy of the training images; a network that does not reach it is left out.

mu = measures f64[n], g = gaps f64[n], theta = settings i64[n,h] (each hyper-parameter's value by its number).
Pairs are ordered, of two different networks. A tie counts as neither order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from dgc_repro.paper import panels, plot
from dgc_repro.paper.artifact import Artifact, Rows, Shown, drawing
from dgc_repro.paper.claims import Check
from dgc_repro.paper.frame import Column, lines, of, percent, seeds
from dgc_repro.paper.lecture import cross_entropy
from dgc_repro.paper.page import Template
from dgc_repro.paper.records import Run

WORDS = Template.read(__file__)
HYPER: Mapping[str, Callable[[Run], float]] = {
    "batch size": lambda run: float(run.setting("train.batch_size")),
    "dropout": lambda run: float(run.setting("model.dropout")),
    "learning rate": lambda run: float(run.setting("optimizer.lr")),
    "depth": lambda run: float(run.setting("model.layers")),
    "optimizer": lambda run: float(run.setting("experiment.optimizer") != "sgd"),
    "weight decay": lambda run: float(run.setting("optimizer.weight_decay") > 0),
    "width": lambda run: float(run.setting("model.width")),
}
OUTPUTS = ("vc_dimension", "parameters", "inverse_margin", "entropy", "cross_entropy")
NORMS = (
    *("frobenius_distance", "spectral_distance", "spectral_product", "spectral_sum"),
    *("spectral_init", "spectral_orig", "parameter_norm", "path_norm", "fisher_rao"),
)
SHARPNESS = tuple(
    f"{kind}{aware}_{start}"
    for kind in ("pac_bayes", "sharpness")
    for aware in ("", "_mag")
    for start in ("init", "orig", "flatness")
)
SPELLED = {
    "vc": "VC", "frobenius": "Frobenius", "fisher_rao": "Fisher-Rao", "cross_entropy": "cross-entropy",
    "parameters": "number of parameters", "pac_bayes": "PAC-Bayes", "sharpness": "worst case",
    "_mag": ", magnitude-aware", "_init": ", init", "_orig": ", orig", "_flatness": ", flatness",
}  # fmt: skip


def spelled(measure: str) -> str:
    """The name of a measure in words."""
    for part, words in SPELLED.items():
        measure = measure.replace(part, words)
    return measure.replace("_", " ")


MEASURES = {name: spelled(name) for name in (*OUTPUTS, *NORMS, *SHARPNESS)}
TAU, GRANULATED, GAP = "Kendall's tau", "mean of Psi", "generalization gap"
REACHED, NETWORKS = "share that reaches the cross-entropy", "networks"
REACH = Check(REACHED, "grid", above=0.8)
"""Ours: with fewer of the networks, those that are left out would decide."""


def signs(values: ArrayLike) -> NDArray[np.int64]:
    """sign(v_i - v_j) of each pair, i64[n,n]; two infinite values are a tie."""
    v = np.asarray(values, dtype=np.float64)
    return (v[:, None] > v[None]).astype(np.int64) - (v[:, None] < v[None])


def tau(mu: ArrayLike, g: ArrayLike) -> float:
    """Kendall's tau: the mean over pairs of sign(mu_i - mu_j) sign(g_i - g_j)."""
    n = len(np.asarray(g))
    return float((signs(mu) * signs(g)).sum() / (n * (n - 1))) if n > 1 else float("nan")


def psi(mu: ArrayLike, g: ArrayLike, theta: NDArray[np.int64], axis: int) -> float:
    """Psi_i: tau among networks that differ in hyper-parameter i alone, averaged over these groups."""
    table = pd.DataFrame({"mu": np.asarray(mu), "g": np.asarray(g)})
    groups = table.groupby(list(np.delete(theta, axis, 1).T))
    found = [tau(own["mu"], own["g"]) for _, own in groups if len(own) > 1]
    return float(np.mean(found)) if found else float("nan")


def settings(runs: Sequence[Run]) -> NDArray[np.int64]:
    """theta: by network and hyper-parameter, the number of its value, ascending; rates within their
    optimizer."""
    table = pd.DataFrame({name: [value(run) for run in runs] for name, value in HYPER.items()})
    table["learning rate"] = table.groupby("optimizer")["learning rate"].rank(method="dense")
    return table.rank(method="dense").to_numpy(np.int64) - 1


def gap(run: Run) -> float:
    """Training minus test accuracy, as a share. Without augmentation and dropout in both."""
    keys = ("generalization/accuracy_percent", "test/accuracy_percent")
    trained, tested = (float(run.summary[key]) for key in keys)
    return (trained - tested) / 100


def numbers(runs: Sequence[Run]) -> pd.DataFrame:
    """The frame: for each seed the coefficients of each measure (a row), and of the grid the gaps."""
    found: list[dict[str, object]] = []

    def say(row: str, seed: int, values: Mapping[str, float]) -> None:
        line = {"row": row, "seed": seed}
        found.extend({**line, "quantity": name, "value": value} for name, value in values.items())

    for seed in sorted({run.seed for run in runs}):
        tried = [run for run in runs if run.seed == seed]
        own = [run for run in tried if (run.summary.get("stopping") or {}).get("reached")]
        g, theta = [gap(run) for run in own], settings(own)
        mean = float(np.mean(g)) if g else float("nan")
        say("grid", seed, {REACHED: len(own) / len(tried), NETWORKS: float(len(own)), GAP: mean})
        for row in MEASURES:
            mu = [float(run.summary[f"generalization/{row}"]) for run in own]
            by_axis = {name: psi(mu, g, theta, axis) for axis, name in enumerate(HYPER)}
            mean = float(pd.Series(by_axis).mean())
            say(row, seed, {**by_axis, TAU: tau(mu, g), GRANULATED: mean})
    return lines(found)


def _taus(*rows: str, above: float = 0.0, below: float = math.inf) -> list[Check]:
    return [Check(TAU, row, above=above, below=below) for row in rows]


BEST = "pac_bayes_mag_flatness"
"""Ours: the measure that stands for those of sharpness, chosen after the numbers were known."""
COMPLETE = ("size.negative", "sharpness.magnitude")
"""Claims on all measures of a kind. In other claims this project chose which measures stand for a kind."""
CHECKS = {
    "sharpness.positive": _taus("pac_bayes_orig", BEST, "sharpness_orig", "sharpness_mag_flatness"),
    "norms.negative": _taus("frobenius_distance", "spectral_orig", above=-math.inf, below=0),
    "size.negative": _taus("vc_dimension", "parameters", above=-math.inf, below=0),
    "sharpness.above_outputs": [Check(TAU, BEST, row) for row in OUTPUTS],
    "sharpness.above_norms": [Check(TAU, BEST, row) for row in NORMS],
    "sharpness.magnitude": [
        Check(TAU, f"{kind}_mag_flatness", f"{kind}_flatness")
        for kind in ("pac_bayes", "sharpness")
    ],
}


def _dots(shown: Shown) -> list[panels.Panel]:
    """Kendall's tau by measure."""
    taus = [np.mean(of(shown.frame, TAU, row) or [np.nan]) for row in MEASURES]
    names = dict(enumerate(MEASURES.values()))
    dots = panels.lines([(taus, list(names))], marker="o", linestyle="", color=plot.BLUE)
    return [panels.panel("", panels.rule("x", 0), dots, x=TAU, yticks=names)]


page = Artifact(
    __file__,
    rows=MEASURES,
    numbers=numbers,
    tables={
        "Measures": Rows(
            MEASURES, [Column(name, name, 2) for name in (TAU, GRANULATED, *HYPER)], "measure"
        ),
        "The grid": Rows(
            {"grid": "all"},
            [
                *(seeds(REACHED), Column(NETWORKS, NETWORKS, 0), Column(REACHED, REACHED, percent)),
                Column(GAP, GAP, percent),
            ],
            "networks of",
        ),
    },
    claims=[
        WORDS.claim(
            name,
            *checks,
            premises=(REACH,),
            ours=name not in COMPLETE,
            reached=f"{100 * REACH.above:g} %",
        )
        for name, checks in CHECKS.items()
    ],
    figures={
        "generalization": drawing(
            "Generalization measures against the generalization gap",
            _dots,
            "Points are means over the seeds.",
            size=(7.0, 6.0),
            legend=0,
        )
    },
    head=cross_entropy,
    alike=("scale.name", "dataset", "model.hidden", "stopping", "schedule", "generalization"),
)
