"""Equivalent steps: what a setting costs as the share of the steps that a shortened dense training could save
to end with the same loss. A step that is s times as fast trains s (1 - share) times as fast: the net speedup.

Dense training with the fractions f of its steps, its schedule shortened with them, calibrates the loss
against ln(1/f) by a quadratic (`Calibration`). The share of a setting is read off the curve at its loss
(inverse regression). The interval is the set of shares that a t test at 5 % does not reject, with the errors
of the setting's mean, of the curve and of dense training. Losses are compared within a kind of processor.

Source  Draper, Smith, "Applied Regression Analysis", 3rd edition, 1998, section 3.2, for inverse
        regression; here the curve is a quadratic, and the response is a mean of several runs
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from dgc_repro.paper.benchmark.workloads import DENSE, TUNES, Workload, together
from dgc_repro.paper.records import Run
from dgc_repro.paper.statistics import COVERAGE, Sample
from dgc_repro.paper.verdict import MIN_SEEDS

SHARE = "train.steps_share"
POINTS = 3001
"""Of the grid on which shares are tested."""
LEAST_SHARES = 2
"""Fractions below 1 that a calibration needs."""

Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class Share:
    """A cost as a share of the steps, in percent: the estimate and the ends of the 95 % interval. Infinite:
    beyond the calibrated range, from 0 to ``most``. Below 0 a setting ends better than whole training, and no
    run says by how many steps."""

    mean: float
    low: float
    high: float
    most: float

    @property
    def text(self) -> str:
        """The estimate with its interval, in percent of the steps."""
        mean, low, high = (self._words(value) for value in (self.mean, self.low, self.high))
        return (
            mean if math.isinf(self.mean) and self.low == self.high else f"{mean} ({low} to {high})"
        )

    @property
    def sentence(self) -> str:
        """What the interval says of the steps that uncompressed training needs for the same loss."""
        if self.low < 0:
            return f"No cost in steps is shown, at most {self._words(self.high)} % of them."
        return f"It costs {self.text} % of the steps that uncompressed training needs for the same loss."

    def _words(self, percent: float) -> str:
        if math.isinf(percent):
            return f"> {self.most:.0f}" if percent > 0 else "< 0"
        return f"{percent:.0f}"

    def net_text(self, speedup: float) -> str:
        """The net speedup with two digits; below which it is, for a share beyond the calibration."""
        beyond = self.mean == math.inf
        net = speedup * (1 - self.most / 100) if beyond else self.net(speedup)[0]
        return f"{'< ' * beyond}{float(f'{net:.2g}'):g}"

    def net(self, speedup: float) -> tuple[float, float, float]:
        """Return the net speedup of a step that is so many times as fast, and the ends of its interval."""
        mean, low, high = (
            speedup * (1 - min(max(share, 0.0), 100.0) / 100)
            for share in (self.mean, self.high, self.low)
        )
        return mean, low, high


def loss_of(run: Run) -> float:
    """The loss of the last test, in nats: of images that of test and validation images together."""
    return together(run, "loss")


def is_shortened(run: Run) -> bool:
    """Whether a run has a part of the steps of its epochs."""
    return float(run.setting(SHARE, 1.0)) < 1


class Calibration:
    """The loss of dense training against the logarithm of the inverse fraction of its steps. Raises
    ValueError for fewer than `LEAST_SHARES` fractions, or too few runs.

    fractions  those of the runs, the true ones
    curve      coefficients of the logarithm and of its square
    sd, df     the residual standard deviation in nats, and its degrees of freedom
    """

    def __init__(self, runs: Sequence[Run], workload: Workload) -> None:
        dense = [run for run in runs if run.method.partition("_")[0] == DENSE]
        dense = [run for run in dense if np.isfinite(loss_of(run)) and TUNES not in run.method]
        whole = max((float(run.summary["steps"]) for run in dense), default=1.0)
        self.workload = workload
        self.fractions = [float(run.summary["steps"]) / whole for run in dense]
        if len({f for f in self.fractions if f < 1}) < LEAST_SHARES:
            raise ValueError("too few fractions of the steps")
        self.samples = [Sample(loss_of(run), run.seed, run.processor) for run in dense]
        self.kinds = sorted({one.block for one in self.samples})
        rows = [
            self._row({one.block: 1.0}, math.log(1 / f))
            for one, f in zip(self.samples, self.fractions, strict=True)
        ]
        design, losses = np.array(rows), np.array([one.value for one in self.samples])
        self._inverse: Matrix = np.linalg.pinv(design.T @ design)
        self._found: Matrix = self._inverse @ design.T @ losses
        rest = losses - design @ self._found
        self.df = len(losses) - int(np.linalg.matrix_rank(design))
        if self.df < 1:
            raise ValueError("too few runs for a curve and its error")
        self.sd = math.sqrt(float(rest @ rest) / self.df)

    @property
    def curve(self) -> tuple[float, float]:
        """Coefficients of ln(1/f) and of its square, in nats."""
        return float(self._found[-2]), float(self._found[-1])

    @property
    def above(self) -> Matrix:
        """The loss of each run above what the fit gives whole training on its kind of processor, in nats."""
        levels = dict(zip(self.kinds, self._found[:-2], strict=True))
        return np.array([one.value - levels[one.block] for one in self.samples])

    @property
    def most(self) -> float:
        """The largest share that is calibrated, in percent."""
        return 100 * (1 - min(self.fractions))

    def share(self, runs: Sequence[Run]) -> Share | None:
        """The cost of a setting. None for too few seeds, a seed that diverged, or kinds of processors on
        which dense training did not train."""
        own = [Sample(loss_of(run), run.seed, run.processor) for run in runs]
        own = [one for one in own if one.block in self.kinds]
        losses = np.array([one.value for one in own])
        if (n := len(own)) < MIN_SEEDS or not np.isfinite(losses).all():
            return None
        weights: dict[str, float] = {}
        for one in own:
            weights[one.block] = weights.get(one.block, 0.0) + 1 / n
        grid = np.linspace(0.0, math.log(1 / min(self.fractions)), POINTS)
        rows = np.array([self._row(weights, at) for at in grid])
        above = losses.mean() - rows @ self._found
        variance, df = self._variance(own)
        errors = np.sqrt(
            variance / n + self.sd**2 * np.einsum("ij,jk,ik->i", rows, self._inverse, rows)
        )
        fits = np.abs(above) <= special.stdtrit(df, (1 + COVERAGE) / 2) * errors
        ends = 100 * (1 - np.exp(-grid))
        mean = float(ends[np.argmin(np.abs(above))])
        mean = -math.inf if above[0] < 0 else math.inf if above[-1] > 0 else mean
        inside = ends[fits]
        low, high = (float(inside[0]), float(inside[-1])) if inside.size else (mean, mean)
        return Share(mean, -math.inf if fits[0] else low, math.inf if fits[-1] else high, self.most)

    def shares(self, runs: Sequence[Run]) -> dict[str, Share]:
        """The cost of each method but dense training that has one."""
        own: dict[str, list[Run]] = {}
        for run in runs:
            if run.method != DENSE:
                own.setdefault(run.method, []).append(run)
        found = {method: self.share(of) for method, of in own.items()}
        return {method: share for method, share in found.items() if share is not None}

    def _variance(self, own: Sequence[Sample]) -> tuple[float, float]:
        """The variance of a setting's losses and its degrees of freedom: that of dense training, or its own
        where that is larger."""
        blocks: dict[str, list[float]] = {}
        for one in own:
            blocks.setdefault(one.block, []).append(one.value)
        df = sum(len(values) - 1 for values in blocks.values())
        squares = sum(
            (len(values) - 1) * np.var(values, ddof=1)
            for values in blocks.values()
            if len(values) > 1
        )
        if not df or squares / df <= self.sd**2:
            return self.sd**2, float(self.df)
        variance = float(squares / df)
        both = variance / len(own) + self.sd**2 / len(self.samples)  # Welch and Satterthwaite
        freedom = both**2 / (
            (variance / len(own)) ** 2 / df + (self.sd**2 / len(self.samples)) ** 2 / self.df
        )
        return variance, freedom

    def _row(self, weights: Mapping[str, float], at: float) -> list[float]:
        """A row of the design: an intercept a kind of processor, the logarithm and its square."""
        return [*(weights.get(kind, 0.0) for kind in self.kinds), at, at**2]


def calibrations(runs: Sequence[Run], known: Mapping[str, Workload]) -> dict[str, Calibration]:
    """The calibration of each workload that has one."""
    found = {}
    for name, workload in known.items():
        try:
            found[name] = Calibration([run for run in runs if run.model == name], workload)
        except ValueError:
            continue
    return found
