"""DGC's selection against its paper in numpy, and where a sampled threshold goes wrong."""

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
from torch import Tensor

from dgc_repro.compressor.dgc_sampled import DGCSampled
from dgc_repro.compressor.sparsifier import num_kept
from dgc_repro.compressor.topk import TopK
from dgc_repro.kernel import native


@pytest.fixture(params=["c", "tensors"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "tensors":
        monkeypatch.setattr(native, "library", lambda: None)


def reference(x: Array, k: int, share: float, key: int) -> Array:
    """The places that are sent. x: f64[n]."""
    threshold = sampled_threshold(x, k, share, key)
    passing = np.abs(x) >= threshold
    for _ in range(10):
        if passing.sum() >= 0.8 * k:
            break
        threshold *= 0.8  # too few: lower it, as the authors' code does
        passing = np.abs(x) >= np.float32(threshold)
    places = np.flatnonzero(passing)
    return places[largest(x[places], k)]  # too many: an exact top-k of those that passed


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("density", [0.2, 0.03, 0.01])
@pytest.mark.parametrize("seed", range(6))
def test_what_is_sent_equals_the_paper_in_float64(seed: int, density: float) -> None:
    x = heavy_tailed(60_000, seed, spread=2.0)
    found = DGCSampled(density).select(x, context(seed))
    key = context(seed).key(shared=False)
    expected = reference(x.double().numpy(), num_kept(60_000, density), 0.01, key)
    np.testing.assert_array_equal(found.indices.numpy(), expected)
    check_sound(found, x)


@pytest.mark.parametrize("make", [gaussian, heavy_tailed])
def test_between_four_fifths_and_all_of_k_are_sent(make: Any) -> None:
    x, counts = make(200_000), []
    for step in range(50):
        found = DGCSampled(factor=100).select(x, context(step))
        counts.append(found.values.numel())
    assert min(counts) >= 1600
    assert max(counts) == 2000
    assert min(counts) < 2000, "never fewer: was anything sampled?"


def test_what_passes_beyond_k_is_not_cut_by_place() -> None:
    """The large entries lie at the end of the tensor; a cut by place among what passes would leave
    out some of them for entries before."""
    x = torch.cat([0.5 + 0.1 * gaussian(90_000).abs(), 10 + gaussian(10_000).abs()])
    for step in range(20):
        found = DGCSampled(0.1).select(x, context(step))
        if found.values.numel() == 10_000:
            assert int(found.indices[0]) == 90_000
    for step in range(20):  # the last entry is the largest: it is always sent
        x[-1] = 100.0
        assert int(DGCSampled(0.1).select(x, context(step)).indices[-1]) == 99_999


def test_a_small_tensor_is_not_sampled_but_chosen_exactly() -> None:
    x = heavy_tailed(900)
    found, exact = (m.select(x, context()) for m in (DGCSampled(0.05), TopK(0.05)))
    assert torch.equal(found.indices, exact.indices)


def test_a_threshold_without_followers_is_lowered() -> None:
    """Half of the sampled entries decide: with 1 large entry of 100, a sample that sees more of them
    than there are has a threshold that too few pass. Where it is lowered, entries just below come."""
    x = torch.where(torch.arange(100_000) % 97 == 0, 10.0, 7.0) + 0.01 * gaussian(100_000)
    for step in range(30):
        count = DGCSampled(factor=50).select(x, context(step)).values.numel()
        assert 1600 <= count <= 2000


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("name", odd_tensors())
@pytest.mark.parametrize("density", [1.0, 0.3, 0.1, 0.001])
def test_odd_tensors_send_something_and_never_more_than_k(name: str, density: float) -> None:
    x = odd_tensors()[name]
    found = DGCSampled(density).select(x, context())
    check_sound(found, x)
    k = num_kept(x.numel(), density)
    assert min(k, 1) <= found.values.numel() <= k
    if name in ("constant", "zeros", "all infinite"):
        assert found.values.numel() == k


def test_workers_and_steps_sample_apart_and_no_global_generator_is_touched() -> None:
    x, state = heavy_tailed(100_000), torch.get_rng_state()

    def places(step: int, rank: int) -> Tensor:
        return DGCSampled(0.01).select(x, context(step, rank)).indices

    assert torch.equal(places(0, 0), places(0, 0))
    found = [places(step, rank).numel() for step in range(4) for rank in range(4)]
    assert len(set(found)) > 1
    assert torch.equal(state, torch.get_rng_state())


def test_a_stronger_setting_refines_the_survivors_with_k_of_the_original() -> None:
    x = heavy_tailed(300_000)
    weak = DGCSampled(factor=10).select(x, context())
    strong = DGCSampled(factor=1000).refine(weak, context())
    assert 240 <= strong.values.numel() <= 300
    check_sound(strong, x)
    assert set(strong.indices.tolist()) <= set(weak.indices.tolist())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"density": 0.0}, "density: a number above 0 and at most 1, or null, got 0.0"),
        ({"factor": 0.5}, "factor: a number from 1, or null, got 0.5"),
        ({"indices": "int16"}, "indices: one of auto, int32, delta16, bitmap, got 'int16'"),
        ({"values": "fp8"}, "values: one of fp32, fp16, int8, got 'fp8'"),
        ({"density": 0.1, "factor": 100}, "density: 0.1 is a factor of 10, and factor is 100"),
        ({"sample": 0}, "sample: a number above 0 and at most 1, got 0"),
        ({"sample": 1.5}, "sample: a number above 0 and at most 1"),
        ({"sample": True}, "sample: a number above 0 and at most 1"),
    ],
)
def test_a_wrong_setting_is_named_with_its_range(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        DGCSampled(**settings)
