"""Estimate means of few seeds: t intervals, shrunken variances, p-values against a range, Holm.

With three seeds a row's own variance is hardly known: Student's factor is 4.3. `moderated` shrinks the
variances of rows of one kind to a prior that these rows give together (empirical Bayes, as limma does).

Paper    Smyth, "Linear models and empirical Bayes methods for assessing differential expression in
         microarray experiments", Stat. Appl. Genet. Mol. Biol. 3 (2004), sections 4 and 6.2
Differs  limma takes the rows as independent and the prior's degrees of freedom as known. Here many rows share
         one baseline, and rows are few: in simulations limma's 95 % intervals covered 91 to 93 % at n = 3.
         So (1) ``overlap`` says how much two rows have in common. It corrects the scatter of the log
         variances and the cap on the degrees of freedom. (2) The interval takes the prior's degrees of
         freedom at one standard error more scatter than was seen. Then 5 to 30 rows of 3 seeds, compared
         with one baseline, cover 94.5 to 96 % where the variances are equal or differ eightfold (d0 = 8),
         93.5 to 95 % where they differ fortyfold (d0 = 3), and 92.5 to 94 % at d0 = 1.
         tests/paper/test_statistics.py repeats a part of the simulation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

Values = NDArray[np.float64]
COVERAGE = 0.95
MIN_ROWS = 5
"""So many rows with a variance make a prior. Fewer do not tell its degrees of freedom: at n = 3 the simulated
intervals of 3 rows cover 92 to 94 %."""
SHARED_BASELINE = 0.25
"""``overlap`` of differences from one baseline that varies as the rows do: their correlation is 1/2."""
_EQUAL = 1e-12
"""Values that differ relatively by less differ by rounding alone."""


@dataclass(frozen=True)
class Estimate:
    """The mean of ``n`` values with its interval, on a t distribution of ``df`` degrees of freedom.

    low, high  the interval; (-inf, inf) where there is none, and ``mean`` is NaN then
    error      standard error of the mean; 0: the values are equal, or there is one
    is_log     the values are ratios: ``mean`` is geometric, and ``error`` is that of the logarithm
    """

    mean: float
    low: float
    high: float
    n: int
    df: float
    error: float
    is_log: bool = False

    def p_outside(self, above: float, below: float) -> float:
        """Return the p-value of "the true mean lies in the range". It is below 0.05 where the 95 % interval
        lies wholly outside the range."""
        return min(1.0, 2 * min(self._lower_tail(above), self._upper_tail(below)))

    def p_inside(self, above: float, below: float) -> float:
        """Return the p-value of "the true mean lies outside the range" (two one-sided tests). It is below
        0.05 where the 95 % interval lies wholly inside the range."""
        return min(1.0, 2 * max(self._upper_tail(above), self._lower_tail(below)))

    def _lower_tail(self, bound: float) -> float:
        """The chance of a mean as low as this one, or lower, if the true mean were ``bound``."""
        return self._tail(bound, 1.0)

    def _upper_tail(self, bound: float) -> float:
        """The chance of a mean as high as this one, or higher, if the true mean were ``bound``."""
        return self._tail(bound, -1.0)

    def _tail(self, bound: float, sign: float) -> float:
        mean, bound = (self.mean, bound) if not self.is_log else (_log(self.mean), _log(bound))
        if math.isnan(mean):
            return 1.0
        if mean == bound:
            return 0.5
        if not self.error or math.isinf(bound):
            return float(sign * mean > sign * bound)
        return float(special.stdtr(self.df, sign * (mean - bound) / self.error))


@dataclass(frozen=True)
class Prior:
    """What the variances of ``rows`` rows have in common: degrees of freedom (infinite: all rows have one
    variance), and standard deviation (of logarithms, for ratios)."""

    rows: int
    df: float
    sd: float


def estimate(values: Sequence[float] | Values, *, ratio: bool = False) -> Estimate:
    """Estimate a mean with Student's 95 % interval; of ratios the geometric mean. Where only some values are
    infinite, or a ratio is negative, there is neither a mean nor an interval."""
    (found,), _ = moderated([values], ratio=ratio)
    return found


def interval(
    values: Sequence[float] | Values, *, ratio: bool = False
) -> tuple[float, float, float]:
    """Return mean, low and high of `estimate`."""
    found = estimate(values, ratio=ratio)
    return found.mean, found.low, found.high


def moderated(
    rows: Sequence[Sequence[float] | Values], *, ratio: bool = False, overlap: float = 0.0
) -> tuple[list[Estimate], Prior | None]:
    """Estimate the mean of each row, with variances that are shrunk to a common prior.

    overlap  mean squared correlation of the errors of two rows: 0 for independent rows, `SHARED_BASELINE` for
             differences from one baseline

    A row of one value, of equal values, or with a value that is not finite, has no variance to shrink: it is
    estimated alone. Without `MIN_ROWS` other rows there is no prior (None), and intervals are Student's.
    """
    numbers = [_numbers(row, ratio) for row in rows]
    has_variance = [
        len(row) > 1 and bool(np.isfinite(row).all() and np.ptp(row) > _EQUAL * np.abs(row).max())
        for row in numbers
    ]
    varied = [row for row, has_one in zip(numbers, has_variance, strict=True) if has_one]
    df = np.array([len(row) - 1.0 for row in varied])
    variances = np.array([row.var(ddof=1) for row in varied])
    prior, totals = _shrunk(variances, df, overlap) if len(varied) >= MIN_ROWS else (None, df)
    if prior is not None:
        share = df / (df + prior.df)  # of the row's own variance
        variances = share * variances + (1 - share) * prior.sd**2
    shrunk = iter(zip(variances, totals, strict=True))
    found = []
    for row, has_one in zip(numbers, has_variance, strict=True):
        variance, total = next(shrunk) if has_one else (0.0, len(row) - 1.0)
        found.append(_estimate(row, float(variance), float(total), ratio))
    return found, prior


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values for their number: the chance that any true null hypothesis falls below 0.05 is at most
    5 %, however the tests depend on each other (Holm 1979)."""
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    adjusted = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    found = np.empty_like(p)
    found[order] = np.minimum(adjusted, 1.0)
    return [float(value) for value in found]


