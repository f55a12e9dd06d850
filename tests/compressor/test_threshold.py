"""Gradient dropping against its paper in numpy, its share, ties, and the fixed threshold."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from thresholded import (
    Array,
    check_sound,
    context,
    gaussian,
    heavy_tailed,
    largest,
    odd_tensors,
    sampled_threshold,
)

from dgc_repro.compressor.sparsifier import num_kept
from dgc_repro.compressor.threshold import Threshold
from dgc_repro.kernel import native


@pytest.fixture(params=["c", "tensors"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "tensors":
        monkeypatch.setattr(native, "library", lambda: None)


def reference(x: Array, k: int, share: float, key: int) -> Array:
    """The places that are sent. x: f64[n]."""
    threshold = sampled_threshold(x, k, share, key)
    passing = int((np.abs(x) >= threshold).sum())
    larger = int((np.abs(x) > threshold).sum())
    if passing - larger == 1 or passing <= k:
        return np.flatnonzero(np.abs(x) >= threshold)
    return largest(x, max(k, larger))  # equal ones as far as they fill k


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("density", [0.2, 0.01])
@pytest.mark.parametrize("coarse", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_what_is_sent_equals_the_paper_in_float64(seed: int, coarse: bool, density: float) -> None:
    x = heavy_tailed(60_000, seed)
    if coarse:  # many equal magnitudes
        x = (4 * x).round() / 4
    found = Threshold(density).select(x, context(seed))
    key = context(seed).key(shared=False)
    expected = reference(x.double().numpy(), num_kept(60_000, density), 0.001, key)
    np.testing.assert_array_equal(found.indices.numpy(), expected)
    check_sound(found, x)


@pytest.mark.parametrize("make", [gaussian, heavy_tailed])
@pytest.mark.parametrize("factor", [10, 100, 1000])
def test_what_is_sent_scatters_around_k_as_a_sample_of_64_does(make: Any, factor: float) -> None:
    """The threshold is the 64th of the sample or deeper: k' / k has a standard deviation of 1 / 8;
    4 of them for each of 40 steps, 4 / sqrt 40 for their mean."""
    x = make(400_000)
    k = 400_000 / factor
    shares = [
        Threshold(factor=factor).select(x, context(step)).values.numel() / k for step in range(40)
    ]
    assert 0.5 <= min(shares) <= max(shares) <= 1.5
    assert abs(np.mean(shares) - 1) <= 4 / 8 / 40**0.5
    assert len(set(shares)) > 10, "nothing was sampled"


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("name", odd_tensors())
@pytest.mark.parametrize("density", [1.0, 0.3, 0.1, 0.001])
def test_odd_tensors_send_something_and_not_everything(name: str, density: float) -> None:
    x = odd_tensors()[name]
    found = Threshold(density).select(x, context())
    check_sound(found, x)
    k = num_kept(x.numel(), density)
    assert min(k, 1) <= found.values.numel() <= 1.5 * k
    if name in ("constant", "zeros", "all infinite", "two values", "few not zero"):
        assert found.values.numel() == k


@pytest.mark.usefixtures("kernels")
def test_a_fixed_threshold_sends_what_passes_it_and_nothing_else() -> None:
    x = torch.tensor([0.5, -0.5, 0.49999, 3.0, -torch.inf, torch.nan, 0.0])
    found = Threshold(threshold=0.5).select(x, context())
    assert found.indices.tolist() == [0, 1, 3, 4, 5]
    assert Threshold(threshold=0.5).select(x[:1] / 2, context()).indices.tolist() == []
    survivors = Threshold(threshold=0.5).select(x, context())
    assert Threshold(threshold=1.0).refine(survivors, context()).indices.tolist() == [3, 4, 5]


def test_a_stronger_setting_refines_the_survivors_with_k_of_the_original() -> None:
    x = heavy_tailed(300_000)
    weak = Threshold(factor=10).select(x, context())
    strong = Threshold(factor=1000).refine(weak, context())
    assert 150 <= strong.values.numel() <= 450
    check_sound(strong, x)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"indices": "int16"}, "indices: one of auto, int32, delta16, bitmap, got 'int16'"),
        ({"values": "fp8"}, "values: one of fp32, fp16, int8, got 'fp8'"),
        ({"density": 2}, "density: a number above 0 and at most 1, or null, got 2"),
        ({"factor": 0}, "factor: a number from 1, or null, got 0"),
        ({"threshold": 0.0}, "threshold: a number above 0, or null"),
        ({"threshold": float("inf")}, "threshold: a number above 0, or null"),
        ({"threshold": "small"}, "threshold: a number above 0, or null"),
        ({"threshold": 0.1, "factor": 100}, "threshold: a fixed threshold sends whatever passes"),
        ({"threshold": 0.1, "density": 0.1}, "threshold: a fixed threshold sends whatever passes"),
        ({"sample": -1}, "sample: a number above 0 and at most 1, got -1"),
    ],
)
def test_a_wrong_setting_is_named_with_its_range(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        Threshold(**settings)
