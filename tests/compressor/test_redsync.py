"""RedSync's two selections and its quantization against the paper in numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from laws import Setting, Watched
from numeric import EPS, Array, both_kernels, context, dense, gaussian, heavy_tailed, largest
from torch import Tensor

from dgc_repro import RedSync
from dgc_repro.compressor.sparsifier import num_kept
from dgc_repro.payload import Sparse


def trimmed_topk(x: Array, k: int) -> Array:
    """Algorithm 2. x: f64[n]."""
    size = np.abs(x)
    mean, most, ratio = size.mean(), size.max(), 0.8
    threshold = mean + ratio * (most - mean)
    while (size > threshold).sum() < k:
        ratio -= 0.2
        threshold = mean + ratio * (most - mean)
    places = np.flatnonzero(size > threshold)
    return places[largest(x[places], k)]


def threshold_binary_search(x: Array, k: int) -> Array:
    """Algorithm 3, to the precision of float32. x: f64[n]."""
    size = np.abs(x)
    mean, most, low, high = size.mean(), size.max(), 0.0, 1.0
    for _ in range(32):
        ratio = (low + high) / 2
        threshold = np.float32(mean + ratio * (most - mean))
        count = int((size > threshold).sum())
        if k <= count <= 2 * k:
            return np.flatnonzero(size > threshold)
        low, high = (low, ratio) if count < k else (ratio, high)
    raise AssertionError("the paper's search finds no threshold here")


@both_kernels
@pytest.mark.parametrize("density", [0.1, 0.01, 0.001])
def test_trimmed_selection_equals_the_paper(density: float) -> None:
    for seed in range(3):
        x = heavy_tailed(30_000, seed, spread=1.0)
        found = RedSync(density).select(x, context())
        k = num_kept(30_000, density)
        np.testing.assert_array_equal(found.indices, trimmed_topk(x.double().numpy(), k))


@both_kernels
@pytest.mark.parametrize("spread", [0.0, 1.0, 2.0])
@pytest.mark.parametrize("density", [0.1, 0.01, 0.001])
def test_searched_selection_equals_the_paper(density: float, spread: float) -> None:
    for seed in range(3):
        x = heavy_tailed(60_000, seed, spread)
        found = RedSync(density, search_from=60_000).select(x, context(seed))
        expected = threshold_binary_search(x.double().numpy(), num_kept(60_000, density))
        np.testing.assert_array_equal(found.indices, expected)


@both_kernels
@pytest.mark.parametrize("step", [0, 1, 2, 3])
@pytest.mark.parametrize("search_from", [0, 10**6])
def test_quantized_sends_the_mean_of_one_sign_in_turn(step: int, search_from: int) -> None:
    """Section on quantization: the k largest x, in the next step the k smallest; all become their
    mean, which float64 sums to float32's last bit but one."""
    x = heavy_tailed(40_000, 3, spread=1.0)
    sparsifier = RedSync(0.01, search_from=search_from, quantized=True)
    found = sparsifier.select(x, context(step))
    signed = x.double().numpy() * (1 if step % 2 == 0 else -1)
    positive = np.maximum(signed, 0)
    search = threshold_binary_search if search_from == 0 else trimmed_topk
    places = search(positive, 400)
    np.testing.assert_array_equal(found.indices.numpy(), places)
    mean = x.double().numpy()[places].mean()
    assert float(found.values[0]) == pytest.approx(mean, rel=2.0**-23)
    assert bool((found.values == found.values[0]).all())
    assert (mean > 0) == (step % 2 == 0)


@pytest.mark.parametrize("step", [0, 1])
def test_where_few_entries_have_the_sign_of_the_step_others_do_not_join_them(step: int) -> None:
    x = torch.zeros(100)
    x[40:50] = -2.0
    x[7], x[8] = 1.0, 3.0
    found = RedSync(0.05, quantized=True).select(x, context(step))
    # 5 are wanted, and 2 are positive.
    places, value = ([*range(40, 45)], -2.0) if step else ([7, 8], 2.0)
    assert (found.indices.tolist(), found.values.unique().tolist()) == (places, [value])


def test_where_no_entry_has_the_sign_of_the_step_the_other_sign_takes_its_turn() -> None:
    x = -1 - gaussian(100).abs()
    for step in (0, 1):
        found = RedSync(0.05, quantized=True).select(x, context(step))
        assert found.values.numel() == 5
        assert bool((found.values < 0).all())


def test_a_shared_value_that_arrives_broken_is_an_error() -> None:
    found = RedSync(0.01, quantized=True).select(heavy_tailed(10_000), context())
    payload = Sparse.one(found, shared=True)
    for lengths in ([1, 50, 101], [1, 49, 100], [2, 50, 100]):
        with pytest.raises(ValueError, match="^sparse payload: "):
            payload.announced(lengths)
    for wrong in (1, -1, 1 << 40, 1 << 60):
        arrived = payload.like(payload.row.clone())
        arrived.layout.view(arrived.buffer, 0, 0).add_(wrong)
        with pytest.raises(ValueError, match="^sparse payload: "):
            dense(arrived)


def test_workers_with_different_counts_average_their_shared_values() -> None:
    """12 bytes of header and value a worker, places of 2 bytes (to whole words of 4); the mean is that
    of what was sent."""

    def gradients(worker: int) -> dict[str, Tensor]:
        x = heavy_tailed(5_000, worker)
        return {"x": x if worker == 0 else x.clamp(max=0).index_fill(0, torch.arange(9), 1.0)}

    watched = Watched(Setting("quantized", RedSync(0.02, quantized=True)), 3, gradients(0))
    watched.play([gradients(worker) for worker in range(3)])
    seen = watched.seen["x"]
    assert [one.own_bytes for one in seen] == [12 + 2 * 100, 12 + 2 * 10, 12 + 2 * 10]
    owns = torch.stack([one.own for one in seen]).double()
    # Three products and two sums, each off by 2^-24 of its value at most.
    bound = 6 * EPS * owns.abs().mean(0)
    assert bool(((seen[0].mean.double() - owns.mean(0)).abs() <= bound).all())
