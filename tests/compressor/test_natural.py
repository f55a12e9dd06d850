"""Natural compression against its definition, and at the ends of float32."""

from __future__ import annotations

import math

import numpy as np
import torch
from numeric import Array, both_kernels, context, dense, encoded, hashed_bits, heavy_tailed
from torch import Tensor

from dgc_repro import Natural


def reference(x: Array, random: Array) -> Array:
    """The definition, in float64. random: u32, below 2^23.

    e = floor(log2 |x|);  |C(x)| = 2^(e+1) with probability |x| / 2^e - 1, else 2^e
    """
    _, exponent = np.frexp(np.abs(x))
    low = np.ldexp(1.0, exponent - 1)
    up = random / 2.0**23 >= 1 - (np.abs(x) / low - 1)
    return np.sign(x) * np.where(up, 2 * low, low)


def sent(x: Tensor, step: int = 0) -> Tensor:
    return dense(encoded(Natural(), x, context(step)))


@both_kernels
def test_values_equal_the_float64_reference_bit_for_bit() -> None:
    """No rounding stands between them: |x| / 2^e - 1 is m / 2^23, which float64 holds exactly."""
    x = heavy_tailed()
    random = hashed_bits(np.arange(x.numel()), context().key(shared=False)) >> np.uint32(9)
    expected = reference(x.double().numpy(), random)
    np.testing.assert_array_equal(sent(x).double().numpy(), expected)


@both_kernels
def test_a_power_of_two_a_zero_and_its_sign_come_back_as_they_were() -> None:
    powers = torch.tensor([2.0**e for e in range(-126, 128)])
    x = torch.cat([powers, -powers, torch.tensor([0.0, -0.0])])
    assert torch.equal(sent(x), x)
    assert torch.equal(sent(x).signbit(), x.signbit())


@both_kernels
def test_below_the_normal_range_it_is_0_or_the_smallest_power_with_the_right_mean() -> None:
    """A coin of probability p scatters by at most 1 / 2: six standard deviations of 2000 draws."""
    x = torch.tensor([2.0**-127, -(2.0**-128), 1e-45, 2.0**-126 * 0.75]).repeat_interleave(2000)
    found = (sent(x).double() * 2.0**126).view(4, 2000)
    assert set(found.abs().unique().tolist()) <= {0.0, 1.0}
    off = found.mean(1) - x[::2000].double() * 2.0**126
    assert float(off.abs().max()) <= 6 / (2 * math.sqrt(2000))


@both_kernels
def test_above_the_largest_power_it_saturates_and_infinities_stay() -> None:
    x = torch.tensor([3.4e38, -3.4e38, 1.8e38, torch.inf, -torch.inf])
    most = 2.0**127
    for step in range(20):
        assert sent(x, step).tolist() == [most, -most, most, torch.inf, -torch.inf]
