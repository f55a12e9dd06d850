"""Samples, order statistics, counts, moments and sums, against numpy and against each other."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numeric import (
    batch,
    both_kernels,
    heavy_tailed,
    kinds,
    same_but_for_nan,
    scratch,
    threads,
    without_c,
)
from torch import Tensor

from dgc_repro.kernel import sums, thresholds
from dgc_repro.kernel.batch import Batch

LENGTHS = (0, 1, 5, 511, 4096, 4097, 10_000, 123_457)


def with_zeros(size: int, seed: int) -> Tensor:
    x = heavy_tailed(size, seed)
    x[3:7] = 0.0
    x[2:3] = 1e-42
    return x


def several(seed: int = 0) -> Batch:
    return Batch(tuple(map(str, LENGTHS)), [with_zeros(size, seed) for size in LENGTHS])


@pytest.mark.parametrize("count", [1, 2])
def test_both_kernels_give_the_same_bits_whatever_the_threads(count: int) -> None:
    batch = several(1)
    keys = np.arange(len(LENGTHS), dtype=np.int32) * 7919 - 99
    m = tuple([size // 5 if size > 10 else size for size in LENGTHS])

    def results() -> list[list[float]]:
        found = []
        for above in (0.0, 0.75):
            limits, active = np.full(len(batch), above), np.arange(len(batch)) != 5
            seen = thresholds.moments(
                batch, scratch, limits, squares=True, logs=True, active=active
            )
            found += [getattr(seen, field).tolist() for field in seen.__slots__]
        samples = thresholds.samples(batch, m, keys, scratch)
        return found + [one.tolist() for one in samples.tensors]

    with threads(count):
        in_c = results()
    with without_c():
        batch = several(1)
        assert in_c == results()


@pytest.mark.parametrize(
    ("n", "k", "share", "size"),
    [
        (44_549_160, 445_492, 0.01, 445_492),  # the share
        (1_000_000, 1_000, 0.01, 64_000),  # 64 above the threshold
        (10_000, 1_000, 0.01, 640),
        (10_000, 5_000, 0.01, 512),  # some hundred
        (1_000, 100, 0.01, 1_000),  # not worth sampling
        (10_000, 10, 0.01, 10_000),
        (0, 0, 0.01, 0),
    ],
)
def test_a_sample_is_large_enough_for_a_threshold(n: int, k: int, share: float, size: int) -> None:
    assert thresholds.sample_size(n, k, share) == size


def test_magnitudes_and_their_bits() -> None:
    values = np.array([0.0, 1e-45, 0.1, 3e38, math.inf, 1e300])
    rounded = np.array([0.0, 1e-45, 0.1, 3e38, math.inf, math.inf], dtype=np.float32)
    keys = thresholds.keys_of(values)
    np.testing.assert_array_equal(thresholds.magnitudes_of(keys), rounded)
    np.testing.assert_array_equal(thresholds.rounded(values), rounded)
    after = np.nextafter(rounded[:4], np.float32(math.inf))
    np.testing.assert_array_equal(thresholds.magnitudes_of(keys[:4] + 1), after)
    assert math.isnan(thresholds.magnitudes_of(keys[4:5] + 1)[0])
    assert (
        thresholds.keys_of(np.array([-0.0, -2.0])) == thresholds.keys_of(np.array([0.0, 2.0]))
    ).all()


# Sums in a fixed order.

SIZES = (1, 2, 511, 512, 513, 4096, 4097, 30_000)


@both_kernels
@pytest.mark.parametrize("columns", [1, 2, 27, 128, 200, 300, 700])
@pytest.mark.parametrize("rows", [1, 3, 64, 600])
def test_columns_are_summed_each_by_itself(rows: int, columns: int) -> None:
    x = heavy_tailed(rows * columns, rows).view(rows, columns)
    x[:, 0] = x[:, 0].abs()
    above, below, negative = sums.parts(batch(x), (columns,))
    elsewhere = sums.parts_in_any_order(x)
    assert bool(((elsewhere[0] - above).abs() <= 2 * rows * 2.0**-53 * above).all())
    assert bool(((elsewhere[1] - below).abs() <= 2 * rows * 2.0**-53 * below.abs()).all())
    assert torch.equal(elsewhere[2], negative)
    wide = x.double()
    assert torch.equal(negative, (wide < 0).sum(0).double())
    for found, exact in ((above, wide.clamp(min=0).sum(0)), (below, wide.clamp(max=0).sum(0))):
        assert bool(((found - exact).abs() <= 2 * rows * 2.0**-53 * exact.abs()).all())
    assert float(below[0]) == 0


@pytest.mark.parametrize("size", [*SIZES, 300_000])
def test_c_and_tensors_sum_alike_whatever_the_threads(size: int) -> None:
    def all_sums(x: Tensor) -> list[Tensor]:
        found = [sums.magnitudes(batch(x)), *sums.squares(batch(x)), sums.peaks(batch(x))]
        for columns in (1, 3, 171, 300, 512):
            if size % columns == 0:
                found.append(sums.parts(batch(x), (columns,)))
        return [one.double() for one in found]

    for x in kinds(size):
        ours = all_sums(x)
        for surroundings in (threads(3), without_c()):
            with surroundings:
                assert all(map(same_but_for_nan, ours, all_sums(x)))
