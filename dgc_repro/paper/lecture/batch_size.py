"""Steps to a target against batch size: perfect scaling, diminishing returns, a plateau.

For each batch size the learning rate is the one with the fewest steps in the mean over seeds, of those that
all seeds have tried. Seed 0 may try more rates, to find the range (`tuned_of`).

The curve S(B) = S_min (1 + B_crit / B) follows from equation 2.11, with E = B S, of McCandlish, Kaplan,
Amodei et al., "An empirical model of large-batch training", 2018, arXiv:1812.06162: at B_crit twice
S_min steps are needed. The gradient noise scale tr(Sigma) / ||G||^2 (appendix A.1 there) is estimated from
the gradients of N workers with b images (or columns of text) each:

    ||G||^2   = (N b |mean|^2 - b mean |g_i|^2) / (N b - b)
    tr(Sigma) = (mean |g_i|^2 - |mean|^2) / (1 / b - 1 / (N b))
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from scipy import optimize

from dgc_repro.paper import facts, panels, plot
from dgc_repro.paper import frame as frames
from dgc_repro.paper.claims import Check, Claim
from dgc_repro.paper.frame import Column, Values, pivot
from dgc_repro.paper.page import Page, Section, Template, made
from dgc_repro.paper.records import Run, require_alike
from dgc_repro.paper.statistics import interval

WORDS = Template.read(__file__)
ALIKE = ("scale.name", "dataset", "model", "stopping.target", "optimizer.momentum", "schedule")
WORKLOADS = {
    "cnn_digits": "small CNN, digits",
    "cnn_cifar10": "small CNN, CIFAR-10",
    "resnet_cifar10": "slim ResNet, CIFAR-10",
    "transformer_text": "small transformer, text",
    "lstm_text": "small LSTM, text",
}
STEPS, RATE = "steps to the target", "learning rate with the fewest steps"
TRIED, EDGES = "learning rates tried", "batch sizes with a best learning rate at an edge"
FIRST, LAST = "steps saved by doubling the smallest batch", "steps saved by the last doubling"
CRITICAL, LEAST, NOISE = "critical batch size", "least steps", "gradient noise scale"
NOISE_RATIO = "gradient noise scale over critical batch size"
UNITS = {LEAST: "steps", CRITICAL: "samples", NOISE: "samples", EDGES: ""}
PERFECT, FLAT = (1.6, 2.5), 1.25
"""Ours: the range around 2 that counts as perfect scaling, and the most that a plateau still saves."""
NEXT = 2.1
"""Neighbours in a grid of learning rates are at most so many times apart: factors of two."""
ORDER = 10.0
"""McCandlish et al. say that the noise scale gives the order of magnitude of the critical batch size."""


def inside(row: str) -> tuple[Check, ...]:
    """The premise that no best learning rate is at an edge of its grid: a better one may lie outside."""
    return (Check(EDGES, row, above=-math.inf, below=0.5),)


def _claims(workload: str) -> Iterator[Claim]:
    checks = {
        "perfect": Check(FIRST, workload, above=PERFECT[0], below=PERFECT[1], printed=2.0),
        "plateau": Check(LAST, workload, above=-math.inf, below=FLAT),
        "noise": Check(NOISE_RATIO, workload, above=1 / ORDER, below=ORDER, printed=1.0),
    }
    what = WORKLOADS[workload]
    for name, check in checks.items():
        yield WORDS.claim(name, check, of=workload, premises=inside(workload), ours=True, what=what)


CLAIMS = tuple(claim for workload in WORKLOADS for claim in _claims(workload))


def batch_of(run: Run) -> int:
    """Images, or columns of text, of a step, over all workers and micro-steps."""
    keys = ("train.batch_size", "train.accumulate", "launch.workers")
    return math.prod(int(run.setting(key)) for key in keys)


def is_timed(run: Run) -> bool:
    """Whether the steps of a run count. A run of several workers measures the noise scale."""
    return int(run.setting("launch.workers")) == 1


def steps_of(run: Run) -> float:
    """Steps to the target, infinite where it was not reached."""
    stopping = run.summary.get("stopping") or {}
    return float(stopping["step"]) if stopping.get("reached") else math.inf


def curve(batch: np.ndarray, least: float, critical: float) -> np.ndarray:
    """S(B), see above."""
    return np.asarray(least * (1 + critical / batch))


def fitted(batches: Sequence[float], steps: Sequence[float]) -> tuple[float, float]:
    """(S_min, B_crit), by least squares of the logarithm; NaN where fewer than three batches reach the
    target, or where B_crit lies outside the range of those batches."""
    known = [(b, s) for b, s in zip(batches, steps, strict=True) if math.isfinite(s)]
    if len(known) < 3:
        return math.nan, math.nan
    b, s = (np.asarray(values, dtype=float) for values in zip(*known, strict=True))

    def least_of(critical: float) -> float:
        return float(np.exp(np.mean(np.log(s) - np.log1p(critical / b))))

    def slope(log: float) -> float:
        """Return half the derivative of the sum of squares by log B_crit, at the best S_min."""
        critical = np.exp(log)
        misfit = np.log(curve(b, least_of(critical), critical)) - np.log(s)
        return float(misfit @ (critical / (b + critical)))

    ends = np.log(b.min()), np.log(b.max())
    if not slope(ends[0]) <= 0 <= slope(ends[1]):
        return math.nan, math.nan
    critical = float(np.exp(optimize.brentq(slope, *ends, xtol=1e-15)))
    return least_of(critical), critical


def saved(batches: Sequence[int], steps: Sequence[float]) -> float:
    """Steps at the first of two batch sizes over steps at the second, twice the first; else NaN, also where
    one of them never reaches the target."""
    (one, other), (before, after) = batches, steps
    is_doubled = other == 2 * one and math.isfinite(before) and math.isfinite(after)
    return before / after if is_doubled else math.nan


def noise_scale(run: Run) -> float:
    """tr(Sigma) / ||G||^2 of the mean squares of all recorded steps, in images or columns of text."""
    table = run.decisions[["own_square", "mean_square"]].dropna()
    own, mean = table["own_square"].mean(), table["mean_square"].mean()
    small, whole = batch_of(run) / int(run.setting("launch.workers")), float(batch_of(run))
    signal = (whole * mean - small * own) / (whole - small)
    noise = (own - mean) / (1 / small - 1 / whole)
    return float(noise / signal) if signal > 0 else math.inf


def target_of(run: Run) -> str:
    """The target in words."""
    value, metric = run.setting("stopping.target"), run.setting("stopping.metric")
    return f"test perplexity {value:g}" if metric == "perplexity" else f"{value:g} % test accuracy"


def numbers(runs: Sequence[Run]) -> pd.DataFrame:
    """The frame: by workload and batch size, what was tuned; by workload, the fit and the noise scale."""
    tried = tried_of(run for run in runs if is_timed(run))
    noise = {f"{r.model} {r.seed}": noise_scale(r) for r in runs if not is_timed(r)}
    names = {"steps": (STEPS, "steps"), "rate": (RATE, ""), "tried": (TRIED, "")}
    parts = []
    for workload, own in tried.groupby("workload"):
        tuned = tuned_of(own)
        tuned["row"] = [f"{workload}.b{batch}" for batch in tuned["batch"]]
        parts.append(frames.longer(tuned, names))
        for seed, points in tuned.groupby("seed"):
            found = _of_curve(points.sort_values("batch"), noise.get(f"{workload} {seed}"))
            at = {"row": workload, "seed": seed}
            parts.append(
                frames.lines(
                    {**at, "quantity": name, "value": value, "unit": UNITS.get(name, "x")}
                    for name, value in found.items()
                )
            )
    return frames.join(*parts)


def _of_curve(points: pd.DataFrame, noise: float | None) -> dict[str, float]:
    """What the claims compare, of one workload and seed."""
    batches, steps = list(points["batch"]), list(points["steps"])
    least, critical = fitted(batches, steps)
    found = {LEAST: least, CRITICAL: critical, EDGES: float(points["at_edge"].sum())}
    if noise is not None:
        found |= {NOISE: noise, NOISE_RATIO: noise / critical}
    if len(steps) > 1:
        ends = saved(batches[:2], steps[:2]), saved(batches[-2:], steps[-2:])
        found |= {FIRST: ends[0], LAST: ends[1]}
    return found


def tried_of(runs: Iterable[Run]) -> pd.DataFrame:
    """What each run tried: columns workload, batch, rate, seed, steps."""
    return pd.DataFrame(
        {
            "workload": run.model, "batch": batch_of(run), "rate": float(run.setting("optimizer.lr")),
            "seed": run.seed, "steps": steps_of(run),
        }
        for run in runs
    )  # fmt: skip


def tuned_of(tried: pd.DataFrame) -> pd.DataFrame:
    """The runs with the best learning rate of each batch size: columns batch, seed, steps, rate, tried,
    at_edge.

    The best rate has the fewest steps in the mean over seeds, among the rates that the most seeds have tried.
    at_edge: no rate up to twice as large, or none down to half as large, was tried, or a rate with fewer
    seeds needs fewer steps in these seeds: a better rate may have been missed.
    """
    kept: list[pd.DataFrame] = []
    for _, own in tried.groupby("batch"):
        table = own.pivot(index="rate", columns="seed", values="steps")
        seeds = table.notna().sum(axis=1)
        means = table[seeds == seeds.max()].mean(axis=1)
        rate = means.idxmin()
        best = table.loc[rate]
        missed = any(
            other[other.notna()].mean() < best[other.notna()].mean()
            for _, other in table[seeds < seeds.max()].iterrows()
        )
        apart = [float(other) / float(rate) for other in table.index]
        is_inside = any(1 < a <= NEXT for a in apart) and any(1 / NEXT <= a < 1 for a in apart)
        at_edge = missed or not is_inside
        kept.append(own[own["rate"] == rate].assign(tried=len(table), at_edge=at_edge))
    return pd.concat(kept, ignore_index=True)


def page(runs: Sequence[Run], scale: str) -> Page:
    """The page of the finished runs of one scale. Raises UserError if they are not alike."""
    for workload in WORKLOADS:
        require_alike([run for run in runs if run.model == workload], ALIKE)
    found = numbers(runs)
    measured = {w: label for w, label in WORKLOADS.items() if batches_of(found, w)}
    columns = (
        frames.seeds(STEPS),
        Column("learning rates tried", TRIED, first),
        Column("best learning rate", RATE, first),
        Column("steps to the target", STEPS, 0),
    )
    rows = {
        row: f"{label}, {batch}"
        for workload, label in measured.items()
        for batch, row in batches_of(found, workload).items()
    }
    fits = (
        Column("critical batch size", CRITICAL, 0),
        Column("critical: 95 % interval", CRITICAL, _interval),
        Column("gradient noise scale", NOISE, 0),
        Column("noise scale: 95 % interval", NOISE, _interval),
        Column("least steps", LEAST, 0),
        Column("best learning rates at an edge", EDGES, 0),
        Column("saved by the first doubling", FIRST, frames.times),
        Column("saved by the last doubling", LAST, frames.times),
    )
    timed = [f"{WORKLOADS[run.model]}: {target_of(run)}" for run in runs if is_timed(run)]
    title = "Steps to a target against batch size (learning rate tuned for each batch size)"
    said = (
        f"{facts.caption(runs, scale)}; mean over seeds, bars: standard deviation, shaded: 95 % interval of "
        "the critical batch size"
    )
    shown = [_panel(found, workload, label) for workload, label in measured.items()]
    return made(
        __file__, scale, runs, found,
        [
            Section("Steps to the target", pivot(found, rows, columns, "batch size")),
            Section("The curve", pivot(found, measured, fits, "workload")),
        ],
        CLAIMS, labels=WORKLOADS, head=[("target", facts.distinct(timed))],
        figures={"batch_size": lambda: plot.figure(title, said, shown, columns=3, legend=3)},
    )  # fmt: skip


def first(values: Values) -> str:
    """A number that all seeds share."""
    return f"{values[0]:g}" if values else "-"


def batches_of(found: pd.DataFrame, row: str, quantity: str = STEPS) -> dict[int, str]:
    """By batch size, ascending, the rows ``<row>.b<batch size>`` that have a quantity."""
    rows = found.loc[found["quantity"] == quantity, "row"].unique()
    return dict(sorted((int(r.rpartition(".b")[2]), r) for r in rows if r.startswith(f"{row}.b")))


def _interval(values: Values) -> str:
    """Student's t interval over seeds, of the logarithms."""
    if len(values) < 2 or not np.isfinite(values).all():
        return "-"
    _, low, high = interval(values, ratio=True)
    return f"{low:.0f} to {high:.0f}"


