"""TernGrad against its equations, and what clipping and a shared scale do."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from laws import stepped
from numeric import Array, both_kernels, context, dense, encoded, hashed_uniform, heavy_tailed

from dgc_repro import TernGrad
from dgc_repro.kernel.batch import Batch


def reference(g: Array, clip: float | None, random: Array) -> tuple[Array, Array, float]:
    """(sent, probability of b = 1, s), in float64.

    f(g) = g where |g| <= c sigma, else sign(g) c sigma;  s = max|f(g)|
    sent = s sign(g) b,  P(b = 1) = |f(g)| / s

    A positive value is +s where u < P, a negative one is kept at 0 where u < 1 - P.
    """
    if clip is not None:
        limit = clip * np.sqrt((g**2).mean())
        g = np.clip(g, -limit, limit)
    s = float(np.abs(g).max())
    p = np.abs(g) / s
    b = np.where(g >= 0, random < p, random >= 1 - p)
    return s * np.sign(g) * b, p, s


@both_kernels
@pytest.mark.parametrize("clip", [None, 2.5, 0.5, 1e6])
def test_values_equal_the_float64_reference_except_on_the_edge_of_a_step(
    clip: float | None,
) -> None:
    """They may differ where the drawn number is within float32's rounding of the probability: s,
    1 / s and the product, 2^-22."""
    x, key = heavy_tailed(), context().key(shared=False)
    random = hashed_uniform(np.arange(len(x)), key)
    sent, p, s = reference(x.double().numpy(), clip, random)
    payload = encoded(TernGrad(clip), x)
    assert abs(float(payload.layout.view(payload.buffer, 0, 0)) - s) <= 2.0**-23 * s
    edge = np.where(x.numpy() >= 0, p, 1 - p)
    close = (np.abs(random - edge) <= 2.0**-22) | (p >= 1 - 2.0**-22)
    found = dense(payload).double().numpy()
    np.testing.assert_allclose(found[~close], sent[~close], rtol=2.0**-23)
    clipped = int((p >= 1 - 2.0**-22).sum())
    unclipped = clip is None or clip > 1e3
    assert clipped == (1 if unclipped else int((np.abs(x.numpy()) >= s * (1 - 1e-7)).sum()))
    assert close.sum() - clipped <= 5
    # What reaches the scale is sent as the scale, but for one draw of 2^23 at the rounding of 1 / s.
    np.testing.assert_allclose(np.abs(found[p >= 1 - 2.0**-22]), s, rtol=2.0**-23)


@both_kernels
def test_equal_values_and_single_ones_are_not_clipped_to_nothing() -> None:
    """Their deviation from their mean is 0; from 0 it is not."""
    for x in (torch.full((9,), 0.3), torch.tensor([-2.0]), torch.tensor(5.0), torch.zeros(7)):
        assert torch.equal(dense(encoded(TernGrad(), x)), x.view(-1))
    huge = encoded(TernGrad(), torch.full((99,), 3e38))
    assert bool(dense(huge).isfinite().all())


@both_kernels
def test_a_shared_scale_is_the_largest_of_the_workers() -> None:
    """So every answer of N workers is a multiple of s / N."""
    source = torch.Generator().manual_seed(0)
    gradients = [torch.randn(300, generator=source) * (1 + worker / 4) for worker in range(4)]
    names = tuple(map(str, range(4)))
    scale = float(TernGrad().scales(Batch(names, gradients)).max())
    steps = stepped(TernGrad(shared_scale=True), gradients) / (scale / 4)
    # Four products of s / 4, and their sum, each rounded by 2^-24.
    assert float((steps - steps.round()).abs().max()) <= 8 * 2.0**-24 * 4
    assert len(steps.round().unique()) > 4
    apart = stepped(TernGrad(), gradients) / (scale / 4)
    assert float((apart - apart.round()).abs().max()) > 0.01
