"""Float64 sums of each tensor of a batch, in an order that no number of threads and no vector unit changes.

A block of 4096 values is added up in 512 lanes (value i into lane i mod 512, in order of i), the lanes
are folded by halves, and so are the blocks. What is not finite stays so. That is for the CPU, where C
and tensor operations must agree; on other devices the order is the device's own. An empty tensor's sum is 0.

Letters: n = values, B = blocks.
"""

from __future__ import annotations

import ctypes
from itertools import accumulate

import torch
from torch import Tensor
from torch.nn.functional import pad

from dgc_repro.kernel import native
from dgc_repro.kernel.batch import Batch, integers
from dgc_repro.kernel.cached import cached

BLOCK, LANES = 4096, 512
WIDE = 256  # a matrix of fewer columns is seen as one of nearly so many, and these are folded
TALL = 256  # rows of a matrix that are added up in order

_sums = native.Function("dgc_sums_all")
_peaks = native.Function("dgc_peaks_all")
_column_parts = native.Function("dgc_column_parts_all")


def magnitudes(x: Batch) -> Tensor:
    """sum |x| of each tensor: f64[tensors]."""
    return _summed(x, squared=False)[0]


def squares(x: Batch) -> tuple[Tensor, Tensor]:
    """sum x^2 of each tensor (f64[tensors]), and `peaks`."""
    return _summed(x, squared=True)


def _summed(x: Batch, *, squared: bool) -> tuple[Tensor, Tensor]:
    if x.on_gpu:
        from dgc_repro.kernel.gpu import dense

        return dense.summed(x, dense.SQUARES if squared else dense.MAGNITUDES)
    if not x.native:
        found = torch.stack([_summed_one(tensor.view(-1), squared) for tensor in x.tensors])
        return found, peaks(x) if squared else found
    found, largest = torch.empty(len(x), dtype=torch.float64), torch.empty(len(x))
    at, size = _blocks(x.sizes)
    blocks = torch.empty(size, dtype=torch.float64)
    _sums(
        len(x), x.lengths, x.pointers, squared, at, blocks.data_ptr(), found.data_ptr(),
        largest.data_ptr(),
    )  # fmt: skip
    return found, largest


def _summed_one(x: Tensor, squared: bool) -> Tensor:
    """f64[]."""
    if x.device.type != "cpu" or x.numel() == 0:
        return (x.double().square() if squared else x.abs().double()).sum()
    return folded(_lanes(x if squared else x.abs(), squared=squared))


def peaks(x: Batch) -> Tensor:
    """max|x| of each tensor (NaN where there is one): f32[tensors]. That of an empty tensor is 0."""
    if x.on_gpu:
        from dgc_repro.kernel.gpu import dense

        return dense.summed(x, dense.PEAKS)[1]
    found = torch.zeros(len(x), device=x.device)
    if x.native:
        _peaks(len(x), x.lengths, x.pointers, found.data_ptr())
        return found
    for i, tensor in enumerate(x.tensors):
        if tensor.numel():
            torch.amax(tensor.view(-1).abs(), 0, out=found[i])
    return found


def parts(x: Batch, columns: tuple[int, ...]) -> Tensor:
    """Of every column of every tensor, one tensor's after another's: the sum of its values that are not
    negative (NaN among them), the sum of the negative ones, and how many these are: f64[3, all columns]. A
    tensor has n = rows x columns values; an empty one has no column."""
    if x.on_gpu:
        from dgc_repro.kernel.gpu import dense

        return dense.column_parts(x, columns)
    if not x.native:
        shaped = zip(x.tensors, columns, strict=True)
        found = [_parts_of(tensor.view(-1), count) for tensor, count in shaped if count]
        return (
            torch.cat(found, 1)
            if found
            else torch.zeros(3, 0, dtype=torch.float64, device=x.device)
        )
    at, size = _blocks_of_columns(x.sizes, columns)
    starts, total = _starts(columns)
    every = torch.empty(3, total, dtype=torch.float64)
    blocks = torch.empty(size, dtype=torch.float64)
    _column_parts(
        len(x), x.lengths, x.pointers, integers(columns), at, blocks.data_ptr(), starts,
        every.data_ptr(),
    )  # fmt: skip
    return every


def _joined(columns: int) -> int:
    """Rows side by side, so that a row is long enough."""
    return max(1, WIDE // columns)


def _parts_of(x: Tensor, columns: int) -> Tensor:
    """`parts` of one tensor, with tensor operations. x: f32[n], not empty -> f64[3, columns]."""
    if x.device.type != "cpu":
        return parts_in_any_order(x.view(-1, columns))
    joined = _joined(columns)
    wide = joined * columns
    by_column = folded(_blocks_of_rows(x, wide, -(-x.numel() // (wide * TALL))))
    return folded(by_column.view(3, joined, columns).transpose(0, 1))


Starts = tuple[ctypes.Array[ctypes.c_int64], int]
"""Where the stretches of tensors begin in a buffer, for a C function, and the size of the buffer."""


@cached()
def _starts(sizes: tuple[int, ...]) -> Starts:
    ends = tuple(accumulate(sizes))
    return integers((0, *ends[:-1])), ends[-1]


@cached()
def _blocks(sizes: tuple[int, ...]) -> Starts:
    """Of the sums of blocks."""
    return _starts(tuple(-(-n // BLOCK) for n in sizes))


@cached()
def _blocks_of_columns(sizes: tuple[int, ...], columns: tuple[int, ...]) -> Starts:
    """Of the sums of blocks of rows that c/sums.c's column_parts keeps."""
    wide = [_joined(count) * count if count else 1 for count in columns]
    return _starts(tuple(-(-n // (w * TALL)) * 3 * w for n, w in zip(sizes, wide, strict=True)))


def parts_in_any_order(matrix: Tensor) -> Tensor:
    """`parts` as the device sums. matrix: f32[rows, columns] -> f64[3, columns]."""
    negative = matrix < 0
    kinds = (matrix.masked_fill(negative, 0.0), matrix.masked_fill(~negative, 0.0), negative)
    return torch.stack([kind.sum(0, dtype=torch.float64) for kind in kinds])


def folded(sums: Tensor) -> Tensor:
    """The sum along the first dimension, by halves: the same order everywhere. Not empty."""
    while sums.shape[0] > 1:
        half = -(-sums.shape[0] // 2)
        rest = sums[half:]
        sums = torch.cat([sums[: rest.shape[0]] + rest, sums[rest.shape[0] : half]])
    return sums[0]


def _lanes(x: Tensor, *, squared: bool = False) -> Tensor:
    """The sum of every block: f64[B]."""
    filled = pad(x, (0, -x.numel() % BLOCK)).view(-1, BLOCK // LANES, LANES)
    total = torch.zeros(filled.shape[0], LANES, dtype=torch.float64, device=x.device)
    for step in range(BLOCK // LANES):
        value = filled[:, step].double()
        total += value * value if squared else value
    return folded(total.t())


def _blocks_of_rows(x: Tensor, columns: int, num_blocks: int) -> Tensor:
    """What c/sums.c's column_parts gives: f64[num_blocks, 3, columns]."""
    tall = min(TALL, -(-x.numel() // columns))
    filled = pad(x, (0, num_blocks * tall * columns - x.numel())).view(num_blocks, tall, columns)
    sums = torch.zeros(num_blocks, 3, columns, dtype=torch.float64, device=x.device)
    for row in range(tall):
        values = filled[:, row]
        negative = values < 0
        sums[:, 0] += values.masked_fill(negative, 0.0)
        sums[:, 1] += values.masked_fill(~negative, 0.0)
        sums[:, 2] += negative
    return sums