def drawn(
    found: pd.DataFrame, quantity: str, rows: Mapping[int, str], *, settings: Mapping[int, str] | None = None,
    spread: bool = True, **style: Any,
) -> panels.Draw:  # fmt: skip
    """Mean and standard deviation over seeds at each batch size that has finite values; ``settings``: of the
    frame's lines."""
    values = {
        b: frames.of(found, quantity, r, (settings or {}).get(b, "")) for b, r in rows.items()
    }
    known = {b: v for b, v in values.items() if v and np.isfinite(v).all()}

    def draw(axes: Axes) -> None:
        if known:
            means = [float(np.mean(v)) for v in known.values()]
            sds = [float(np.std(v, ddof=1)) if len(v) > 1 else 0.0 for v in known.values()]
            axes.errorbar(list(known), means, yerr=sds if spread else [0.0] * len(sds), **style)

    return draw


def _panel(found: pd.DataFrame, workload: str, label: str) -> panels.Panel:
    """Steps by batch size with perfect scaling, the fit, and the noise scale."""
    rows = batches_of(found, workload)
    steps = {b: frames.of(found, STEPS, row) for b, row in rows.items()}
    means = {b: float(np.mean(v)) for b, v in steps.items() if v and np.isfinite(v).all()}
    how: dict[str, Any] = {"fmt": "o", "color": plot.BLUE, "markersize": 5, "zorder": 3}
    measured = drawn(found, STEPS, rows, label="measured", **how)
    lines = partial(_lines, found, workload, means)
    drawings: list[panels.Draw] = [lines, measured] if means else []
    _, draw = panels.panel(
        label, *drawings, x="batch size", y="steps to the target", log="xy",
        otherwise="no batch size reaches the target",
    )  # fmt: skip

    def with_room_below(axes: Axes) -> None:
        draw(axes)
        if means:
            axes.set_ylim(bottom=min(means.values()) / 2)

    return label, with_room_below


