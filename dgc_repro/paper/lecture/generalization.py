"""Measures of generalization against the generalization gap, over a grid of seven hyper-parameters.

Jiang, Neyshabur, Mobahi, Krishnan, Bengio, "Fantastic generalization measures and where to find them", 2019,
arXiv:1912.02178, section 2. The measures are in dgc_repro/study. Every network is trained to the same
cross-entropy of the training images; a network that does not reach it is left out.

mu = measures f64[n], g = gaps f64[n], theta = settings i64[n,h] (each hyper-parameter's value by its number).
Pairs are ordered, of two different networks. A tie counts as neither order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from dgc_repro.paper import panels, plot
from dgc_repro.paper.artifact import Artifact, Rows, Shown, drawing
from dgc_repro.paper.claims import Check, Claim
from dgc_repro.paper.frame import Column, lines, of, percent, seeds
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
OUTPUTS = {
    "vc_dimension": "VC dimension", "parameters": "number of parameters", "inverse_margin": "1 / margin",
    "entropy": "entropy of the outputs", "cross_entropy": "cross-entropy",
}  # fmt: skip
NORMS = {
    "frobenius_distance": "Frobenius distance", "spectral_distance": "spectral distance",
    "spectral_product": "product of spectral norms", "spectral_sum": "sum of spectral norms",
    "spectral_init": "spectral, init", "spectral_orig": "spectral, orig",
    "parameter_norm": "parameter norm", "path_norm": "path norm", "fisher_rao": "Fisher-Rao",
}  # fmt: skip
SHARPNESS = {
    f"{kind}{suffix}_{start}": f"{name}{aware}, {start}"
    for kind, name in (("pac_bayes", "PAC-Bayes"), ("sharpness", "worst case"))
    for suffix, aware in (("", ""), ("_mag", ", magnitude-aware"))
    for start in ("init", "orig", "flatness")
}
MEASURES = {**OUTPUTS, **NORMS, **SHARPNESS}
TAU, GRANULATED, GAP = "Kendall's tau", "mean of Psi", "generalization gap"
REACHED, NETWORKS = "share that reaches the cross-entropy", "networks"
REACH = Check(REACHED, "grid", above=0.8)


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
            mean = float(np.nanmean(list(by_axis.values())))
            say(row, seed, {**by_axis, TAU: tau(mu, g), GRANULATED: mean})
    return lines(found)


def _claims() -> Iterator[Claim]:
    def taus(*rows: str, above: float = 0.0, below: float = math.inf) -> list[Check]:
        return [Check(TAU, row, above=above, below=below) for row in rows]

    best = "pac_bayes_mag_flatness"
    ends = ("pac_bayes_orig", best, "sharpness_orig", "sharpness_mag_flatness")
    checks = {
        "sharpness.positive": taus(*ends),
        "norms.negative": taus("frobenius_distance", "spectral_orig", above=-2, below=0),
        "size.negative": taus("vc_dimension", "parameters", above=-2, below=0),
        "sharpness.above_outputs": [Check(TAU, best, row) for row in OUTPUTS],
        "sharpness.above_norms": [Check(TAU, best, row) for row in NORMS],
        "sharpness.magnitude": [
            Check(TAU, f"{kind}_mag_flatness", f"{kind}_flatness")
            for kind in ("pac_bayes", "sharpness")
        ],
    }
    for name, of_claim in checks.items():
        yield WORDS.claim(name, *of_claim, premises=(REACH,), ours="above" in name)


COLUMNS = [Column(name, name, 2) for name in (TAU, GRANULATED, *HYPER)]


def _dots(shown: Shown) -> list[panels.Panel]:
    """Kendall's tau and the mean of Psi by measure."""
    places = range(len(MEASURES))
    drawn = [
        panels.lines(
            [([np.mean(of(shown.frame, name, row) or [np.nan]) for row in MEASURES], places)],
            name, marker=marker, linestyle="", color=colour,
        )
        for name, marker, colour in ((TAU, "o", plot.BLUE), (GRANULATED, "s", plot.ORANGE))
    ]  # fmt: skip
    names = dict(zip(places, MEASURES.values(), strict=True))
    title = "Agreement with the gap's order"
    return [panels.panel(title, panels.rule("x", 0), *drawn, x="coefficient", yticks=names)]


page = Artifact(
    __file__,
    rows=MEASURES,
    numbers=numbers,
    tables={
        "Measures": Rows(MEASURES, COLUMNS, "measure"),
        "The grid": Rows(
            {"grid": "all"},
            [
                *(seeds(REACHED), Column(NETWORKS, NETWORKS, 0), Column(REACHED, REACHED, percent)),
                Column(GAP, GAP, percent),
            ],
            "networks of",
        ),
    },
    claims=tuple(_claims()),
    figures={
        "generalization": drawing(
            "Generalization measures against the generalization gap",
            _dots,
            "; mean over seeds",
            size=(7.0, 6.0),
            legend=2,
        )
    },
    alike=("scale.name", "dataset", "model.hidden", "stopping", "schedule", "generalization"),
)
