"""Intervals, priors and p-values: against references, and by simulation with fixed seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from scipy import optimize, special, stats

from dgc_repro.paper.statistics import (
    COVERAGE,
    MIN_ROWS,
    SHARED_BASELINE,
    Estimate,
    Prior,
    Sample,
    estimate,
    holm,
    interval,
    pool_of,
    pooled,
    prior_of,
)

INF = math.inf
PAGES = 1000
CHANCE = 1e-3
"""A simulated rate may miss its nominal value with at most this probability."""
VARIANCES_VARY = 0.935
"""Least coverage where the variances of rows differ fortyfold (see statistics.py, Differs)."""


def varied(df: float, sd: float, rows: int, n: int, seed: int) -> list[np.ndarray]:
    """Rows whose variances follow the prior."""
    generator = np.random.default_rng(seed)
    scales = sd * np.sqrt(df / generator.chisquare(df, rows))
    return [generator.normal(0, scale, n) for scale in scales]


def moderated(
    rows: Sequence[Sequence[float] | np.ndarray], *, ratio: bool = False, overlap: float = 0.0
) -> tuple[list[Estimate], Prior | None]:
    """The estimates of rows that are shrunk to the prior that they give together."""
    prior = prior_of(rows, ratio=ratio, overlap=overlap)
    return [estimate(row, ratio=ratio, prior=prior) for row in rows], prior


def test_the_interval_is_students() -> None:
    mean, low, high = interval([1.0, 2.0, 3.0])
    assert (mean, round(low, 4), round(high, 4)) == (2.0, -0.4841, 4.4841)  # 2 -+ 4.3027 / sqrt(3)
    mean, low, high = interval([0.5, 2.0], ratio=True)
    assert mean == pytest.approx(1.0)
    assert low * high == pytest.approx(1.0)


def test_the_prior_is_that_of_smyth_2004() -> None:
    """The equations of section 6.2, solved another way."""
    rows = [*varied(4.0, 2.0, 30, 3, seed=0), *varied(4.0, 2.0, 10, 6, seed=1)]
    _, prior = moderated(rows)
    assert prior is not None
    half = np.array([(len(row) - 1) / 2 for row in rows])
    z = np.log([np.var(row, ddof=1) for row in rows])
    e = z - special.psi(half) + np.log(half)
    wanted = np.mean((e - e.mean()) ** 2 * 40 / 39 - special.polygamma(1, half))
    root = optimize.brentq(lambda x: special.polygamma(1, x) - wanted, 1e-3, 1e5)
    assert prior.df == pytest.approx(2 * root, rel=1e-6)
    assert prior.sd**2 == pytest.approx(math.exp(e.mean() + special.psi(root) - math.log(root)))
    assert prior.rows == 40


def test_rows_of_one_variance_are_pooled_and_their_degrees_of_freedom_are_capped() -> None:
    rows = [np.array([0.0, 1.0, 2.0]) + place for place in range(6)]
    rows.append(np.array([0.0, 1.0, 1.0, 2.0]))
    found, prior = moderated(rows)
    assert prior is not None
    assert prior.df == INF
    pooled = (6 * 2 * 1.0 + 3 * 2 / 3) / 15
    assert prior.sd**2 == pytest.approx(pooled)
    assert found[0].error == pytest.approx(math.sqrt(pooled / 3))
    assert found[-1].error == pytest.approx(math.sqrt(pooled / 4))
    assert all(len(row) - 1 < one.df <= 15 for row, one in zip(rows, found, strict=True))
    shared, _ = moderated(rows, overlap=SHARED_BASELINE)
    assert shared[0].df <= 15 / (1 + 6 * SHARED_BASELINE)
    nothing_new, _ = moderated(rows, overlap=0.999)
    assert nothing_new[-1].df == pytest.approx(3.0)


@pytest.mark.parametrize(
    "odd", [[5.0], [], [4.0] * 3, [0.1] * 3, [INF] * 3, [INF, 1.0], [math.nan]]
)
def test_a_row_without_a_variance_is_estimated_alone_and_moves_no_other(odd: list[float]) -> None:
    rows = varied(4.0, 1.0, 8, 3, seed=3)
    (*others, alone), prior = moderated([*rows, np.array(odd)])
    assert (others, prior) == moderated(rows)
    assert alone == pytest.approx(estimate(odd), nan_ok=True) or str(alone) == str(estimate(odd))
    assert alone.low == alone.high or math.isnan(alone.mean)


def test_ratios_that_differ_by_rounding_alone_move_no_prior() -> None:
    rows = [np.exp(row) for row in varied(4.0, 1.0, 8, 3, seed=3)]
    rounded = np.array([1.0, np.nextafter(1.0, 2.0), 1.0])
    (*others, alone), prior = moderated([*rows, rounded], ratio=True)
    assert (others, prior) == moderated(rows, ratio=True)
    assert alone.low == alone.high


def test_few_rows_have_no_prior() -> None:
    rows = varied(4.0, 1.0, MIN_ROWS - 1, 3, seed=4)
    found, prior = moderated(rows)
    assert prior is None
    assert found == [estimate(row) for row in rows]
    assert moderated([*rows, rows[0] + 1])[1] is not None


@pytest.mark.parametrize("ratio", [False, True])
def test_p_values_fall_below_5_percent_where_the_interval_decides(ratio: bool) -> None:
    generator = np.random.default_rng(5)
    words = set()
    for _ in range(500):
        values = generator.normal(generator.uniform(-3, 3), 0.7, 4)
        found = estimate(np.exp(values) if ratio else values, ratio=ratio)
        for low, high in ((-1.0, 2.0), (0.0, INF), (-INF, 1.0)):
            above, below = (math.exp(low), math.exp(high)) if ratio else (low, high)
            is_inside = above < found.low and found.high < below
            is_outside = found.high < above or below < found.low
            assert (found.p_inside(above, below) < 0.05) == is_inside
            assert (found.p_outside(above, below) < 0.05) == is_outside
            words.add((is_inside, is_outside))
    assert len(words) == 3


def test_p_values_of_numbers_without_an_interval() -> None:
    one, never, unclear = estimate([5.0]), estimate([INF] * 3), estimate([INF, 1.0])
    assert (one.p_inside(4, 6), one.p_outside(4, 6)) == (0.0, 1.0)
    assert (one.p_inside(6, 7), one.p_outside(6, 7)) == (1.0, 0.0)
    assert (one.p_inside(5, 7), one.p_outside(5, 7)) == (1.0, 1.0)  # on the bound
    assert never.p_outside(0, 1) == 0.0
    assert (unclear.p_inside(0, 9), unclear.p_outside(0, 9)) == (1.0, 1.0)
    unclear = estimate([INF, 1.0], ratio=True)
    assert (unclear.p_inside(0.5, 2), unclear.p_outside(0.5, 2)) == (1.0, 1.0)


def test_holm_is_that_of_the_textbook() -> None:
    # Holm 1979 steps down: 4 x 0.01, then 3 x 0.03 which bounds 2 x 0.04, then 0.5.
    assert holm([0.01, 0.04, 0.03, 0.5]) == pytest.approx([0.04, 0.09, 0.09, 0.5])
    assert holm([0.4, 0.9]) == pytest.approx([0.8, 0.9])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []


@cache
def simulated(
    n: int, shares_baseline: bool = True, spread_df: float = INF, rows: int = 8
) -> list[list[Estimate]]:
    """Estimates of `PAGES` pages whose rows have no effect. The rows' standard deviation is 1, or follows a
    prior of ``spread_df`` and 1; ``shares_baseline``: each row is a difference from one baseline."""
    generator = np.random.default_rng(n)
    overlap = SHARED_BASELINE if shares_baseline else 0.0
    pages = []
    for _ in range(PAGES):
        scales = np.ones(rows + 1)
        if math.isfinite(spread_df):
            scales = np.sqrt(spread_df / generator.chisquare(spread_df, rows + 1))
        values = generator.normal(0, 1, (rows + 1, n)) * scales[:, None]
        found = values[1:] - values[0] if shares_baseline else values[1:]
        pages.append(moderated(list(found), overlap=overlap)[0])
    return pages


def at_least(hits: int, nominal: float) -> bool:
    """Whether a true rate of the nominal one or more may give so few hits in `PAGES` independent pages."""
    return hits >= stats.binom.ppf(CHANCE, PAGES, nominal)


def at_most(hits: int, nominal: float) -> bool:
    """Whether a true rate of the nominal one or less may give so many hits."""
    return hits <= stats.binom.isf(CHANCE, PAGES, nominal)


@pytest.mark.parametrize("n", [3, 5, 10])
@pytest.mark.parametrize(
    ("shares_baseline", "spread_df", "nominal"),
    [
        (False, INF, COVERAGE),
        (True, INF, COVERAGE),
        (True, 8.0, COVERAGE),
        (True, 3.0, VARIANCES_VARY),
    ],
    ids=["independent", "one-baseline", "eightfold-variances", "fortyfold-variances"],
)
def test_moderated_intervals_cover(
    n: int, shares_baseline: bool, spread_df: float, nominal: float
) -> None:
    pages = simulated(n, shares_baseline, spread_df)
    covered = sum(page[0].low < 0 < page[0].high for page in pages)
    assert at_least(covered, nominal), covered / PAGES
    if spread_df == INF:  # and they are narrower than Student's
        sd = math.sqrt(2) if shares_baseline else 1.0
        student = stats.t.ppf((1 + COVERAGE) / 2, n - 1) * sd / math.sqrt(n)
        assert np.mean([(page[0].high - page[0].low) / 2 for page in pages]) < 0.97 * student


@pytest.mark.parametrize("n", [3, 5, 10])
@pytest.mark.parametrize(
    ("said", "nominal", "p"),
    [
        ("greater, of no effect", 0.025, lambda one: one.p_outside(-INF, 0.0)),
        ("less, of an effect of 0.5", 0.025, lambda one: one.p_outside(-0.5, INF)),
        ("within 2, of an effect of 2", 0.025, lambda one: one.p_inside(-4.0, 0.0)),
        ("not within 2, of an effect of 2", 0.025, lambda one: one.p_outside(-4.0, 0.0)),
        ("different, of no effect", 0.05, lambda one: one.p_outside(-1e-9, 1e-9)),
    ],
)
def test_false_statements_of_rows_that_share_a_baseline(
    n: int, said: str, nominal: float, p: Callable[[Estimate], float]
) -> None:
    """Of each row by itself, and of any row of the page after Holm's correction."""
    pages = simulated(n)
    alone = sum(p(page[0]) < 0.05 for page in pages)
    assert at_most(alone, nominal), (said, alone / PAGES)
    of_any = sum(min(holm([p(one) for one in page])) < 0.05 for page in pages)
    assert at_most(of_any, 0.05), (said, of_any / PAGES)
    if said.startswith("different"):
        uncorrected = sum(min(p(one) for one in page) < 0.05 for page in pages)
        assert not at_most(uncorrected, 0.05)