def _lines(found: pd.DataFrame, workload: str, means: Mapping[int, float], axes: Axes) -> None:
    batches = list(means)
    ends = np.array([batches[0], batches[-1]])  # a straight line: both axes are logarithmic
    axes.plot(
        ends, means[batches[0]] * ends[0] / ends, ":", color="#888888", label="perfect scaling"
    )
    least, critical = (frames.of(found, name, workload) for name in (LEAST, CRITICAL))
    if least and critical:
        grid = np.geomspace(batches[0], batches[-1], 100)
        fit = curve(grid, float(np.mean(least)), float(np.mean(critical)))
        axes.plot(grid, fit, color=plot.ORANGE, label="fit, least steps x (1 + critical / batch)")
        middle, low, high = interval(critical, ratio=True)
        axes.axvline(middle, color=plot.ORANGE, linewidth=0.9, label=CRITICAL)
        if len(critical) > 1:
            low, high = max(low, batches[0] / 2), min(high, 2 * batches[-1])
            axes.axvspan(low, high, color=plot.ORANGE, alpha=0.15, linewidth=0)
    if noise := frames.of(found, NOISE, workload):
        place = interval(noise, ratio=True)[0]
        axes.axvline(place, color=plot.GREEN, linewidth=0.9, linestyle="--", label=NOISE)
