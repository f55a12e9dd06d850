"""Gradient dropping and DGC's selection against their papers in numpy: thresholds from a sample."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numeric import Array, both_kernels, context, gaussian, heavy_tailed, largest, sampled_places
from torch import Tensor

from dgc_repro import DGCSampled, Threshold, TopK
from dgc_repro.compressor.sparsifier import num_kept
from dgc_repro.kernel.thresholds import sample_size


def sampled_threshold(x: Array, k: int, share: float, key: int) -> float:
    """The ceil(m k / n)-th largest magnitude of the sample of m that the key draws."""
    n, m = x.size, sample_size(x.size, k, share)
    assert m < n, "the test is about sampling"
    return float(np.sort(np.abs(x[sampled_places(n, m, key)]))[::-1][-(-m * k // n) - 1])


def gradient_dropping(x: Array, k: int, key: int) -> Array:
    """The places that are sent. x: f64[n]."""
    threshold = sampled_threshold(x, k, 0.001, key)
    passing = int((np.abs(x) >= threshold).sum())
    larger = int((np.abs(x) > threshold).sum())
    if passing - larger == 1 or passing <= k:
        return np.flatnonzero(np.abs(x) >= threshold)
    return largest(x, max(k, larger))  # equal ones as far as they fill k


def deep_gradient_compression(x: Array, k: int, key: int) -> Array:
    threshold = sampled_threshold(x, k, 0.01, key)
    passing = np.abs(x) >= threshold
    for _ in range(10):
        if passing.sum() >= 0.8 * k:
            break
        threshold *= 0.8  # too few: lower it, as the authors' code does
        passing = np.abs(x) >= np.float32(threshold)
    places = np.flatnonzero(passing)
    return places[largest(x[places], k)]  # too many: an exact top-k of those that passed


@both_kernels
@pytest.mark.parametrize("density", [0.2, 0.03, 0.01])
@pytest.mark.parametrize(
    ("kind", "reference"),
    [(Threshold, gradient_dropping), (DGCSampled, deep_gradient_compression)],
    ids=["threshold", "dgc_sampled"],
)
def test_what_is_sent_equals_the_paper_in_float64(
    kind: Any, reference: Any, density: float
) -> None:
    for seed in (*range(6), 15, 33):  # of the last two DGC's sampled thresholds pass too few
        x = heavy_tailed(60_000, seed)
        # Many equal magnitudes, too, where the paper's ">= threshold" would send more than k.
        for given in (x, (4 * x).round() / 4) if kind is Threshold else (x,):
            found = kind(density).select(given, context(seed)).indices
            key = context(seed).key(shared=False)
            expected = reference(given.double().numpy(), num_kept(60_000, density), key)
            np.testing.assert_array_equal(found, expected, err_msg=f"seed {seed}")


@pytest.mark.parametrize("spread", [0.0, 1.0])
@pytest.mark.parametrize("factor", [10, 100, 1000])
def test_gradient_dropping_scatters_around_k_as_a_sample_of_64_does(
    factor: float, spread: float
) -> None:
    """The threshold is the 64th of the sample or deeper: k' / k has a standard deviation of 1 / 8;
    4 of them for each of 40 steps, 4 / sqrt 40 for their mean."""
    x, k = heavy_tailed(400_000, spread=spread), 400_000 / factor
    method = Threshold(factor=factor)
    shares = [method.select(x, context(step)).values.numel() / k for step in range(40)]
    assert 0.5 <= min(shares) <= max(shares) <= 1.5
    assert abs(np.mean(shares) - 1) <= 4 / 8 / 40**0.5
    assert len(set(shares)) > 10, "nothing was sampled"


def two_levels(size: int) -> Tensor:
    """The k-th magnitude stands alone: a threshold just above it passes too few. Where it is lowered,
    entries just below come."""
    return torch.where(torch.arange(size) % 97 == 0, 10.0, 7.0) + 0.01 * gaussian(size)


@pytest.mark.parametrize("make", [gaussian, heavy_tailed, two_levels])
def test_dgc_sends_between_four_fifths_and_all_of_k(make: Any) -> None:
    x = make(200_000)
    factor = 50 if make is two_levels else 100
    method = DGCSampled(factor=factor)
    counts = [method.select(x, context(step)).values.numel() for step in range(50)]
    assert 0.8 * 200_000 / factor <= min(counts) <= max(counts) == 200_000 / factor
    if make is not two_levels:
        assert min(counts) < 2000, "never fewer: was anything sampled?"


def test_dgc_chooses_from_a_small_tensor_exactly() -> None:
    x = heavy_tailed(900)
    found, exact = (m.select(x, context()) for m in (DGCSampled(0.05), TopK(0.05)))
    assert torch.equal(found.indices, exact.indices)


@both_kernels
def test_a_fixed_threshold_sends_what_passes_it_and_nothing_else() -> None:
    x = torch.tensor([0.5, -0.5, 0.49999, 3.0, -torch.inf, torch.nan, 0.0])
    survivors = Threshold(threshold=0.5).select(x, context())
    assert survivors.indices.tolist() == [0, 1, 3, 4, 5]
    assert Threshold(threshold=0.5).select(x[:1] / 2, context()).indices.tolist() == []
    assert Threshold(threshold=1.0).refine(survivors, context()).indices.tolist() == [3, 4, 5]