def _shrunk(variances: Values, df: Values, overlap: float) -> tuple[Prior, Values]:
    """The prior, by the moments of the log variances, and the degrees of freedom of each row's interval."""
    count = len(variances)
    logs = np.log(variances) - special.digamma(df / 2) + np.log(df / 2)
    noise = float(special.polygamma(1, df / 2).mean())  # trigamma: what sampling alone scatters
    scatter = float(logs.var(ddof=1)) / (1 - overlap) - noise
    error = math.sqrt(special.polygamma(3, df / 2).mean() / count + 2 * noise**2 / (count - 1))
    own = 2 * _trigamma_inverse(scatter)
    if math.isinf(own):  # one variance for all: pooled
        sd = math.sqrt(float(df @ variances) / float(df.sum()))
    else:
        sd = math.exp((float(logs.mean()) + special.digamma(own / 2) - math.log(own / 2)) / 2)
    pooled = float(df.sum()) / (1 + (count - 1) * overlap)
    careful = 2 * _trigamma_inverse(scatter + error)
    return Prior(count, own, sd), np.maximum(df, np.minimum(df + careful, pooled))


def _trigamma_inverse(value: float) -> float:
    """Solve trigamma(x) = ``value``; infinite for values that are not positive. Newton's steps on
    1 / trigamma, which is convex and nearly linear, do not overshoot (Smyth 2004, appendix)."""
    if value <= 1e-7:
        return math.inf
    x = 0.5 + 1 / value
    for _ in range(50):
        trigamma = special.polygamma(1, x)
        step = trigamma * (1 - trigamma / value) / special.polygamma(2, x)
        x += step
        if -step / x < 1e-8:
            break
    return float(x)


def _numbers(row: Sequence[float] | Values, ratio: bool) -> Values:
    found = np.asarray(row, dtype=np.float64)
    if not ratio:
        return found
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.log(found))


def _estimate(row: Values, variance: float, df: float, ratio: bool) -> Estimate:
    if not len(row) or np.isnan(row).any() or (np.isinf(row).any() and not (row == row[0]).all()):
        return Estimate(math.nan, -math.inf, math.inf, len(row), df, 0.0, ratio)
    mean = float(row.mean()) if np.isfinite(row).all() else float(row[0])
    error = math.sqrt(variance / len(row))
    half = float(special.stdtrit(df, (1 + COVERAGE) / 2)) * error if error else 0.0
    low, high = mean - half, mean + half
    if ratio:
        mean, low, high = _exp(mean), _exp(low), _exp(high)
    return Estimate(mean, low, high, len(row), df, error, ratio)


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf


def _exp(value: float) -> float:
    return math.inf if value > 700 else math.exp(value)
