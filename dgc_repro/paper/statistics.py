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
from scipy import optimize, special

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
        return min(1.0, 2 * min(self._tail(above, 1.0), self._tail(below, -1.0)))

    def p_inside(self, above: float, below: float) -> float:
        """Return the p-value of "the true mean lies outside the range" (two one-sided tests). It is below
        0.05 where the 95 % interval lies wholly inside the range."""
        return min(1.0, 2 * max(self._tail(above, -1.0), self._tail(below, 1.0)))

    def extended(self, seeds: int) -> Estimate:
        """Return the estimate with so many more values, if they leave the mean and the spread as they are."""
        n = self.n + seeds
        error = self.error * math.sqrt(self.n / n)
        mean = _log(self.mean) if self.is_log else self.mean
        return _around(mean, error, n, self.df + seeds, self.is_log)

    def _tail(self, bound: float, sign: float) -> float:
        """The chance of a mean as low as this one, or lower (``sign`` -1: as high, or higher), if the true
        mean were ``bound``."""
        if math.isnan(self.mean):
            return 1.0
        mean, bound = (self.mean, bound) if not self.is_log else (_log(self.mean), _log(bound))
        if mean == bound:
            return 0.5
        if not self.error or math.isinf(bound):
            return float(sign * mean > sign * bound)
        return float(special.stdtr(self.df, sign * (mean - bound) / self.error))


@dataclass(frozen=True)
class Prior:
    """What the variances of ``rows`` rows have in common.

    df         its degrees of freedom; infinite: the rows do not differ more than by chance
    sd         its standard deviation (of logarithms, for ratios)
    counted    the degrees of freedom that it adds to those of a row
    most       degrees of freedom of all rows together, which no interval exceeds
    """

    rows: int
    df: float
    sd: float
    counted: float
    most: float


def estimate(
    values: Sequence[float] | Values, *, ratio: bool = False, prior: Prior | None = None
) -> Estimate:
    """Estimate a mean (of ratios the geometric one) with Student's 95 % interval, or with a variance that is
    shrunk to a ``prior``. Where only some values are infinite, or a ratio is negative, there is neither a
    mean nor an interval. Values without a variance (one, or equal, or infinite ones) are not shrunk."""
    found = _numbers(values, ratio)
    n, df = len(found), len(found) - 1.0
    is_finite = bool(np.isfinite(found).all())
    if not n or not (is_finite or (found == found[0]).all()):
        return Estimate(math.nan, -math.inf, math.inf, n, df, 0.0, ratio)
    mean = float(found.mean()) if is_finite else float(found[0])
    error = 0.0
    if _has_variance(found, ratio):
        variance = float(found.var(ddof=1))
        if prior is not None:
            own = df / (df + prior.df)
            variance = own * variance + (1 - own) * prior.sd**2
            df = max(df, min(df + prior.counted, prior.most))
        error = math.sqrt(variance / n)
    return _around(mean, error, n, df, ratio)


def _around(mean: float, error: float, n: int, df: float, is_log: bool) -> Estimate:
    """The estimate of a mean with its standard error, both of logarithms where the values are ratios."""
    half = float(special.stdtrit(df, (1 + COVERAGE) / 2)) * error if error else 0.0
    low, high = mean - half, mean + half
    if is_log:
        mean, low, high = _exp(mean), _exp(low), _exp(high)
    return Estimate(mean, low, high, n, df, error, is_log)


def interval(
    values: Sequence[float] | Values, *, ratio: bool = False
) -> tuple[float, float, float]:
    """Return mean, low and high of `estimate`."""
    found = estimate(values, ratio=ratio)
    return found.mean, found.low, found.high


def moderated(
    rows: Sequence[Sequence[float] | Values], *, ratio: bool = False, overlap: float = 0.0
) -> tuple[list[Estimate], Prior | None]:
    """Estimate the mean of each row, with variances that are shrunk to their `prior_of`."""
    prior = prior_of(rows, ratio=ratio, overlap=overlap)
    return [estimate(row, ratio=ratio, prior=prior) for row in rows], prior


def prior_of(
    rows: Sequence[Sequence[float] | Values], *, ratio: bool = False, overlap: float = 0.0
) -> Prior | None:
    """Fit the prior of the rows' variances by the moments of their logarithms. None: fewer than `MIN_ROWS`
    rows have a variance.

    overlap  mean squared correlation of the errors of two rows: 0 for independent rows, `SHARED_BASELINE` for
             differences from one baseline
    """
    varied = [found for row in rows if _has_variance(found := _numbers(row, ratio), ratio)]
    if (count := len(varied)) < MIN_ROWS:
        return None
    df = np.array([len(row) - 1.0 for row in varied])
    variances = np.array([row.var(ddof=1) for row in varied])
    logs = np.log(variances) - special.digamma(df / 2) + np.log(df / 2)
    noise = float(special.polygamma(1, df / 2).mean())  # the scatter by sampling alone
    scatter = float(logs.var(ddof=1)) / (1 - overlap) - noise
    error = math.sqrt(special.polygamma(3, df / 2).mean() / count + 2 * noise**2 / (count - 1))
    own = 2 * _trigamma_inverse(scatter)
    if math.isinf(own):  # one variance for all: pooled
        sd = math.sqrt(float(df @ variances) / float(df.sum()))
    else:
        sd = math.exp((float(logs.mean()) + special.digamma(own / 2) - math.log(own / 2)) / 2)
    counted = 2 * _trigamma_inverse(scatter + error)
    return Prior(count, own, sd, counted, float(df.sum()) / (1 + (count - 1) * overlap))


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values for their number: the chance that any true null hypothesis falls below 0.05 is at most
    5 %, however the tests depend on each other (Holm 1979)."""
    p = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    adjusted = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    found = np.empty_like(p)
    found[order] = np.minimum(adjusted, 1.0)
    return [float(value) for value in found]


def _has_variance(row: Values, is_log: bool) -> bool:
    """Whether there are several values, finite and not all equal. Logarithms differ by what their ratios
    differ relatively."""
    if len(row) < 2 or not np.isfinite(row).all():
        return False
    scale = 1.0 if is_log else np.abs(row).max()
    return bool(np.ptp(row) > _EQUAL * scale)


def _trigamma_inverse(value: float) -> float:
    """Solve trigamma(x) = ``value``; infinite for values that are not positive."""
    if value <= 1e-7:
        return math.inf
    # 1/x < trigamma(x) < 1/x + 1/x^2
    ends = 1 / value, 1 / value + 1 / math.sqrt(value)
    return float(optimize.brentq(lambda x: special.polygamma(1, x) - value, *ends))


def _numbers(row: Sequence[float] | Values, ratio: bool) -> Values:
    found = np.asarray(row, dtype=np.float64)
    if not ratio:
        return found
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.log(found))


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf


def _exp(value: float) -> float:
    return math.inf if value > 700 else math.exp(value)
