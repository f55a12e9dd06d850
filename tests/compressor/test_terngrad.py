"""TernGrad against its equations, what clipping and a shared scale do, and its messages."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
import torch
from laws import same_bits
from quantizing import Array, context, exchanged, hashed_uniform, heavy_tailed, kernels, kinds
from torch import Tensor

from dgc_repro.compressor.terngrad import TernGrad, _encode
from dgc_repro.exchange.payload import Codes, num_bytes
from dgc_repro.kernel import native

__all__ = ["kernels"]


def encoded(x: Tensor, setting: TernGrad, step: int = 0) -> Codes:
    return _encode(x, setting.scale(x, context()), context(step))


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


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("clip", [None, 2.5, 0.5])
def test_values_equal_the_float64_reference_except_on_the_edge_of_a_step(
    clip: float | None,
) -> None:
    """They may differ where the drawn number is within float32's rounding of the probability: s,
    1 / s and the product, 2^-22."""
    x, key = heavy_tailed(), context().key(shared=False)
    random = hashed_uniform(np.arange(len(x)), key)
    sent, p, s = reference(x.double().numpy(), clip, random)
    payload = encoded(x, TernGrad(clip))
    assert abs(float(payload.scales) - s) <= 2.0**-23 * s
    edge = np.where(x.numpy() >= 0, p, 1 - p)
    close = (np.abs(random - edge) <= 2.0**-22) | (p >= 1 - 2.0**-22)
    found = payload.dense().double().numpy()
    np.testing.assert_allclose(found[~close], sent[~close], rtol=2.0**-23)
    clipped = int((p >= 1 - 2.0**-22).sum())
    assert clipped == (1 if clip is None else int((np.abs(x.numpy()) >= s * (1 - 1e-7)).sum()))
    assert close.sum() - clipped <= 5
    # What reaches the scale is sent as the scale, but for one draw of 2^23 at the rounding of 1 / s.
    np.testing.assert_allclose(np.abs(found[p >= 1 - 2.0**-22]), s, rtol=2.0**-23)


def test_without_clipping_it_is_unbiased_and_draws() -> None:
    """A value scatters by s / 2 at most: six standard deviations of K draws."""
    x, count = heavy_tailed(1, 200), 1500
    drawn = torch.stack([encoded(x, TernGrad(None), i).dense() for i in range(count)]).double()
    s = x.abs().max()
    assert drawn.unique().tolist() == [-float(s), 0.0, float(s)]
    assert float(((drawn.mean(0) - x.double()) / s).abs().max()) <= 6 / (2 * math.sqrt(count))


@pytest.mark.usefixtures("kernels")
def test_clipping_makes_the_scale_and_so_the_noise_smaller() -> None:
    x = heavy_tailed(2)
    scale = float(TernGrad(2.5).scale(x, context()))
    assert scale == pytest.approx(2.5 * float(x.double().square().mean().sqrt()), rel=1e-7)
    assert float(TernGrad(None).scale(x, context())) == float(x.abs().max()) > 2 * scale
    assert float(TernGrad(1e6).scale(x, context())) == float(x.abs().max())


@pytest.mark.usefixtures("kernels")
def test_equal_values_and_single_ones_are_not_clipped_to_nothing() -> None:
    """Their deviation from their mean is 0; from 0 it is not."""
    for x in (torch.full((9,), 0.3), torch.tensor([-2.0]), torch.tensor(5.0)):
        assert torch.equal(encoded(x, TernGrad()).dense(), x.view(-1))
    assert not encoded(torch.zeros(7), TernGrad()).dense().any()
    assert bool(encoded(torch.full((99,), 3e38), TernGrad()).dense().isfinite().all())


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("clip", [None, 2.5])
@pytest.mark.parametrize("broken", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_is_not_hidden(broken: float, clip: float | None) -> None:
    x = torch.linspace(-1, 1, 100)
    x[60] = broken
    assert not bool(encoded(x, TernGrad(clip)).dense()[60].isfinite())


@pytest.mark.usefixtures("kernels")
def test_a_shared_scale_is_the_largest_of_the_workers() -> None:
    """So every answer of N workers is a multiple of s / N."""
    source = torch.Generator().manual_seed(0)
    gradients = [torch.randn(300, generator=source) * (1 + worker / 4) for worker in range(4)]
    scale = max(float(TernGrad().scale(x, context())) for x in gradients)
    steps = exchanged(TernGrad(shared_scale=True), gradients) / (scale / 4)
    # Four products of s / 4, and their sum, each rounded by 2^-24.
    assert float((steps - steps.round()).abs().max()) <= 8 * 2.0**-24 * 4
    assert len(steps.round().unique()) > 4
    apart = exchanged(TernGrad(), gradients) / (scale / 4)
    assert float((apart - apart.round()).abs().max()) > 0.01


@pytest.mark.parametrize("clip", [None, 2.5])
def test_c_and_tensor_kernels_give_the_same_bits(
    clip: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for size in (1, 7, 513, 9001):
        for x in kinds(size):
            if not bool(x.isfinite().all()):
                continue  # the code of a NaN is undefined; that it is not hidden is tested above
            ours = encoded(x, TernGrad(clip))
            with monkeypatch.context() as patch:
                patch.setattr(native, "library", lambda: None)
                theirs = encoded(x, TernGrad(clip))
            assert all(map(same_bits, ours.parts, theirs.parts))


@pytest.mark.parametrize("size", [0, 1, 4, 5, 5003])
def test_two_bits_a_value_are_sent(size: int) -> None:
    own = encoded(torch.ones(size), TernGrad())
    assert num_bytes(own) == (4 if size else 0) + math.ceil(size / 4)
    assert own.num_floats == size / 16


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"clip": 0}, "clip: a number of standard deviations above 0, or null, got 0"),
        ({"clip": -2.5}, "clip: a number of standard deviations above 0"),
        ({"clip": math.inf}, "clip: a number of standard deviations above 0"),
        ({"clip": "2.5"}, "clip: a number of standard deviations above 0"),
        ({"clip": True}, "clip: a number of standard deviations above 0"),
        ({"shared_scale": "yes"}, "shared_scale: true or false, got 'yes'"),
    ],
)
def test_a_wrong_setting_is_named_with_its_range(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        TernGrad(**settings)
