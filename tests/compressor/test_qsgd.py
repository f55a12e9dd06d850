"""QSGD against its definition in float64, its noise, its sizes packed and Elias-coded."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest
import torch
from laws import same_bits
from quantizing import Array, context, hashed_uniform, heavy_tailed, kernels, kinds
from torch import Tensor

from dgc_repro.compressor.qsgd import QSGD, elias_bits, omega_bits
from dgc_repro.compressor.uniform import Uniform
from dgc_repro.exchange.payload import Codes, num_bytes
from dgc_repro.kernel import native

__all__ = ["kernels"]
SIZE = 5003


def levels_of(payload: Codes) -> Tensor:
    """The signed levels as they travel: i64[n]."""
    ones = torch.ones_like(payload.scales)
    return Codes(payload.layout, ones, payload.packed).dense().long()


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


CASES = [
    QSGD(levels, bucket, norm)
    for levels in (1, 3, 4, 16, 127, 5000)
    for bucket in (None, 64, 512)
    for norm in ("two", "max")
]


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("setting", CASES, ids=str)
def test_levels_equal_the_float64_reference_except_on_the_edge_of_a_step(setting: QSGD) -> None:
    """Where they may differ, by one: the kernel rounds |v| s / ||v|| in float32. Its norm is off by at
    most 2^-22 (squares are summed in steps of 2^-30 of the largest one), and five roundings of 2^-24
    follow: 2^-20 of y in all. A value whose drawn number lies so close to its fraction may fall on
    the other side."""
    x, key = heavy_tailed(1, SIZE), context().key(shared=False)
    payload = setting.encode(x, context())
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
    scales = payload.scales.repeat_interleave(setting.bucket or SIZE)[:SIZE].double().numpy()
    np.testing.assert_allclose(scales, step, rtol=2.0**-21)


@pytest.mark.parametrize("setting", CASES[::3], ids=str)
def test_c_and_tensor_kernels_give_the_same_bits(
    setting: QSGD, monkeypatch: pytest.MonkeyPatch
) -> None:
    for size in (1, 7, 513, SIZE):
        for x in kinds(size):
            if not bool(x.isfinite().all()):
                continue  # the code of a NaN is undefined; that it is not hidden is tested below
            ours = setting.encode(x, context())
            with monkeypatch.context() as patch:
                patch.setattr(native, "library", lambda: None)
                theirs = setting.encode(x, context())
            assert all(map(same_bits, ours.parts, theirs.parts))


@pytest.mark.parametrize("setting", [QSGD(1, 64), QSGD(4, 64), QSGD(16, None), QSGD(3, 64, "max")])
def test_it_is_unbiased_with_the_papers_variance(setting: QSGD) -> None:
    """Lemma 3.1: E Q(v) = v, E ||Q(v) - v||^2 <= min(d / s^2, sqrt(d) / s) ||v||^2 (2-norm). One value
    scatters by half a step at most: six standard deviations of K draws."""
    x, count = heavy_tailed(3, 256), 800
    drawn = torch.stack([setting.encode(x, context(i)).dense() for i in range(count)]).double()
    width = setting.bucket or 256
    buckets = x.double().view(-1, width)
    norms = buckets.norm(dim=1) if setting.norm == "two" else buckets.abs().amax(1)
    step = (norms / setting.levels).repeat_interleave(width)
    off = (drawn.mean(0) - x.double()) / step
    assert float(off.abs().max()) <= 6 / (2 * math.sqrt(count))
    if setting.norm == "two":
        error = (drawn - x.double()).square().view(count, -1, width).sum(2).mean(0)
        bound = min(width / setting.levels**2, math.sqrt(width) / setting.levels)
        assert bool((error <= bound * norms.square() * 1.1).all())  # 1.1: the scatter of 800 draws
        assert bool((error > 0).all()), "nothing was drawn"


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("bucket", [None, 64])
@pytest.mark.parametrize("levels", [1, 7, 127])
def test_huge_tiny_and_zero_buckets_stay_finite(levels: int, bucket: int | None) -> None:
    """3e38 squared, and 64 of them under one root, are beyond float32."""
    for x in (torch.full((200,), 3e38), torch.full((200,), -1e-42), torch.zeros(200)):
        decoded = QSGD(levels, bucket).encode(x, context()).dense()
        assert bool(decoded.isfinite().all())
        assert bool((decoded * x >= 0).all())
        assert bool(decoded.any()) == bool(x.abs().max() > 1)
    zeros = QSGD(levels, bucket).encode(torch.zeros(200), context())
    assert not levels_of(zeros).any()


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("broken", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_is_not_hidden_and_stays_in_its_bucket(broken: float) -> None:
    x = torch.linspace(-1, 1, 200)
    x[60] = broken
    for bucket in (50, None):
        decoded = QSGD(7, bucket).encode(x, context()).dense()
        assert not bool(decoded[60].isfinite())
        assert bool(decoded[100:].isfinite().all()) == (bucket == 50)


@pytest.mark.parametrize(
    ("levels", "bits"), [(1, 2), (2, 3), (3, 3), (4, 4), (7, 4), (8, 5), (127, 8), (128, 9), (32767, 16)]
)  # fmt: skip
def test_a_code_has_the_bits_that_its_levels_need(levels: int, bits: int) -> None:
    setting = QSGD(levels, 512)
    assert setting.bits == bits == math.ceil(math.log2(2 * levels + 1))
    own = setting.encode(torch.ones(1024), context())
    assert num_bytes(own) == 2 * 4 + 1024 * bits // 8
    assert own.num_floats == 1024 * bits / 32
    assert int(levels_of(QSGD(levels, 512, "max").encode(torch.ones(8), context())).min()) >= (
        levels - 1
    )


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
    own = setting.encode(heavy_tailed(5, 1003), context())
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
    source = torch.Generator().manual_seed(0)
    own = QSGD(1, 512).encode(torch.randn(51_200, generator=source), context())
    assert elias_bits(own) < 0.35 * 8 * num_bytes(own)
    assert elias_bits(QSGD(1).encode(torch.zeros(0), context())) == 0
    assert elias_bits(QSGD(1).encode(torch.zeros(9), context())) == 32


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"levels": 0}, "levels: a whole number from 1 to 32767, got 0"),
        ({"levels": 32768}, "levels: a whole number from 1 to 32767, got 32768"),
        ({"levels": 7.0}, "levels: a whole number from 1 to 32767, got 7.0"),
        ({"levels": True}, "levels: a whole number from 1 to 32767, got True"),
        ({"bucket": 0}, "bucket: a whole number from 1, or null"),
        ({"bucket": "512"}, "bucket: a whole number from 1, or null"),
        ({"norm": "2"}, "norm: one of two, max, got '2'"),
    ],
)
def test_a_wrong_setting_is_named_with_its_range(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        QSGD(**settings)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("method", [QSGD(7, None), QSGD(7, 64, "max"), Uniform(4, "stochastic")])
def test_a_grid_below_the_normal_range_sends_zeros(method: QSGD | Uniform) -> None:
    """All have 7 levels: 7 x 2^-126 of a norm is the least that is sent."""
    x = torch.zeros(64)
    for factor, is_sent in ((0.99, False), (1.01, True)):
        x[5] = -7 * 2.0**-126 * factor
        assert bool(method.encode(x, context()).dense()[5] != 0) == is_sent
