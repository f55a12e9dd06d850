"""SIDCo's fits and stages against the closed forms of its paper in numpy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from numeric import Array, both_kernels, context, gaussian, heavy_tailed
from torch import Tensor

from dgc_repro import SIDCo
from dgc_repro.compressor.sidco import FITS
from dgc_repro.compressor.sparsifier import num_kept
from dgc_repro.kernel.batch import Batch


def exponential(excess: Array, share: float) -> float:
    """Corollary 1.1: t = b log(1 / d), b = mean."""
    return float(excess.mean() * math.log(1 / share))


def gamma(excess: Array, share: float) -> float:
    """Corollary 1.2: t = -b (log d + log Gamma(a))."""
    s = math.log(excess.mean()) - np.log(excess).mean()
    a = (3 - s + math.sqrt((s - 3) ** 2 + 24 * s)) / (12 * s)
    return float(-excess.mean() / a * (math.log(share) + math.lgamma(a)))


def pareto(excess: Array, share: float) -> float:
    """Corollary 1.3: t = b / a (exp(-a log d) - 1)."""
    mean, variance = excess.mean(), excess.var()
    a, b = 0.5 * (1 - mean**2 / variance), 0.5 * mean * (mean**2 / variance + 1)
    return float(b / a * (math.exp(-a * math.log(share)) - 1))


def reference(x: Array, k: int, fit: str, stages: int) -> float:
    """The threshold. x: f64[n], without zeros."""
    first = {"exponential": exponential, "gamma": gamma, "pareto": pareto}[fit]
    after = exponential if fit == "exponential" else pareto  # lemma 2: what exceeds t is Pareto
    size, share = np.abs(x), k / x.size
    if stages == 1 or share >= 0.25:
        return float(np.float32(first(size, share)))
    threshold = np.float32(first(size, 0.25))
    for _ in range(stages - 1):
        excess = size[size > threshold] - threshold
        threshold = np.float32(threshold + after(excess, (share / 0.25) ** (1 / (stages - 1))))
    return float(threshold)


@both_kernels
@pytest.mark.parametrize("fit", FITS)
@pytest.mark.parametrize("stages", [1, 2, 3, 5])
@pytest.mark.parametrize("density", [0.3, 0.02, 0.001])
def test_what_is_sent_passes_the_papers_threshold(density: float, stages: int, fit: str) -> None:
    """The thresholds of both are rounded to float32 at each stage; sums in another order may take
    one across a rounding step, so entries within 2 steps of the threshold may differ: there is none
    here, or one."""
    x = heavy_tailed(60_000, stages, spread=0.5)
    found = SIDCo(density, fit=fit, stages=stages).select(x, context())
    k = num_kept(60_000, density)
    threshold = reference(x.double().numpy(), k, fit, stages)
    size = np.abs(x.double().numpy())
    expected = set(np.flatnonzero(size >= threshold).tolist())
    if not expected:  # nothing passes: the k largest
        assert found.values.numel() == k
        return
    differing = np.array(sorted(expected ^ set(found.indices.tolist())), dtype=int)
    assert bool((np.abs(size[differing] / threshold - 1) <= 2.0**-22).all())
    assert len(differing) <= 1


def drawn(fit: str, size: int, seed: int) -> Tensor:
    """Values of random sign whose magnitudes have the distribution that is fitted."""
    source = np.random.default_rng(seed)
    magnitudes = {
        "exponential": lambda: source.exponential(0.3, size),
        "gamma": lambda: source.gamma(0.6, 0.3, size),
        "pareto": lambda: ((1 - source.random(size)) ** -0.2 - 1) * 0.3 / 0.2,
    }[fit]()
    return torch.from_numpy(magnitudes * source.choice([-1, 1], size)).float()


def laplace(size: int, seed: int) -> Tensor:
    return drawn("exponential", size, seed)


def moderate(size: int, seed: int) -> Tensor:
    return heavy_tailed(size, seed, spread=1.0)


def log_normal(size: int, seed: int) -> Tensor:
    """Spread 2: a heavier tail than any of the fits has."""
    return torch.exp(2 * gaussian(size, 2 * seed)) * gaussian(size, 2 * seed + 1).sign()


def settled(sparsifier: SIDCo, values: list[Tensor], steps: int) -> Array:
    """k' / k of each step of one tensor, as the state goes on."""
    n = values[0].numel()
    batches = [Batch(("w",), [x]) for x in values]
    state, shares = sparsifier._first_state(), []
    for step in range(steps):
        x, stages = batches[step % len(values)], np.array([state["stages"]])
        (sent,) = sparsifier._in_stages(x, (n,), stages, context(step)).counts
        state = sparsifier._adapted(state, sent, n)
        shares.append(sent / num_kept(n, sparsifier.share_sent))
    return np.array(shares)


