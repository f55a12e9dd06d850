"""Three tables of generalization measures, over a grid of seven hyper-parameters with two values each.

Jiang, Neyshabur, Mobahi, Krishnan, Bengio, "Fantastic generalization measures and where to find them", 2019,
arXiv:1912.02178. The measures are in dgc_repro/study, the coefficients in ranking.py. Every network
is trained to the same cross-entropy of the training images; a network that does not reach it is left out.
The gap is training minus test accuracy, as a share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dgc_repro.paper import facts, panels, plot
from dgc_repro.paper import frame as frames
from dgc_repro.paper.claims import Check, Claim
from dgc_repro.paper.frame import Column, pivot
from dgc_repro.paper.lecture import ranking
from dgc_repro.paper.page import Page, Section, Template, made
from dgc_repro.paper.records import Run, require_alike

WORDS = Template.read(__file__)
ALIKE = ("scale.name", "dataset", "model.hidden", "stopping", "schedule", "generalization")
HYPER: Mapping[str, tuple[Callable[[Run], float], int]] = {
    "batch size": (lambda run: int(run.setting("train.batch_size")), 1),
    "dropout": (lambda run: float(run.setting("model.dropout")), -1),
    "learning rate": (lambda run: float(run.setting("optimizer.lr")), -1),
    "depth": (lambda run: int(run.setting("model.layers")), -1),
    "optimizer": (lambda run: run.setting("experiment.optimizer") != "sgd", 1),
    "weight decay": (lambda run: float(run.setting("optimizer.weight_decay")) > 0, -1),
    "width": (lambda run: int(run.setting("model.width")), -1),
}
"""Each hyper-parameter, and whether a larger value is expected to widen the gap (1) or to narrow it (-1); of
the optimizer the larger value is LAMB. The canonical ordering adds the expected directions up."""
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
ORACLES = {"oracle_0.02": 0.02, "oracle_0.05": 0.05}
CONTROLS = {
    **{name: name.replace("_", " ") for name in ORACLES},
    "canonical": "canonical ordering",
    "random": "random",
}
TABLES = {"outputs": OUTPUTS, "norms": NORMS, "sharpness": SHARPNESS}
LABELS = {
    **OUTPUTS, **NORMS, **SHARPNESS, **CONTROLS, "grid": "the grid",
    "outputs": "sizes and outputs", "norms": "norms and margins",
}  # fmt: skip
TAU, GRANULATED, INFORMATION = "Kendall's tau", "mean of Psi", "conditional information"
BEST = "Kendall's tau of the table's best measure"
"""The best one of the other seeds: the largest of many coefficients of one seed is large by chance."""
REACHED, NETWORKS, GAP = "share that reaches the cross-entropy", "networks", "generalization gap"
DRAWS = 10
"""Of the oracles and of the random measure; their coefficients are means over the draws."""


def _claim(name: str, *checks: Check, **said: str) -> Claim:
    return WORDS.claim(name, *checks, premises=(Check(REACHED, "grid", above=0.8),), **said)


def _tau(rows: Sequence[str], **how: Any) -> list[Check]:
    return [Check(TAU, row, **how) for row in rows]


_ends = ("pac_bayes_orig", "pac_bayes_mag_flatness", "sharpness_orig", "sharpness_mag_flatness")
_negative = {"above": -1.1, "below": 0}
CLAIMS = (
    _claim("sharpness.positive", *_tau(_ends)),
    *(
        _claim("above", Check(BEST, "sharpness", o), id=f"sharpness.above_{o}", other=LABELS[o])
        for o in ("outputs", "norms")
    ),
    _claim("norms.negative", *_tau(("frobenius_distance", "spectral_orig"), **_negative)),
    _claim("size.negative", *_tau(("vc_dimension", "parameters"), **_negative)),
    _claim(
        "sharpness.magnitude",
        *(Check(TAU, f"{k}_mag_flatness", f"{k}_flatness") for k in ("pac_bayes", "sharpness")),
    ),
)


def reached(run: Run) -> bool:
    """Whether a network reached the cross-entropy."""
    return bool((run.summary.get("stopping") or {}).get("reached"))


def gap(run: Run) -> float:
    """Training minus test accuracy, as a share. Without augmentation and dropout in both."""
    summary = run.summary
    trained, tested = (
        float(summary[key]) for key in ("generalization/accuracy_percent", "test/accuracy_percent")
    )
    return (trained - tested) / 100


def numbers(runs: Sequence[Run]) -> pd.DataFrame:
    """The frame: for each seed the coefficients of each measure (a row), and of the grid the gaps."""
    found: list[dict[str, object]] = []
    by_seed: dict[int, dict[str, dict[str, float]]] = {}
    for seed in sorted({run.seed for run in runs}):
        tried = [run for run in runs if run.seed == seed]
        own = [run for run in tried if reached(run)]
        grid = {REACHED: len(own) / len(tried), NETWORKS: float(len(own))}
        if len(own) > 1:
            grid |= {GAP: float(np.mean([gap(run) for run in own]))}
            by_seed[seed] = _coefficients(own, seed)
            for row, values in by_seed[seed].items():
                found += [_line(row, seed, name, value) for name, value in values.items()]
        found += [_line("grid", seed, name, value) for name, value in grid.items()]
    for seed, coefficients in by_seed.items():
        others = [of for other, of in by_seed.items() if other != seed]
        for table, rows in TABLES.items() if others else ():
            taus = {row: float(np.mean([of[row][TAU] for of in others])) for row in rows}
            best = max(taus, key=taus.__getitem__)
            found.append(_line(table, seed, BEST, coefficients[best][TAU]))
    return frames.lines(found)


def _line(row: str, seed: int, quantity: str, value: float) -> dict[str, object]:
    return {"row": row, "seed": seed, "quantity": quantity, "value": value}


def settings(runs: Sequence[Run]) -> NDArray[np.int64]:
    """theta: by network and hyper-parameter, the number of its value, ascending; rates and decays within
    their optimizer."""
    columns = []
    for name, (of, _) in HYPER.items():
        values = [of(run) if name != "learning rate" else _rate(run, runs) for run in runs]
        columns.append(np.unique(values, return_inverse=True)[1].reshape(-1))
    return np.stack(columns, axis=1)


def _rate(run: Run, runs: Sequence[Run]) -> int:
    of, _ = HYPER["learning rate"]
    optimizer = run.setting("experiment.optimizer")
    rates = {of(other) for other in runs if other.setting("experiment.optimizer") == optimizer}
    return sorted(rates).index(of(run))


def _coefficients(runs: Sequence[Run], seed: int) -> dict[str, dict[str, float]]:
    """By row, every coefficient of one seed's networks."""
    theta, gaps = settings(runs), np.array([gap(run) for run in runs])
    measures = {
        row: np.array([float(run.summary[f"generalization/{row}"]) for run in runs])
        for rows in TABLES.values()
        for row in rows
    }
    directions = np.array([direction for _, direction in HYPER.values()])
    measures["canonical"] = theta @ directions
    found = {row: _of_measure(mu, gaps, theta) for row, mu in measures.items()}
    draw = np.random.default_rng(seed)
    for row in ("random", *ORACLES):
        noise = [draw.normal(size=len(gaps)) for _ in range(DRAWS)]
        drawn = [gaps + ORACLES[row] * n if row in ORACLES else n for n in noise]
        each = [_of_measure(mu, gaps, theta) for mu in drawn]
        found[row] = {name: float(np.mean([one[name] for one in each])) for name in each[0]}
    return found


