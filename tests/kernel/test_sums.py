"""Sums in a fixed order: right, the same for any number of threads, C and tensors alike."""

from __future__ import annotations

import math

import pytest
import torch
from numeric import both_kernels, heavy_tailed, kinds, same_but_for_nan, three_threads, without_c
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


@pytest.mark.parametrize("size", SIZES)
def test_c_and_tensors_sum_alike(size: int) -> None:
    def all_sums(x: Tensor) -> list[Tensor]:
        found = [sums.magnitudes(batch(x)), *sums.squares(batch(x)), sums.peaks(batch(x))]
        for columns in (1, 3, 171, 512):
            if size % columns == 0:
                found.append(sums.parts(batch(x), (columns,)))
        return [one.double() for one in found]

    for x in kinds(size):
        ours = all_sums(x)
        with without_c():
            assert all(map(same_but_for_nan, ours, all_sums(x)))


def test_the_number_of_threads_changes_no_bit() -> None:
    x = heavy_tailed(300_000)

    def every() -> list[Tensor]:
        own = batch(x)
        parts = [sums.parts(own, (columns,)) for columns in (1, 300)]
        return [sums.magnitudes(own), sums.squares(own)[0], *parts]

    one = every()
    with three_threads():
        assert all(map(torch.equal, one, every()))


@both_kernels
def test_a_batch_has_the_sums_of_its_tensors_and_an_empty_one_0() -> None:
    tensors = [heavy_tailed(size, size) for size in (5, 0, 70_000, 4097)]
    columns = (5, 0, 700, 1)
    every = batch(*tensors)
    (squares, peaks), parts = sums.squares(every), sums.parts(every, columns)
    found = [squares, peaks, sums.peaks(every), sums.magnitudes(every)]
    assert [float(one[1]) for one in found] == [0, 0, 0, 0]
    for i, x in enumerate(tensors):
        own = batch(x)
        alone = [*sums.squares(own), sums.peaks(own), sums.magnitudes(own)]
        assert all(
            torch.equal(one[i : i + 1], other) for one, other in zip(found, alone, strict=True)
        )
        start = sum(columns[:i])
        if columns[i]:
            stretch = parts[:, start : start + columns[i]]
            assert torch.equal(stretch, sums.parts(own, columns[i : i + 1]))
