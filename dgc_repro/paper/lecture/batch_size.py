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
from collections.abc import Iterable, Sequence
from functools import partial

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import optimize

from dgc_repro.paper import facts, plot
from dgc_repro.paper import frame as frames
from dgc_repro.paper.claims import OURS, Check, Claim
from dgc_repro.paper.frame import Column, pivot
from dgc_repro.paper.page import Page, Section, made
from dgc_repro.paper.records import Run, require_alike
from dgc_repro.paper.statistics import interval

ALIKE = ("scale.name", "dataset", "model", "stopping.target", "optimizer.momentum", "schedule")
WORKLOADS = {
    "cnn_digits": "small CNN, digits",
    "cnn_cifar10": "small CNN, CIFAR-10",
    "resnet_cifar10": "slim ResNet, CIFAR-10",
    "transformer_text": "small transformer, text",
    "lstm_text": "small LSTM, text",
}
STEPS, RATE = "steps to the target", "learning rate with the fewest steps"
TRIED, EDGES = (
    "learning rates tried",
    "batch sizes with a best learning rate at an edge",
)
FIRST, LAST = "steps saved by doubling the smallest batch", "steps saved by the last doubling"
CRITICAL, LEAST, NOISE = "critical batch size", "least steps", "gradient noise scale"
NOISE_RATIO = "gradient noise scale over critical batch size"
PERFECT, FLAT = (1.6, 2.5), 1.25
"""Ours: the range around 2 that counts as perfect scaling, and the most that a plateau still saves."""
NEXT = 2.1
"""Neighbours in a grid of learning rates are at most so many times apart: factors of two."""
ORDER = 10.0
"""McCandlish et al. say that the noise scale gives the order of magnitude of the critical batch size."""
_source = "steps to a target against batch size"


def _inside(workload: str) -> tuple[Check, ...]:
    """The premise that no best learning rate is at an edge of its grid: a better one may lie outside."""
    return (Check(EDGES, workload, above=-math.inf, below=0.5),)


CLAIMS = tuple(
    claim
    for workload, label in WORKLOADS.items()
    for claim in (
        Claim(
            f"{workload}.perfect", f"{label}: at small batches twice the batch needs half the steps.",
            _source, (Check(FIRST, workload, above=PERFECT[0], below=PERFECT[1], printed=2.0),),
            f"Steps at the smallest batch over steps at twice this batch, within {PERFECT[0]:g} and "
            f"{PERFECT[1]:g}; learning rates tuned.", _inside(workload), OURS,
        ),
        Claim(
            f"{workload}.plateau", f"{label}: at large batches a larger batch saves no steps.", _source,
            (Check(LAST, workload, above=-math.inf, below=FLAT),),
            f"Steps at half of the largest batch over steps at the largest, below {FLAT:g}.",
            _inside(workload), OURS,
        ),
        Claim(
            f"{workload}.noise", f"{label}: the noise scale and the critical batch size are of one order of "
            "magnitude.", "McCandlish et al., 2018, abstract",
            (Check(NOISE_RATIO, workload, above=1 / ORDER, below=ORDER, printed=1.0),),
            f"Noise scale over critical batch size of the same seed, between 1 / {ORDER:g} and {ORDER:g}.",
            _inside(workload), OURS,
        ),
    )
)  # fmt: skip


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


def page(runs: Sequence[Run], scale: str) -> Page:
    """The page of the finished runs of one scale. Raises UserError if they are not alike."""
    for workload in WORKLOADS:
        require_alike([run for run in runs if run.model == workload], ALIKE)
    timed = [run for run in runs if is_timed(run)]
    found = numbers(runs)
    return made(
        __file__,
        scale,
        runs,
        found,
        _sections(found),
        CLAIMS,
        labels=WORKLOADS,
        head=[
            (
                "target",
                facts.distinct(f"{WORKLOADS[r.model]}: {target_of(r)}" for r in timed),
            )
        ],
        figures={"batch_size": lambda: _figure(found, runs, scale)},
    )


def target_of(run: Run) -> str:
    """The target in words."""
    value, metric = run.setting("stopping.target"), run.setting("stopping.metric")
    return f"test perplexity {value:g}" if metric == "perplexity" else f"{value:g} % test accuracy"


def numbers(runs: Sequence[Run]) -> pd.DataFrame:
    """The frame: by workload and batch size, what was tuned; by workload, the fit and the noise scale."""
    tried = tried_of(run for run in runs if is_timed(run))
    noise = {f"{r.model} {r.seed}": noise_scale(r) for r in runs if not is_timed(r)}
    parts = []
    for workload, own in tried.groupby("workload"):
        tuned = tuned_of(own)
        tuned["row"] = [f"{workload}.b{batch}" for batch in tuned["batch"]]
        parts.append(
            frames.longer(
                tuned, {"steps": (STEPS, "steps"), "rate": (RATE, ""), "tried": (TRIED, "")}
            )
        )
        for seed, points in tuned.groupby("seed"):
            points = points.sort_values("batch")
            batches, steps = list(points["batch"]), list(points["steps"])
            least, critical = fitted(batches, steps)
            of_seed = {LEAST: least, CRITICAL: critical, EDGES: float(points["at_edge"].sum())}
            if (scale := noise.get(f"{workload} {seed}")) is not None:
                of_seed |= {NOISE: scale, NOISE_RATIO: scale / critical}
            if len(steps) > 1:
                of_seed |= {
                    FIRST: saved(batches[:2], steps[:2]), LAST: saved(batches[-2:], steps[-2:])
                }  # fmt: skip
            units = {LEAST: "steps", CRITICAL: "samples", NOISE: "samples", EDGES: ""}
            parts.append(
                frames.lines(
                    {
                        "row": workload,
                        "seed": seed,
                        "quantity": name,
                        "value": value,
                        "unit": units.get(name, "x"),
                    }
                    for name, value in of_seed.items()
                )
            )
    return frames.join(*parts)


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


