"""QSGD against its definition in float64, its noise, its size Elias-coded."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numeric import (
    Array,
    both_kernels,
    context,
    dense,
    encoded,
    gaussian,
    hashed_uniform,
    heavy_tailed,
)
from torch import Tensor

from dgc_repro import QSGD, Uniform
from dgc_repro.compressor.qsgd import elias_bits, omega_bits
from dgc_repro.payload import Codes

SIZE = 5003


def levels_of(own: Codes) -> Tensor:
    """The signed levels as they travel: i64[n]."""
    levels: Tensor = own.levels()[0]
    return levels


def reference(x: Array, setting: QSGD, key: int) -> tuple[Array, Array, Array]:
    """Section 3.1 bucket by bucket: (signed level, |v| s / ||v||, ||v|| / s) of every value.

    l = floor(|v| s / ||v||);  xi s = l + 1 with probability |v| s / ||v|| - l, else l

    The drawn number decides between floor(y) and floor(y) + 1 of the signed y, as the kernel does:
    the same distribution.
    """
    width = setting.bucket or len(x)
    level, ratio, step = np.zeros(len(x)), np.zeros(len(x)), np.zeros(len(x))
    for start in range(0, len(x), width):
        v = x[start : start + width]
        norm = np.sqrt((v**2).sum()) if setting.norm == "two" else np.abs(v).max()
        y = v * setting.levels / norm
        up = hashed_uniform(np.arange(start, start + len(v)), key) < y - np.floor(y)
        level[start : start + width] = np.floor(y) + up
        ratio[start : start + width], step[start : start + width] = y, norm / setting.levels
    return level, ratio, step


@both_kernels
@pytest.mark.parametrize("levels", [1, 3, 4, 16, 127, 5000])
@pytest.mark.parametrize("bucket", [None, 64, 512])
@pytest.mark.parametrize("norm", ["two", "max"])
def test_levels_equal_the_float64_reference(levels: int, bucket: int | None, norm: str) -> None:
    """Where they may differ, by one: the kernel rounds |v| s / ||v|| in float32. Its norm is off by at
    most 2^-22 (squares are summed in steps of 2^-30 of the largest one), and five roundings of 2^-24
    follow: 2^-20 of y in all. A value whose drawn number lies so close to its fraction may fall on
    the other side."""
    setting = QSGD(levels, bucket, norm)
    x, key = heavy_tailed(SIZE, 1), context().key(shared=False)
    payload = encoded(setting, x)
    level, y, step = reference(x.double().numpy(), setting, key)
    fraction = y - np.floor(y)
    margin = np.abs(y) * 2.0**-20
    change = np.abs(fraction - hashed_uniform(np.arange(SIZE), key))
    close = np.minimum(change, np.minimum(fraction, 1 - fraction)) <= margin
    found = levels_of(payload).numpy()
    np.testing.assert_array_equal(found[~close], level[~close])
    assert np.abs(found - level).max() <= 1
    # A bucket's largest value lies on a step under the max-norm; others come so close by chance: the
    # drawn number and both ends, each within the margin.
    buckets = SIZE / (setting.bucket or SIZE) + 1
    assert close.sum() <= buckets + 10 + 6 * margin.sum()
    scales = payload.layout.view(payload.buffer, 0, 0)
    scales = scales.repeat_interleave(setting.bucket or SIZE)[:SIZE].double().numpy()
    np.testing.assert_allclose(scales, step, rtol=2.0**-21)


@pytest.mark.parametrize("levels", [1, 3, 4, 7, 128, 32767])
def test_the_largest_value_of_a_bucket_has_the_last_level_but_for_its_rounding(levels: int) -> None:
    own = encoded(QSGD(levels, 512, "max"), torch.ones(8))
    assert int(levels_of(own).min()) >= levels - 1


def omega(number: int) -> str:
    """The recursive Elias code, written out: 0, in front of it the number in binary, in front of that
    its length less one, and so on until that is 1."""
    code = "0"
    while number > 1:
        code = f"{number:b}" + code
        number = len(f"{number:b}") - 1
    return code


def test_lengths_are_those_of_elias_codes_written_out() -> None:
    assert [omega(k) for k in (1, 2, 3, 4, 8, 16)] == [
        "0", "100", "110", "101000", "1110000", "10100100000",
    ]  # fmt: skip
    numbers = [*range(1, 300), 2**15 - 1, 2**15, 2**16 - 1, 2**16, 10**6, 2**31]
    assert omega_bits(torch.tensor(numbers)).tolist() == [len(omega(k)) for k in numbers]


@pytest.mark.parametrize("setting", [QSGD(1, 64), QSGD(7, 512), QSGD(3, None), QSGD(127, 100)])
def test_the_coded_size_is_that_of_the_code_written_out(setting: QSGD) -> None:
    own = encoded(setting, heavy_tailed(1003, 5))
    sparse, dense = "", ""
    for bucket in levels_of(own).split(setting.bucket or 1003):
        sparse, dense = sparse + "x" * 32, dense + "x" * 32
        last = -1
        for place, level in enumerate(bucket.tolist()):
            sign = "1" if level < 0 else "0"
            dense += sign + omega(abs(level) + 1)
            if level:
                sparse += omega(place - last) + sign + omega(abs(level))
                last = place
    assert elias_bits(own) == len(sparse)
    assert elias_bits(own, dense=True) == len(dense)


def test_few_levels_of_the_two_norm_take_far_less_than_their_packed_bits() -> None:
    """Theorem 3.2: s = 1 sends about sqrt(d) values of d; packed they are 2 bits each."""
    own = encoded(QSGD(1, 512), gaussian(51_200))
    assert elias_bits(own) < 0.35 * 8 * own.num_bytes
    assert elias_bits(encoded(QSGD(1), torch.zeros(0))) == 0
    assert elias_bits(encoded(QSGD(1), torch.zeros(9))) == 32


@both_kernels
@pytest.mark.parametrize("method", [QSGD(7, None), QSGD(7, 64, "max"), Uniform(4, "stochastic")])
def test_a_grid_below_the_normal_range_sends_zeros(method: QSGD | Uniform) -> None:
    """All have 7 levels: 7 x 2^-126 of a norm is the least that is sent."""
    x = torch.zeros(64)
    for factor, is_sent in ((0.99, False), (1.01, True)):
        x[5] = -7 * 2.0**-126 * factor
        assert bool(dense(encoded(method, x))[5] != 0) == is_sent
