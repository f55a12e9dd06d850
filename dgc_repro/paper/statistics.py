"""Estimate means of few seeds: t intervals, shrunken variances, p-values against a range, Holm.

With three seeds a row's own variance is hardly known: Student's factor is 4.3. Rows of one kind tell more of
it together. `pooled` takes one variance for all of them, and `prior_of` one to which the variance of each row
is shrunk (empirical Bayes, as limma does).

Paper    Smyth, "Linear models and empirical Bayes methods for assessing differential expression in
         microarray experiments", Stat. Appl. Genet. Mol. Biol. 3 (2004), sections 4 and 6.2
Differs  limma takes the rows as independent and the prior's degrees of freedom as known. Here many rows share
         one baseline, and rows are few: in simulations limma's 95 % intervals covered 91 to 93 % at n = 3.
         So (1) ``overlap`` says how much two rows have in common. It corrects the scatter of the log
         variances and the cap on the degrees of freedom. (2) The interval takes the prior's degrees of
         freedom at one standard error more scatter than was seen. Then 5 to 30 rows of 3 seeds, compared
         with one baseline, cover 94.5 to 96 % where the variances are equal or differ eightfold (d0 = 8),
         93.5 to 95 % where they differ fortyfold (d0 = 3), and 92.5 to 94 % at d0 = 1. (3) With ``floor``
         the prior grows with the size of the mean, by a line in logarithms, as limma's trend. Then rows
         whose spread grows with their effect cover 94 to 96 % together, and 92 to 94 % the third of them
         with the largest effects.
         tests/paper/test_statistics.py repeats a part of the simulation.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special, stats

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
    shared     the part of its square that more values of the row leave as it is
    is_log     the values are ratios: ``mean`` is geometric, and ``error`` is that of the logarithm
    """

    mean: float
    low: float
    high: float
    n: int
    df: float
    error: float
    is_log: bool = False
    shared: float = 0.0

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
        error = math.sqrt((self.error**2 - self.shared) * self.n / n + self.shared)
        mean = _log(self.mean) if self.is_log else self.mean
        return _around(mean, error, n, self.df + seeds, self.is_log, self.shared)

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
    sd         its standard deviation (of logarithms, for ratios), of a row with a mean of size ``at``
    counted    the degrees of freedom that it adds to those of a row
    most       degrees of freedom of all rows together, which no interval exceeds
    slope      by how much the logarithm of its variance grows with that of the size of a row's mean
    floor      sizes of means below it count as this one
    """

    rows: int
    df: float
    sd: float
    counted: float
    most: float
    slope: float = 0.0
    at: float = 1.0
    floor: float = 0.0

    def sd_of(self, mean: float) -> float:
        """Return the standard deviation of a row with this mean (of logarithms, for ratios)."""
        if not self.slope:
            return self.sd
        return self.sd * math.pow(math.hypot(mean, self.floor) / self.at, self.slope / 2)


class Sample(NamedTuple):
    """A value of a row. Values of one ``seed`` in one ``block`` (a kind of processor) have something in
    common."""

    value: float
    seed: int
    block: str


@dataclass(frozen=True)
class Pool:
    """One variance of all rows: standard deviation, degrees of freedom, and the share of the variance that
    the values of one seed have in common. ``bartlett``: the p-value of equal variances."""

    sd: float
    df: float
    correlation: float
    bartlett: float


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
            variance = own * variance + (1 - own) * prior.sd_of(mean) ** 2
            df = max(df, min(df + prior.counted, prior.most))
        error = math.sqrt(variance / n)
    return _around(mean, error, n, df, ratio)


def _around(
    mean: float, error: float, n: int, df: float, is_log: bool, shared: float = 0.0
) -> Estimate:
    """The estimate of a mean with its standard error, both of logarithms where the values are ratios."""
    half = float(special.stdtrit(df, (1 + COVERAGE) / 2)) * error if error else 0.0
    low, high = mean - half, mean + half
    if is_log:
        mean, low, high = _exp(mean), _exp(low), _exp(high)
    return Estimate(mean, low, high, n, df, error, is_log, shared)


def interval(
    values: Sequence[float] | Values, *, ratio: bool = False
) -> tuple[float, float, float]:
    """Return mean, low and high of `estimate`."""
    found = estimate(values, ratio=ratio)
    return found.mean, found.low, found.high


def prior_of(
    rows: Sequence[Sequence[float] | Values],
    *,
    ratio: bool = False,
    overlap: float = 0.0,
    floor: float | None = None,
) -> Prior | None:
    """Fit the prior of the rows' variances by the moments of their logarithms. None: fewer than `MIN_ROWS`
    rows have a variance.

    overlap  mean squared correlation of the errors of two rows: 0 for independent rows, `SHARED_BASELINE` for
             differences from one baseline
    floor    the variances may grow with the size of the mean, where it is above the floor; None: they do not
    """
    varied = [found for row in rows if _has_variance(found := _numbers(row, ratio), ratio)]
    if (count := len(varied)) < MIN_ROWS:
        return None
    df = np.array([len(row) - 1.0 for row in varied])
    variances = np.array([row.var(ddof=1) for row in varied])
    logs = np.log(variances) - special.digamma(df / 2) + np.log(df / 2)
    slope, at, expected, fitted = 0.0, 1.0, np.full(count, logs.mean()), 1
    if floor is not None:
        sizes = np.log(np.hypot([row.mean() for row in varied], floor))
        apart = sizes - sizes.mean()
        slope = max(0.0, float(apart @ logs / (apart @ apart))) if apart.any() else 0.0
        at, fitted = math.exp(float(sizes.mean())), 2
        expected = expected + slope * apart
    noise = float(special.polygamma(1, df / 2).mean())  # the scatter by sampling alone
    rest = logs - expected
    scatter = float(rest @ rest) / (count - fitted) / (1 - overlap) - noise
    error = math.sqrt(special.polygamma(3, df / 2).mean() / count + 2 * noise**2 / (count - fitted))
    own = 2 * _trigamma_inverse(scatter)
    if not math.isinf(own):
        sd = math.exp((float(logs.mean()) + special.digamma(own / 2) - math.log(own / 2)) / 2)
    elif slope:  # one line for all
        sd = math.exp(float(logs.mean()) / 2)
    else:  # one variance for all: pooled
        sd = math.sqrt(float(df @ variances) / float(df.sum()))
    counted = 2 * _trigamma_inverse(scatter + error)
    most = float(df.sum()) / (1 + (count - 1) * overlap)
    return Prior(count, own, sd, counted, most, slope, at, floor or 0.0)


def pool_of(rows: Iterable[Sequence[Sample]]) -> Pool | None:
    """Estimate one variance of all rows, within rows and blocks, and what the values of one seed have in
    common. None where no row has two values in a block. The order of rows and values changes no bit."""
    cells: dict[tuple[int, str], dict[int, float]] = {}
    for number, row in enumerate(rows):
        for one in row:
            cells.setdefault((number, one.block), {})[one.seed] = one.value
    cells = {key: dict(sorted(own.items())) for key, own in cells.items() if len(own) > 1}
    if not cells:
        return None
    rest = {
        key: {seed: value - float(np.mean([*own.values()])) for seed, value in own.items()}
        for key, own in cells.items()
    }
    df = sum(len(own) - 1.0 for own in cells.values())
    variance = math.fsum(value**2 for own in rest.values() for value in own.values()) / df
    products: list[float] = []
    weights: list[float] = []
    for one_cell, other in combinations(cells, 2):
        if one_cell[0] != other[0] and one_cell[1] == other[1]:
            first, second = rest[one_cell], rest[other]
            shared = first.keys() & second.keys()
            products += [first[seed] * second[seed] for seed in shared]
            n, m, both = len(first), len(second), len(shared)
            weights.append(both * (1 - 1 / n - 1 / m + both / (n * m)))
    count = len({number for number, _ in cells})
    weight = math.fsum(weights)
    enough = count >= MIN_ROWS and weight > 0 and variance > 0
    correlation = min(0.9, max(0.0, math.fsum(products) / weight / variance)) if enough else 0.0
    several = [[*own.values()] for own in cells.values() if np.ptp([*own.values()]) > 0]
    bartlett = float(stats.bartlett(*several).pvalue) if len(several) > 1 else math.nan
    freedom = df / (1 + (count - 1) * correlation**2)
    return Pool(math.sqrt(variance), freedom, correlation, bartlett)


def pooled(row: Sequence[Sample], reference: Sequence[Sample], pool: Pool | None) -> Estimate:
    """Estimate by how much a row is above the reference: the mean of its values, each less the mean of the
    reference in its block. Values in blocks that the reference lacks are left out. Without a pool, without
    values or with an infinite one there is no interval."""
    known: dict[str, dict[int, float]] = {}
    for one in reference:
        known.setdefault(one.block, {})[one.seed] = one.value
    row = [one for one in row if one.block in known]
    n = len(row)
    if not n or pool is None or not np.isfinite([one.value for one in row]).all():
        return Estimate(math.nan, -math.inf, math.inf, n, 0.0, 0.0)
    mean = float(np.mean([one.value - np.mean([*known[one.block].values()]) for one in row]))
    shared = 0.0
    for block, base in known.items():
        seeds = [one.seed for one in row if one.block == block]
        weight = len(seeds) / n
        shared += weight**2 / len(base)
        if seeds:  # a seed of both sides narrows the difference
            both = len(base.keys() & set(seeds))
            shared -= 2 * pool.correlation * weight**2 * both / (len(seeds) * len(base))
    error = pool.sd * math.sqrt(max(1 / n + shared, 0.0))
    return _around(mean, error, n, pool.df, False, max(0.0, pool.sd**2 * shared))


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
