"""Sums in a fixed order: right, the same for any number of threads, C and tensors alike."""

from __future__ import annotations

import math

import pytest
import torch
from numeric import both_kernels, heavy_tailed
from torch import Tensor

from dgc_repro.kernel import sums
from dgc_repro.kernel.batch import Batch

SIZES = (1, 2, 511, 512, 513, 4096, 4097, 30_000)


def batch(*tensors: Tensor) -> Batch:
    return Batch(tuple(map(str, range(len(tensors)))), tensors)


@both_kernels
@pytest.mark.parametrize("size", SIZES)
def test_sums_are_those_of_exact_arithmetic(size: int) -> None:
    """Float64 rounds 2^-53 a step; a sum of n terms of one sign is off by n 2^-53 of itself at most."""
    x = heavy_tailed(size, size)
    close = size * 2.0**-53 + 2.0**-52
    exact = math.fsum(x.double().abs().tolist())
    assert abs(float(sums.magnitudes(batch(x))) - exact) <= close * exact
    exact = math.fsum(x.double().square().tolist())
    squares, peak = sums.squares(batch(x))
    assert abs(float(squares) - exact) <= close * exact
    assert float(peak) == float(sums.peaks(batch(x))) == float(x.abs().max())


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