# One variance for all rows


def two_way(
    noise: np.random.Generator,
    rows: int,
    n: int,
    of_dense: int,
    correlation: float,
    sd: float = 0.25,
) -> list[list[Sample]]:
    """Rows of two kinds of processors; the values of a seed on a kind have a part in common. The first row
    has ``of_dense`` seeds, the others ``n``, half of them on each kind."""
    found = []
    common = {kind: noise.normal(0, 1, of_dense) for kind in "xy"}
    level = {"x": 80.0, "y": 83.0}
    for row in range(rows):
        count = of_dense if row == 0 else n
        own = []
        for seed in range(count):
            kind = "xy"[seed % 2]
            rest = noise.normal(0, 1)
            value = math.sqrt(correlation) * common[kind][seed] + math.sqrt(1 - correlation) * rest
            own.append(Sample(level[kind] + sd * value, seed, kind))
        found.append(own)
    return found


def test_a_pool_is_the_variance_within_rows_and_kinds() -> None:
    rows = two_way(np.random.default_rng(0), 6, 4, 10, 0.0)
    pool = pool_of(rows)
    assert pool is not None
    cells = [[one.value for one in row if one.block == kind] for row in rows for kind in "xy"]
    squares = sum((len(cell) - 1) * np.var(cell, ddof=1) for cell in cells)
    df = sum(len(cell) - 1 for cell in cells)
    assert pool.sd**2 == pytest.approx(squares / df)
    assert pool.bartlett == pytest.approx(stats.bartlett(*cells).pvalue)
    assert pool.df <= df
    assert pool_of([[Sample(1.0, 0, "x")], [Sample(2.0, 0, "x")]]) is None