def _batches(found: pd.DataFrame, workload: str) -> dict[str, int]:
    """The rows of a workload with their batch sizes, ascending."""
    rows = found.loc[found["quantity"] == STEPS, "row"].unique()
    own = {row: int(row.rpartition(".b")[2]) for row in rows if row.startswith(f"{workload}.")}
    return dict(sorted(own.items(), key=lambda item: item[1]))


def _sections(found: pd.DataFrame) -> list[Section]:
    columns = (
        frames.seeds(STEPS),
        Column("learning rates tried", TRIED, lambda values: f"{values[0]:g}"),
        Column("best learning rate", RATE, lambda values: f"{values[0]:g}"),
        Column("steps to the target", STEPS, 0),
    )
    rows = {
        row: f"{label}, {batch}"
        for workload, label in WORKLOADS.items()
        for row, batch in _batches(found, workload).items()
    }
    steps = Section("Steps to the target", pivot(found, rows, columns, "batch size"))
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
    measured = {w: label for w, label in WORKLOADS.items() if _batches(found, w)}
    return [steps, Section("The curve", pivot(found, measured, fits, "workload"))]


def _interval(values: frames.Values) -> str:
    """Student's t interval over seeds, of the logarithms."""
    if len(values) < 2 or not np.isfinite(values).all():
        return "-"
    _, low, high = interval(values, ratio=True)
    return f"{low:.0f} to {high:.0f}"


def _figure(found: pd.DataFrame, runs: Sequence[Run], scale: str) -> Figure:
    """By workload: steps by batch size with perfect scaling, the fit, and the noise scale."""
    panels: plot.Panels = [
        (label, partial(_steps, found, workload))
        for workload, label in WORKLOADS.items()
        if _batches(found, workload)
    ]
    title = "Steps to a target against batch size (learning rate tuned for each batch size)"
    said = (
        f"{facts.caption(runs, scale)}; mean over seeds, bars: standard deviation, shaded: 95 % interval of "
        "the critical batch size"
    )
    return plot.figure(title, said, panels, columns=3, legend=3)


def _points(
    found: pd.DataFrame, workload: str, quantity: str
) -> tuple[list[int], list[list[float]]]:
    rows = _batches(found, workload)
    values = {b: frames.of(found, quantity, row) for row, b in rows.items()}
    known = {b: v for b, v in values.items() if v and np.isfinite(v).all()}
    return list(known), list(known.values())


def _steps(found: pd.DataFrame, workload: str, axes: Axes) -> None:
    batches, steps = _points(found, workload, STEPS)
    if not batches:
        plot.empty(axes, "no batch size reaches the target")
        return
    means = [float(np.mean(values)) for values in steps]
    spread = [float(np.std(values, ddof=1)) if len(values) > 1 else 0.0 for values in steps]
    grid = np.geomspace(batches[0], batches[-1], 100)
    ends = np.array([batches[0], batches[-1]])  # a straight line: both axes are logarithmic
    axes.plot(ends, means[0] * ends[0] / ends, ":", color="#888888", label="perfect scaling")
    least, critical = (frames.of(found, name, workload) for name in (LEAST, CRITICAL))
    if least and critical:
        mean = curve(grid, float(np.mean(least)), float(np.mean(critical)))
        axes.plot(grid, mean, color=plot.ORANGE, label="fit, least steps x (1 + critical / batch)")
        middle, low, high = interval(critical, ratio=True)
        axes.axvline(middle, color=plot.ORANGE, linewidth=0.9, label=CRITICAL)
        if len(critical) > 1:
            low, high = max(low, batches[0] / 2), min(high, 2 * batches[-1])
            axes.axvspan(low, high, color=plot.ORANGE, alpha=0.15, linewidth=0)
    if noise := frames.of(found, NOISE, workload):
        axes.axvline(
            interval(noise, ratio=True)[0],
            color=plot.GREEN,
            linewidth=0.9,
            linestyle="--",
            label=NOISE,
        )
    axes.errorbar(
        batches,
        means,
        yerr=spread,
        fmt="o",
        color=plot.BLUE,
        markersize=5,
        label="measured",
        zorder=3,
    )
    plot.name_axes(axes, "batch size", "steps to the target", "xy")
    axes.set_ylim(bottom=min(means) / 2)
