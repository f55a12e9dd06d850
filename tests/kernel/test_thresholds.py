"""Samples, order statistics, counts and moments, against numpy and against each other."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numeric import both_kernels, without_c
from numeric import heavy_tailed as heavy_tailed_everywhere
from torch import Tensor

from dgc_repro.kernel import thresholds

SIZES = (0, 1, 5, 511, 4096, 4097, 10_000, 123_457)


def heavy_tailed(size: int, seed: int = 0) -> Tensor:
    x = heavy_tailed_everywhere(size, seed)
    x[3:7] = 0.0
    x[2:3] = 1e-42
    return x


@both_kernels
@pytest.mark.parametrize("above", [0.0, 0.75])
@pytest.mark.parametrize("size", SIZES)
def test_moments_equal_numpys(size: int, above: float) -> None:
    """A sum by halves is off by 2^-53 for each of its at most 30 levels; the sum of logarithms comes
    from a product, off by 2^-53 a factor, and cancels: an absolute bound of so much a value."""
    x = heavy_tailed(size)
    seen = thresholds.moments(x, above, squares=True, logs=True)
    magnitudes = np.abs(x.numpy().astype(np.float64))
    inside = magnitudes[magnitudes > above]
    assert seen.count == inside.size
    assert math.isclose(seen.total, np.sum(inside - above), rel_tol=1e-14)
    assert math.isclose(seen.squares, np.sum((inside - above) ** 2), rel_tol=1e-14)
    bound = 2.0**-52 * (size + np.abs(np.log(inside)).sum())
    assert abs(seen.log_total - np.log(inside).sum()) <= bound
    assert seen.largest == (magnitudes.max() if size else 0.0)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("size", SIZES)
def test_both_kernels_give_the_same_bits_whatever_the_threads(size: int, threads: int) -> None:
    x, before = heavy_tailed(size, 1), torch.get_num_threads()

    def results() -> list[object]:
        found: list[object] = [
            thresholds.moments(x, above, squares=True, logs=True) for above in (0.0, 0.75)
        ]
        found += [thresholds.kth(x, k) for k in sorted({1, size // 3, size}) if 0 < k <= size]
        found += [thresholds.count(x, limit) for limit in (0.0, 0.5, math.inf)]
        return [*found, *thresholds.sample(x, size // 5, 99).tolist()] if size > 10 else found

    torch.set_num_threads(threads)
    try:
        in_c = results()
    finally:
        torch.set_num_threads(before)
    with without_c():
        assert in_c == results()


@both_kernels
def test_order_statistics_and_counts_are_exact_with_nan_above_all() -> None:
    x = heavy_tailed(1000)
    x[10], x[11], x[12] = math.nan, math.inf, -math.inf
    assert math.isnan(thresholds.kth(x, 1))
    assert thresholds.kth(x, 2) == thresholds.kth(x, 3) == math.inf
    finite = np.sort(np.abs(x.numpy())[np.isfinite(x.numpy())])[::-1]
    assert [thresholds.kth(x, k + 4) for k in range(0, 997, 83)] == finite[0:997:83].tolist()
    assert thresholds.count(x, float(finite[49])) == 53
    assert thresholds.count(x, thresholds.following(float(finite[49]))) == 52
    assert thresholds.count(x, 0.0) == 1000
    assert thresholds.count(x, thresholds.SMALLEST) == 996  # four zeros


@both_kernels
def test_a_sample_favours_no_place() -> None:
    """Each of 1,000 places is drawn with probability 0.15 by each of 4,000 keys: 600 times, with a
    standard deviation of 23; 5.5 of them for the worst of 1,000. 150 times 6 neighbours are not all
    of the tensor: each key leaves out 100 others."""
    x, drawn = torch.arange(1000, dtype=torch.float32), torch.zeros(1000)
    for key in range(4000):
        places = thresholds.sample(x, 150, key * 7919 - 5).long()
        assert places.unique().numel() == 150, "a place was drawn twice"
        drawn[places] += 1
    assert float((drawn - 600).abs().max()) <= 5.5 * 23


@both_kernels
def test_a_sample_depends_on_its_key_and_touches_no_global_generator() -> None:
    x, state = heavy_tailed(10_000), torch.get_rng_state()
    first = thresholds.sample(x, 500, 1)
    assert torch.equal(first, thresholds.sample(x, 500, 1))
    assert not torch.equal(first, thresholds.sample(x, 500, 2))
    assert torch.equal(state, torch.get_rng_state())


def test_a_sample_meets_no_period_of_the_tensor() -> None:
    """Every tenth entry is large; a stride of ten would see all of them or none. Of 1,000 entries
    100 are large, with a standard deviation of 9.5; 6 of them."""
    x = (torch.arange(10_000) % 10 == 0).float()
    for key in range(50):
        assert abs(float(thresholds.sample(x, 1000, key).sum()) - 100) <= 57


@pytest.mark.parametrize(
    ("n", "k", "share", "size"),
    [
        (44_549_160, 445_492, 0.01, 445_492),  # the share
        (1_000_000, 1_000, 0.01, 64_000),  # 64 above the threshold
        (10_000, 1_000, 0.01, 640),
        (10_000, 5_000, 0.01, 512),  # some hundred
        (1_000, 100, 0.01, 1_000),  # not worth sampling
        (10_000, 10, 0.01, 10_000),
        (0, 0, 0.01, 0),
    ],
)
def test_a_sample_is_large_enough_for_its_threshold(
    n: int, k: int, share: float, size: int
) -> None:
    assert thresholds.sample_size(n, k, share) == size


def test_magnitudes_and_their_bits() -> None:
    for value in (0.0, 1e-45, 0.1, 3e38, math.inf):
        rounded = float(np.float32(value))
        assert thresholds.magnitude_of(thresholds.bits_of(value)) == rounded
        if rounded < math.inf:
            after = float(np.nextafter(np.float32(value), np.float32(math.inf)))
            assert thresholds.following(value) == after
    assert thresholds.rounded(1e300) == math.inf
    assert math.isnan(thresholds.following(math.inf))
