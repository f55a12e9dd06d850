"""Small quantizers against their definitions: casts, natural compression, TernGrad, running scales."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from laws import stepped
from numeric import (
    Array,
    both_kernels,
    context,
    dense,
    encoded,
    hashed_bits,
    hashed_uniform,
    heavy_tailed,
    run,
)
from torch import Tensor

from dgc_repro import BF16, FP16, Natural, RunningUniform, TernGrad, Uniform
from dgc_repro.compressor.uniform import ROUNDINGS
from dgc_repro.kernel.batch import Batch

# bfloat16 and fp16: rounded to even, averaged in their own precision, never an infinity of their own.


def bf16(x: Array) -> Array:
    """To 8 significant bits, ties to even, in float64 (exponents as of float32: numpy has no bf16)."""
    mantissa, exponent = np.frexp(x)
    return np.ldexp(np.rint(mantissa * 2**8), exponent - 8)


def fp16(x: Array) -> Array:
    return np.clip(x, -65504, 65504).astype(np.float16).astype(np.float64)


def mean_of_casts(workers: list[Array], rounded: Callable[[Array], Array]) -> Array:
    """own = rounded(x);  mean = sum of rounded(own / N), each sum rounded.

    The weight 1 / N is a float32, and so is the product before it is rounded."""
    total = np.zeros_like(workers[0])
    for x in workers:
        share = rounded(x).astype(np.float32) * np.float32(1 / len(workers))
        total = rounded(total + rounded(share.astype(np.float64)))
    return total


@both_kernels
@pytest.mark.parametrize("count", [1, 2, 3, 5])
@pytest.mark.parametrize(
    ("method", "rounded"), [(BF16(), bf16), (FP16(), fp16)], ids=["bf16", "fp16"]
)
def test_the_mean_of_casts_equals_the_reference_bit_for_bit(
    method: BF16 | FP16, rounded: Callable[[Array], Array], count: int
) -> None:
    gradients = [heavy_tailed(seed=worker) for worker in range(count)]
    mean = stepped(method, gradients)
    assert mean.dtype == torch.float32
    expected = mean_of_casts([x.double().numpy() for x in gradients], rounded)
    np.testing.assert_array_equal(mean.double().numpy(), expected)


@both_kernels
@pytest.mark.parametrize("count", [2, 3, 5, 7])
@pytest.mark.parametrize(
    ("method", "most", "step"),
    [(BF16(), 3.3895313892515355e38, 2.0**-8), (FP16(), 65504, 2.0**-11)],
)
def test_equal_gradients_at_the_end_of_the_range_do_not_become_infinite(
    method: BF16 | FP16, most: float, step: float, count: int
) -> None:
    """65504 / 3 rounds up, and three of them are 65520: past the range but for the saturation."""
    x = torch.tensor([most, -most, 3.4028234e38, -3.4028234e38])
    sent = dense(method.cast(Batch(("x",), [x]), context()), 4)
    assert sent.tolist() == [most, -most, most, -most]
    mean = stepped(method, [x] * count)
    assert bool(mean.isfinite().all())
    # N + 1 roundings.
    assert bool(((mean.double().abs() - most).abs() <= most * (count + 1) * step).all())


# Natural compression, also at the ends of float32.


def natural(x: Array, random: Array) -> Array:
    """The definition, in float64. random: u32, below 2^23.

    e = floor(log2 |x|);  |C(x)| = 2^(e+1) with probability |x| / 2^e - 1, else 2^e
    """
    _, exponent = np.frexp(np.abs(x))
    low = np.ldexp(1.0, exponent - 1)
    up = random / 2.0**23 >= 1 - (np.abs(x) / low - 1)
    return np.sign(x) * np.where(up, 2 * low, low)


def sent_naturally(x: Tensor, step: int = 0) -> Tensor:
    return dense(encoded(Natural(), x, context(step)))


@both_kernels
def test_natural_values_equal_the_reference_bit_for_bit() -> None:
    """No rounding stands between them: |x| / 2^e - 1 is m / 2^23, which float64 holds exactly."""
    x = heavy_tailed()
    random = hashed_bits(np.arange(x.numel()), context().key(shared=False)) >> np.uint32(9)
    expected = natural(x.double().numpy(), random)
    np.testing.assert_array_equal(sent_naturally(x).double().numpy(), expected)


@both_kernels
def test_natural_powers_of_two_zeros_and_signs_come_back_as_they_were() -> None:
    powers = torch.tensor([2.0**e for e in range(-126, 128)])
    x = torch.cat([powers, -powers, torch.tensor([0.0, -0.0])])
    assert torch.equal(sent_naturally(x), x)
    assert torch.equal(sent_naturally(x).signbit(), x.signbit())


@both_kernels
def test_natural_values_below_the_normal_range_have_the_right_mean() -> None:
    """A coin of probability p scatters by at most 1 / 2: six standard deviations of 2000 draws."""
    x = torch.tensor([2.0**-127, -(2.0**-128), 1e-45, 2.0**-126 * 0.75]).repeat_interleave(2000)
    found = (sent_naturally(x).double() * 2.0**126).view(4, 2000)
    assert set(found.abs().unique().tolist()) <= {0.0, 1.0}
    off = found.mean(1) - x[::2000].double() * 2.0**126
    assert float(off.abs().max()) <= 6 / (2 * math.sqrt(2000))


@both_kernels
def test_natural_values_above_the_largest_power_saturate_and_infinities_stay() -> None:
    x = torch.tensor([3.4e38, -3.4e38, 1.8e38, torch.inf, -torch.inf])
    most = 2.0**127
    for step in range(20):
        assert sent_naturally(x, step).tolist() == [most, -most, most, torch.inf, -torch.inf]


# TernGrad: its equations, and what clipping and a shared scale do.


def ternary(g: Array, clip: float | None, random: Array) -> tuple[Array, Array, float]:
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
def test_ternary_values_equal_the_equations_except_on_a_steps_edge(clip: float | None) -> None:
    """They may differ where the drawn number is within float32's rounding of the probability: s,
    1 / s and the product, 2^-22."""
    x, key = heavy_tailed(), context().key(shared=False)
    random = hashed_uniform(np.arange(len(x)), key)
    sent, p, s = ternary(x.double().numpy(), clip, random)
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
def test_ternary_equal_values_and_single_ones_are_not_clipped_to_nothing() -> None:
    """Their deviation from their mean is 0; from 0 it is not."""
    for x in (torch.full((9,), 0.3), torch.tensor([-2.0]), torch.tensor(5.0), torch.zeros(7)):
        assert torch.equal(dense(encoded(TernGrad(), x)), x.view(-1))
    huge = encoded(TernGrad(), torch.full((99,), 3e38))
    assert bool(dense(huge).isfinite().all())


@both_kernels
def test_a_shared_ternary_scale_is_the_largest_of_the_workers() -> None:
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


# The quantizer whose scale never falls.


@pytest.mark.parametrize("bits", [3, 4, 8, 12])
def test_a_later_running_step_uses_the_largest_magnitude_so_far(bits: int) -> None:
    """(round(x / s)) s with s = m / Q, halves to even, in float64."""
    method = RunningUniform(bits)
    largest, own = 0.0, method
    for step, scale in enumerate((0.1, 1.0, 0.3, 0.001)):
        x = scale * heavy_tailed(5003, seed=step)
        outcome = run(own, x, set_up=step > 0)
        own, largest = outcome.method, max(largest, float(x.abs().max()))
        assert float(own.states(0)["largest"].flat) == largest
        grid = largest / (2 ** (bits - 1) - 1)
        places = x.double().numpy() / grid
        sent = dense(outcome.own).double().numpy()
        clear = (
            np.abs(places - np.floor(places) - 0.5) > 1e-4
        )  # float32 may round a half either way
        assert clear.mean() > 0.99
        np.testing.assert_allclose(sent[clear], (np.rint(places) * grid)[clear], rtol=1e-5)
    assert not sent.any() or bits > 8  # the last step is far below half of a grid step


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_the_first_running_step_sends_what_uniform_sends(rounding: str) -> None:
    x = heavy_tailed(5003)
    own, plain = (dense(run(method(6, rounding), x).own) for method in (RunningUniform, Uniform))
    assert torch.equal(own, plain)