def test_what_the_runs_of_a_seed_have_in_common_is_found() -> None:
    noise = np.random.default_rng(1)
    for truth in (0.0, 0.3, 0.6):
        pools = [pool_of(two_way(noise, 12, 24, 24, truth)) for _ in range(100)]
        assert np.mean([p.correlation for p in pools if p]) == pytest.approx(truth, abs=0.06)
        assert np.mean([p.sd for p in pools if p]) == pytest.approx(0.25, rel=0.04)


@pytest.mark.parametrize(
    ("n", "of_dense", "correlation"), [(4, 4, 0.0), (4, 4, 0.5), (8, 15, 0.2), (8, 15, 0.5)]
)
def test_pooled_intervals_cover(n: int, of_dense: int, correlation: float) -> None:
    noise, hits = np.random.default_rng(n), 0
    for _ in range(PAGES):
        rows = two_way(noise, 12, n, of_dense, correlation)
        one = pooled(rows[1], rows[0], pool_of(rows))
        hits += one.low < 0 < one.high
    assert at_least(hits, 0.94), hits / PAGES
    assert at_most(hits, 0.96), hits / PAGES


def test_more_values_of_a_row_leave_the_error_of_the_reference() -> None:
    rows = two_way(np.random.default_rng(2), 12, 4, 4, 0.0)
    pool = pool_of(rows)
    assert pool is not None
    pool = replace(pool, correlation=0.0)
    one = pooled(rows[1], rows[0], pool)
    assert one.error == pytest.approx(pool.sd * math.sqrt(1 / 4 + 1 / 4))
    assert one.extended(4).error == pytest.approx(pool.sd * math.sqrt(1 / 8 + 1 / 4))
    assert one.extended(10**6).error == pytest.approx(pool.sd / 2, rel=1e-4)


def test_a_prior_grows_with_the_size_of_the_mean() -> None:
    noise = np.random.default_rng(3)
    effects = np.exp(np.linspace(math.log(0.01), math.log(10), 60))
    rows = [effect + noise.normal(0, 0.2 * effect, 4) for effect in effects]
    prior = prior_of(rows, floor=1e-3)
    assert prior is not None
    assert prior.slope == pytest.approx(2.0, abs=0.3)  # the standard deviation is proportional
    for effect in (0.1, 1.0, 5.0):
        assert prior.sd_of(effect) == pytest.approx(0.2 * effect, rel=0.35)
    plain = prior_of(rows)
    assert plain is not None
    assert plain.sd_of(0.1) == plain.sd_of(5.0) == plain.sd


def test_the_order_of_rows_and_values_changes_no_bit_of_the_pool() -> None:
    source = np.random.default_rng(0)
    rows = [
        [Sample(float(x), seed, "ab"[seed % 2]) for seed, x in enumerate(source.normal(size=8))]
        for _ in range(12)
    ]
    one, other = pool_of(rows), pool_of([row[::-1] for row in rows[::-1]])
    assert one is not None
    assert other is not None
    assert (one.sd, one.df, one.correlation) == (other.sd, other.df, other.correlation)