def student(size: int, seed: int) -> Tensor:
    """Student's t with 3 degrees of freedom."""
    return torch.from_numpy(np.random.default_rng(seed).standard_t(3, size)).float()


SETTLED = {  # the mean of k' / k, and each
    "exponential": ((0.5, 1.3), (0.2, 5.0)),
    "gamma": ((0.4, 1.8), (0.3, 7.0)),
    "pareto": ((0.7, 1.3), (0.4, 2.5)),
}
FIRST = {
    (gaussian, "exponential"): (1.0, 1.25),
    (laplace, "exponential"): (0.9, 1.1),
    (student, "exponential"): (0.3, 0.85),
    (student, "gamma"): (0.75, 1.05),
    (student, "pareto"): (0.8, 1.1),
    (log_normal, "exponential"): (0.05, 0.5),
    (log_normal, "gamma"): (0.2, 0.55),
    (log_normal, "pareto"): (0.3, 0.7),
}


@pytest.mark.parametrize("fit", FITS)
@pytest.mark.parametrize("make", [gaussian, laplace, moderate, log_normal, student])
def test_the_first_steps_and_adapted_stages_keep_k_in_stated_ranges(make: Any, fit: str) -> None:
    """The docstring's tables, with room for other draws: the mean of 20 steps, and steps 61 to 120."""
    values = [make(30_000, seed) for seed in range(20)]
    for factor in (10, 100, 1000):
        shares = settled(SIDCo(factor=factor, fit=fit), values, 20 if make is student else 120)
        lowest, highest = FIRST.get((make, fit), (0, math.inf))
        assert lowest <= shares[:20].mean() <= highest, factor
        if make is not student:
            later, (mean, each) = shares[60:], SETTLED[fit]
            assert mean[0] <= later.mean() <= mean[1], factor
            assert each[0] <= later.min() <= later.max() <= each[1], factor


def test_stages_change_every_fifth_step_the_way_that_has_helped() -> None:
    """Algorithm 1: one stage fewer when too many were sent, one more when too few; turned round
    where more stages have been seen to send less."""
    sidco, k, n = SIDCo(0.01), 100, 10_000

    def after(state: dict[str, Any], sent: int) -> dict[str, Any]:
        for step in range(5):
            assert (state["steps"], state["sent"]) == (step, step * sent)
            state = sidco._adapted(state, sent, n)
        return state

    first = sidco._first_state()
    assert first["stages"] == 4
    assert after(first, k) == {**first, "last": 1.0}
    assert after(first, k // 2)["stages"] == 5
    many = after(first, 2 * k)
    assert (many["stages"], many["change"], many["last"]) == (3, -1, 2.0)
    assert after(many, k)["direction"] == 1  # fewer stages sent less
    assert after(many, 3 * k // 2)["stages"] == 2
    worse = after(many, 3 * k)  # fewer stages sent more: the other way, and on
    assert (worse["stages"], worse["direction"]) == (4, -1)
    assert after(worse, 2 * k)["stages"] == 5
    assert after(worse, k // 2)["stages"] == 3
    over = after(many, k // 3)  # fewer stages sent too few, by more than it was too many: undone
    assert (over["stages"], over["change"], over["hold"]) == (4, 0, 10)
    for hold in range(9, 0, -1):
        over = after(over, 2 * k)
        assert (over["stages"], over["hold"]) == (4, hold)
    assert after(over, 2 * k)["stages"] == 3  # tried again
    assert after({**first, "stages": 1}, 2 * k)["stages"] == 2  # there are no 0 stages
    assert after({**first, "stages": 7}, k // 2)["stages"] == 6  # log(0.01) / log(1/2): 7 at most
    assert SIDCo(0.01, stages=3)._adapted(first, 5 * k, n) is first


def test_zeros_are_no_part_of_the_fit() -> None:
    x = drawn("gamma", 20_000, 1)
    wide = torch.zeros(200_000)
    wide[::10] = x
    for fit in FITS:
        dense, sparse = (
            SIDCo(d, fit=fit, stages=2).select(t, context()) for d, t in ((0.05, x), (0.005, wide))
        )
        assert torch.equal(sparse.indices, dense.indices * 10)