def _of_measure(
    mu: NDArray[np.float64], gaps: NDArray[np.float64], theta: NDArray[np.int64]
) -> dict[str, float]:
    of_axis = {name: ranking.psi(mu, gaps, theta, axis) for axis, name in enumerate(HYPER)}
    return {
        **of_axis,
        TAU: ranking.tau(mu, gaps),
        GRANULATED: float(np.nanmean(list(of_axis.values()))),
        INFORMATION: ranking.conditional_information(mu, gaps, theta),
    }


def page(runs: Sequence[Run], scale: str) -> Page:
    """The page of the finished runs of one scale. Raises UserError if they are not alike."""
    require_alike(runs, ALIKE)
    found = numbers(runs)
    columns = [
        *(Column(name, name, 2) for name in HYPER),
        Column("tau", TAU, 2),
        Column("mean of Psi", GRANULATED, 2),
        Column("cond. inf.", INFORMATION, frames.percent),
    ]
    titles = zip(
        ("Sizes and outputs", "Norms and margins", "Sharpness"), TABLES.values(), strict=True
    )
    tables = [
        Section(title, pivot(found, {**rows, **CONTROLS}, columns, "measure"))
        for title, rows in titles
    ]
    grid = (
        frames.seeds(REACHED),
        Column("networks", NETWORKS, 0),
        Column("reach the cross-entropy", REACHED, frames.percent),
        Column("mean gap", GAP, frames.percent),
    )
    targets = facts.distinct(f"{run.setting('stopping.target'):g} nats" for run in runs)
    out = [run for run in runs if not reached(run)]
    title = "Generalization measures against the generalization gap"
    said = f"{facts.caption(runs, scale)}; mean over seeds"
    return made(
        __file__, scale, runs, found,
        [*tables, Section("The grid", pivot(found, {"grid": "all"}, grid, "networks of"))], CLAIMS,
        labels=LABELS,
        head=[
            ("training cross-entropy to reach", targets),
            ("networks left out", f"{len(out)} of {len(runs)} do not reach it"),
        ],
        figures={
            "generalization": lambda: plot.figure(
                title, said, _panels(found), columns=2, size=(6.0, 8.0), legend=2
            )
        },
    )  # fmt: skip


def _panels(found: pd.DataFrame) -> list[panels.Panel]:
    """Kendall's tau and the mean of Psi by measure; Psi by measure and hyper-parameter."""
    rows = {**CONTROLS, **OUTPUTS, **NORMS, **SHARPNESS}
    places = np.arange(len(rows))

    def means(quantity: str) -> list[float]:
        values = [frames.of(found, quantity, row) for row in rows]
        return [float(np.mean(v)) if v else float("nan") for v in values]

    def dots(quantity: str, marker: str, **style: Any) -> panels.Draw:
        return panels.lines(
            [(means(quantity), places)], quantity, marker=marker, linestyle="", **style
        )

    psi = panels.heat_map(
        np.array([means(name) for name in HYPER]).T, [""] * len(rows), list(HYPER),
        lambda row, value: "" if np.isnan(value) else f"{value:.1f}", lambda value: abs(value) > 0.6,
        angle=35, fontsize=6.5, cmap="RdBu_r", vmin=-1, vmax=1,
    )  # fmt: skip
    return [
        panels.panel(
            "Agreement with the gap's order", panels.rule("x", 0, color="#888888"),
            dots(TAU, "o", color=plot.BLUE), dots(GRANULATED, "s", color=plot.ORANGE, markersize=4),
            x="coefficient", xlim=(-1, 1), ylim=(len(rows) - 0.5, -0.5),
            yticks=dict(zip(places, rows.values(), strict=True)),
        ),
        panels.panel("Psi by hyper-parameter", psi),
    ]  # fmt: skip
