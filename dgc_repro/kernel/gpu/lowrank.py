"""Thin products with all matrices of a batch, and orthonormal rows (c/lowrank.c; letters: kernel/lowrank.py).

A product reads or writes each large matrix once, where it lies. It is a sum of the same float32 terms as in
C, fused and in another order: both are within (terms + 1) 2^-24 times the sum of the terms' magnitudes.
Orthogonal rows are computed in float64 as in C, and rounded once. No sum depends on which program comes
first, so that GPUs of one kind agree bit for bit.

Table of the matrices, one row each (i64): rows, columns, where p and q begin, the bits of columns - 1."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import triton.language as tl
from torch import Tensor
from triton import jit, next_power_of_2

from dgc_repro.kernel.batch import Batch, starts
from dgc_repro.kernel.cached import cached
from dgc_repro.kernel.counter import Numbers as Keys
from dgc_repro.kernel.gpu.launch import (
    Numbers,
    fixed,
    floats,
    hashed,
    kernel,
    launch,
    magnitude,
    tile,
    tiles,
)
from dgc_repro.kernel.lowrank import Matrices

ROWS, COLS = 32, 64  # of a tile
WIDTH = 512
LEAST = 16  # the smallest side of tl.dot
TURN = tl.constexpr(6.283185307179586)


def directions(last: Batch, of: Matrices, keys: Keys, out: Tensor) -> None:
    """As in kernel/lowrank.py. A program handles one row of one q."""
    launch(out, _directions, (of.r,) * len(last), *_table(of), last, keys, out, of.r, WIDTH=WIDTH)


@kernel
def _directions(owner, first, table, num, last, keys, out, r, WIDTH: tl.constexpr):
    s, row = tile(owner, first)
    cols = tl.load(table + num + s)
    start, size, key = row * cols, r * cols, tl.load(keys + s).to(tl.uint32)
    q, out = floats(last, s) + start, out + tl.load(table + 3 * num + s) + start
    largest = tl.zeros((WIDTH,), tl.int32)
    for at in range(0, cols, WIDTH):
        i = at + tl.arange(0, WIDTH)
        largest = tl.maximum(largest, magnitude(tl.load(q + i, mask=i < cols, other=0.0)))
    peak = tl.max(largest, 0)
    lost = (peak == 0) | (peak >= 0x7F800000)
    if lost:
        largest = tl.zeros((WIDTH,), tl.int32)
        for at in range(0, cols, WIDTH):
            i = at + tl.arange(0, WIDTH)
            drawn = magnitude(_normal(start + i, size, key))
            largest = tl.maximum(largest, tl.where(i < cols, drawn, 0))
        peak = tl.max(largest, 0)
    bits = peak.to(tl.float32, bitcast=True).to(tl.float64).to(tl.int64, bitcast=True)
    exponent = ((bits >> 52) & 0x7FF) - 1022 + tl.load(table + 4 * num + s)
    factor = ((1023 - exponent) << 52).to(tl.float64, bitcast=True)
    for at in range(0, cols, WIDTH):
        i = at + tl.arange(0, WIDTH)
        value = tl.load(q + i, mask=i < cols, other=0.0)
        if lost:
            value = _normal(start + i, size, key)
        tl.store(out + i, (value.to(tl.float64) * factor).to(tl.float32), mask=i < cols)


@jit
def _normal(i, size, key):
    """`normals` of kernel/lowrank.py."""
    radius, angle = _uniform(i, key), _uniform(size + i, key)
    return (tl.sqrt(-2.0 * tl.log(radius)) * tl.cos(angle * TURN)).to(tl.float32)


@jit
def _uniform(i, key):
    """`counter.uniform` of kernel/counter.py, as f64."""
    upper = hashed(i.to(tl.uint32), key) >> 9
    return (upper.to(tl.float64) + 0.5) * 1.1920928955078125e-07


def times(m: Batch, of: Matrices, q: Tensor, p: Tensor) -> None:
    """p = q m^T."""
    rows = tuple([rows for rows, _ in of.sizes])
    launch(p, _times, tiles(rows, ROWS), *_table(of), m, q, p, of.r, **_tile(of))


@kernel
def _times(
    owner, first, table, num, m, q, p, r, R: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr
):
    s, t = tile(owner, first)
    rows, cols = tl.load(table + s), tl.load(table + num + s)
    m, q = floats(m, s), q + tl.load(table + 3 * num + s)
    i = t * ROWS + tl.arange(0, ROWS)
    total = tl.zeros((R, ROWS), tl.float32)
    for at in range(0, cols, COLS):
        j = at + tl.arange(0, COLS)
        own = _block(m, i, rows, j, cols)
        total = tl.dot(_factor(q, r, j, cols, R), tl.trans(own), total, input_precision="ieee")
    _put_factor(p + tl.load(table + 2 * num + s), total, r, i, rows, R)


def transposed_times(m: Batch, of: Matrices, p: Tensor, q: Tensor) -> None:
    """q = p m."""
    cols = tuple([cols for _, cols in of.sizes])
    launch(q, _transposed_times, tiles(cols, COLS), *_table(of), m, p, q, of.r, **_tile(of))


@kernel
def _transposed_times(
    owner, first, table, num, m, p, q, r, R: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr
):
    s, t = tile(owner, first)
    rows, cols = tl.load(table + s), tl.load(table + num + s)
    m, p = floats(m, s), p + tl.load(table + 2 * num + s)
    j = t * COLS + tl.arange(0, COLS)
    total = tl.zeros((R, COLS), tl.float32)
    for at in range(0, rows, ROWS):
        i = at + tl.arange(0, ROWS)
        own = _block(m, i, rows, j, cols)
        total = tl.dot(_factor(p, r, i, rows, R), own, total, input_precision="ieee")
    _put_factor(q + tl.load(table + 3 * num + s), total, r, j, cols, R)


def outer(x: Batch, of: Matrices, p: Tensor, q: Tensor, weight: float, *, accumulate: bool) -> None:
    """Every x = or += weight * p^T q: the terms of a value are added up first."""
    counts = tuple([-(-rows // ROWS) * -(-cols // COLS) for rows, cols in of.sizes])
    launch(
        p, _outer, counts, *_table(of), x, p, q, of.r, weight, ACCUMULATE=accumulate, **_tile(of)
    )


@kernel
def _outer(
    owner, first, table, num, x, p, q, r, weight, ACCUMULATE: tl.constexpr, R: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    s, t = tile(owner, first)
    rows, cols = tl.load(table + s), tl.load(table + num + s)
    across = tl.cdiv(cols, COLS)
    i, j = t // across * ROWS + tl.arange(0, ROWS), t % across * COLS + tl.arange(0, COLS)
    ours = _factor(p + tl.load(table + 2 * num + s), r, i, rows, R)
    theirs = _factor(q + tl.load(table + 3 * num + s), r, j, cols, R)
    value = tl.dot(tl.trans(ours), theirs, input_precision="ieee") * weight
    if ACCUMULATE:
        value = _block(floats(x, s), i, rows, j, cols) + value
    there = (i[:, None] < rows) & (j[None, :] < cols)
    tl.store(floats(x, s) + i[:, None] * cols + j[None, :], value, mask=there)


@jit
def _block(m, i, rows, j, cols):
    """Rows i and columns j of a matrix; zeros outside."""
    there = (i[:, None] < rows) & (j[None, :] < cols)
    return tl.load(m + i[:, None] * cols + j[None, :], mask=there, other=0.0)


@jit
def _factor(p, r, i, rows, R: tl.constexpr):
    """f32[R, i] of a factor of r rows; zeros outside."""
    k = tl.arange(0, R)[:, None]
    return tl.load(p + k * rows + i[None, :], mask=(k < r) & (i[None, :] < rows), other=0.0)


@jit
def _put_factor(p, value, r, i, rows, R: tl.constexpr):
    k = tl.arange(0, R)[:, None]
    tl.store(p + k * rows + i[None, :], value, mask=(k < r) & (i[None, :] < rows))


def orthonormal(p: Tensor, of: Matrices, dependent: float, work: Tensor, out: Tensor) -> None:
    """As in kernel/lowrank.py. A program handles one matrix."""
    r = next_power_of_2(of.r)
    launch(
        p, _orthonormal, (1,) * len(of.sizes), *_table(of), p, dependent, work, out, of.r, R=r,
        WIDTH=WIDTH * 4 // r if r > 4 else WIDTH,
    )  # fmt: skip


@kernel
def _orthonormal(
    owner, first, table, num, p, dependent, work, out, r, R: tl.constexpr, WIDTH: tl.constexpr
):
    s, _ = tile(owner, first)
    rows, start = tl.load(table + s), tl.load(table + 2 * num + s)
    p, work, out = p + start, work + start, out + start
    for at in range(0, r * rows, WIDTH):
        i = at + tl.arange(0, WIDTH)
        value = tl.load(p + i, mask=i < r * rows, other=0.0).to(tl.float64)
        tl.store(work + i, value, mask=i < r * rows)
    tl.debug_barrier()  # all threads see what others have written
    for k in range(r):
        along, before = _along(work, k, rows, R, WIDTH)
        _subtract(work, along, k, rows, R, WIDTH)
        along, _left = _along(work, k, rows, R, WIDTH)
        _subtract(work, along, k, rows, R, WIDTH)
        along, after = _along(work, k, rows, R, WIDTH)
        inverse = tl.where(tl.sqrt(after) <= dependent * tl.sqrt(before), 0.0, 1 / tl.sqrt(after))
        for at in range(0, rows, WIDTH):  # a NaN stays one
            i = at + tl.arange(0, WIDTH)
            value = tl.load(work + k * rows + i, mask=i < rows, other=0.0) * inverse
            tl.store(work + k * rows + i, value, mask=i < rows)
            tl.store(out + k * rows + i, value.to(tl.float32), mask=i < rows)
        tl.debug_barrier()


@jit
def _along(work, k, rows, R: tl.constexpr, WIDTH: tl.constexpr):
    """The products of row k with the rows before it (f64[R]), and with itself."""
    other = tl.arange(0, R)[:, None]
    along, squares = tl.zeros((R,), tl.float64), tl.zeros((WIDTH,), tl.float64)
    for at in range(0, rows, WIDTH):
        i = at + tl.arange(0, WIDTH)
        own = tl.load(work + k * rows + i, mask=i < rows, other=0.0)
        before = (other < k) & (i[None, :] < rows)
        others = tl.load(work + other * rows + i[None, :], mask=before, other=0.0)
        along += tl.sum(others * own[None, :], 1)
        squares += own * own
    tl.debug_barrier()  # all have read the row before one writes it
    return along, tl.sum(squares, 0)


@jit
def _subtract(work, along, k, rows, R: tl.constexpr, WIDTH: tl.constexpr):
    """Row k without its part along the rows before it."""
    other = tl.arange(0, R)[:, None]
    for at in range(0, rows, WIDTH):
        i = at + tl.arange(0, WIDTH)
        own = tl.load(work + k * rows + i, mask=i < rows, other=0.0)
        before = (other < k) & (i[None, :] < rows)
        others = tl.load(work + other * rows + i[None, :], mask=before, other=0.0)
        own -= tl.sum(others * along[:, None], 0)
        tl.store(work + k * rows + i, own, mask=i < rows)
    tl.debug_barrier()


def _tile(of: Matrices) -> dict[str, int]:
    r = max(LEAST, next_power_of_2(of.r))
    return {"R": r, "ROWS": ROWS, "COLS": COLS, "num_warps": 8 if r > 32 else 4}  # 4 spill on sm_80


@cached()
def _table(of: Matrices) -> tuple[npt.NDArray[np.int64], int]:
    """The table, and the number of matrices."""
    rows, cols = zip(*of.sizes, strict=True)
    bits: Numbers = tuple([(n - 1).bit_length() for n in cols])
    columns = [rows, cols, starts(of.p_sizes), starts(of.q_sizes), bits]
    return fixed(np.array(columns, dtype=np.int64)), len(rows)
