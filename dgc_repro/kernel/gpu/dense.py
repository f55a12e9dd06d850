"""Sums, products and energies of all tensors of a batch (c/batch.c, c/sums.c)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
import triton.language as tl
from torch import Tensor

from dgc_repro.kernel.batch import Batch, starts
from dgc_repro.kernel.cached import cached
from dgc_repro.kernel.gpu.launch import (
    Numbers,
    fixed,
    floats,
    kernel,
    launch,
    load_tile,
    magnitude,
    peaks_of,
    store_tile,
    tile,
    tiles,
)

TILE = 2048
MAGNITUDES, SQUARES, PEAKS = 0, 1, 2
COLUMNS, HEIGHT = 128, 1024  # columns of a tile, and rows that it sums
STEP = 16  # rows at a time


def add(a: Batch, b: Batch, to: Batch, weight: float, *, measured: bool) -> None:
    """to = a + weight * b, rounded once. ``measured``: with its energies."""
    on, counts = a.tensors[0], tiles(a.sizes, TILE)
    largest = peaks_of(a, counts)
    sums = on.new_empty(sum(counts) * measured, dtype=torch.float64)
    launch(
        on, _add, counts, a.sizes, to, a, b, weight, largest, sums, PLAIN=weight == 1.0,
        MEASURED=measured, TILE=TILE,
    )  # fmt: skip
    if measured:
        to.energies = _folded(counts, sums, largest, SQUARES)[0]


@kernel
def _add(
    owner, first, sizes, to, a, b, weight, largest, sums, PLAIN: tl.constexpr, MEASURED: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    s, t = tile(owner, first)
    n = tl.load(sizes + s)
    x = load_tile(floats(a, s), t, n, 0.0, TILE)
    y = load_tile(floats(b, s), t, n, 0.0, TILE)
    total = x + y if PLAIN else tl.fma(y, tl.zeros_like(y) + weight, x)
    store_tile(floats(to, s), t, n, total, TILE)
    tl.store(largest + tl.program_id(0), tl.max(magnitude(x), 0))
    if MEASURED:
        wide = total.to(tl.float64)
        tl.store(sums + tl.program_id(0), tl.sum(wide * wide, 0))


def scale(x: Batch, weight: float | Tensor, to: Batch) -> None:
    """to = weight * x."""
    counts = tiles(x.sizes, TILE)
    launch(
        x.tensors[0], _scale, counts, x.sizes, to, x, weight, peaks_of(x, counts),
        READ=isinstance(weight, Tensor), TILE=TILE,
    )  # fmt: skip


@kernel
def _scale(owner, first, sizes, to, x, weight, largest, READ: tl.constexpr, TILE: tl.constexpr):
    s, t = tile(owner, first)
    n = tl.load(sizes + s)
    value = load_tile(floats(x, s), t, n, 0.0, TILE)
    factor = tl.load(weight) if READ else weight
    store_tile(floats(to, s), t, n, value * factor, TILE)
    tl.store(largest + tl.program_id(0), tl.max(magnitude(value), 0))


def zero(x: Batch) -> None:
    """x = 0."""
    launch(x.tensors[0], _zero, tiles(x.sizes, TILE), x.sizes, x, TILE=TILE)


@kernel
def _zero(owner, first, sizes, x, TILE: tl.constexpr):
    s, t = tile(owner, first)
    store_tile(floats(x, s), t, tl.load(sizes + s), tl.zeros((TILE,), tl.float32), TILE)


def narrow(x: Batch, to: Tensor, limit: float) -> None:
    """As in kernel/narrow.py. ``limit``: the largest number of the type of ``to``."""
    counts = tiles(x.sizes, TILE)
    launch(
        to, _narrow, counts, x.sizes, starts(x.sizes), to.view(torch.int16), x, limit, peaks_of(x, counts),
        HALF=to.dtype == torch.float16, TILE=TILE,
    )  # fmt: skip


@kernel
def _narrow(
    owner, first, sizes, starts, to, x, limit, largest, HALF: tl.constexpr, TILE: tl.constexpr
):
    s, t = tile(owner, first)
    n = tl.load(sizes + s)
    value = load_tile(floats(x, s), t, n, 0.0, TILE)
    tl.store(largest + tl.program_id(0), tl.max(magnitude(value), 0))
    kept = tl.where(value > limit, limit, tl.where(value < -limit, -limit, value))
    kept = tl.where(magnitude(value) == 0x7F800000, value, kept)
    if HALF:
        half = kept.to(tl.float16).to(tl.int16, bitcast=True)
    else:  # bf16: older GPUs and the interpreter round it in ways of their own
        bits = kept.to(tl.uint32, bitcast=True)
        bits = tl.where(value == value, (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16, 0x7FC0)
        half = bits.to(tl.int16)
    store_tile(to + tl.load(starts + s), t, n, half, TILE)


def widen(half: Tensor, x: Batch, weight: float, limit: float, *, accumulate: bool) -> None:
    """As in kernel/narrow.py. ``limit``: infinity, or what an infinity counts as."""
    launch(
        half, _widen, tiles(x.sizes, TILE), x.sizes, starts(x.sizes), half.view(torch.int16), x, weight,
        limit, HALF=half.dtype == torch.float16, ACCUMULATE=accumulate, TILE=TILE,
    )  # fmt: skip


@kernel
def _widen(
    owner, first, sizes, starts, half, x, weight, limit, HALF: tl.constexpr, ACCUMULATE: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    s, t = tile(owner, first)
    n = tl.load(sizes + s)
    bits = load_tile(half + tl.load(starts + s), t, n, 0, TILE)
    if HALF:
        value = bits.to(tl.float16, bitcast=True).to(tl.float32)
    else:
        value = (bits.to(tl.int32) << 16).to(tl.float32, bitcast=True)
    value = tl.where(value > limit, limit, tl.where(value < -limit, -limit, value)) * weight
    to = floats(x, s)
    if ACCUMULATE:
        value = load_tile(to, t, n, 0.0, TILE) + value
    store_tile(to, t, n, value, TILE)


def summed(x: Batch, kind: int) -> tuple[Tensor, Tensor]:
    """sum |x| or sum x^2 of each tensor (f64[tensors], in an order of the device; not of `PEAKS`), and
    max|x|, NaN where there is one (f32[tensors])."""
    on, counts = x.tensors[0], tiles(x.sizes, TILE)
    largest = peaks_of(x, counts)
    sums = on.new_empty(sum(counts), dtype=torch.float64)
    launch(on, _parts, counts, x.sizes, x, sums, largest, KIND=kind, TILE=TILE)
    return _folded(counts, sums, largest, kind)


def _folded(counts: Numbers, sums: Tensor, largest: Tensor, kind: int) -> tuple[Tensor, Tensor]:
    """`summed` from what each tile has."""
    totals = sums.new_empty(len(counts))
    peaks = sums.new_empty(len(counts), dtype=torch.float32)
    launch(
        sums, _fold, (1,) * len(counts), counts, starts(counts), sums, largest, totals, peaks, KIND=kind,
        WIDTH=1024,
    )  # fmt: skip
    return totals, peaks


@kernel
def _parts(owner, first, sizes, x, sums, largest, KIND: tl.constexpr, TILE: tl.constexpr):
    s, t = tile(owner, first)
    value = load_tile(floats(x, s), t, tl.load(sizes + s), 0.0, TILE)
    tl.store(largest + tl.program_id(0), tl.max(magnitude(value), 0))
    if KIND != 2:
        wide = value.to(tl.float64)
        wide = wide * wide if KIND == 1 else tl.abs(wide)
        tl.store(sums + tl.program_id(0), tl.sum(wide, 0))


@kernel
def _fold(
    owner, first, counts, starts, sums, largest, totals, peaks, KIND: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    s, _ = tile(owner, first)
    start, count = tl.load(starts + s), tl.load(counts + s)
    peak = tl.zeros((WIDTH,), tl.int32)
    total = tl.zeros((WIDTH,), tl.float64)
    for at in range(0, count, WIDTH):
        i = at + tl.arange(0, WIDTH)
        peak = tl.maximum(peak, tl.load(largest + start + i, mask=i < count, other=0))
        if KIND != 2:
            total += tl.load(sums + start + i, mask=i < count, other=0.0)
    tl.store(peaks + s, tl.max(peak, 0).to(tl.float32, bitcast=True))
    if KIND != 2:
        tl.store(totals + s, tl.sum(total, 0))


def column_parts(x: Batch, columns: Numbers) -> Tensor:
    """`parts` of kernel/sums.py, in an order of the device: f64[3, all columns]."""
    on, (table, across, num_sums) = x.tensors[0], _columns(x.sizes, columns)
    sums = on.new_empty(3 * num_sums, dtype=torch.float64)
    found = on.new_empty(3, sum(columns), dtype=torch.float64)
    programs = tuple([a * d for a, d in zip(across, table[3].tolist(), strict=True)])
    launch(
        on, _column_parts, programs, table, len(x), x, sums, num_sums, WIDTH=COLUMNS, HEIGHT=HEIGHT, STEP=STEP
    )  # fmt: skip
    launch(
        on, _fold_columns, tiles(columns, COLUMNS), table, len(x), sums, num_sums, found, sum(columns),
        WIDTH=COLUMNS, STEP=STEP,
    )  # fmt: skip
    return found


@cached()
def _columns(sizes: Numbers, columns: Numbers) -> tuple[npt.NDArray[np.int64], Numbers, int]:
    """Of each tensor: values, columns, columns of several rows side by side (where these are few), parts that
    its rows are cut into, where its sums and its columns begin: i64[6, tensors]. Then how many tiles its
    columns take, and how many sums there are in all."""
    wide = [max(1, COLUMNS // max(1, count)) * count for count in columns]
    down = [-(-n // max(1, w * HEIGHT)) for n, w in zip(sizes, wide, strict=True)]
    sums = tuple([d * w for d, w in zip(down, wide, strict=True)])
    rows = [sizes, columns, wide, down, starts(sums), starts(columns)]
    return fixed(np.array(rows, dtype=np.int64)), tiles(tuple(wide), COLUMNS), sum(sums)


@kernel
def _column_parts(
    owner, first, table, num, x, sums, num_sums, WIDTH: tl.constexpr, HEIGHT: tl.constexpr,
    STEP: tl.constexpr,
):  # fmt: skip
    s, t = tile(owner, first)
    n, wide = tl.load(table + s), tl.load(table + 2 * num + s)
    across = tl.cdiv(wide, WIDTH)
    part, column = t // across, t % across * WIDTH + tl.arange(0, WIDTH)
    above, below = tl.zeros((WIDTH,), tl.float64), tl.zeros((WIDTH,), tl.float64)
    negative = tl.zeros((WIDTH,), tl.int32)
    begin = part * HEIGHT
    for at in range(begin, tl.minimum(begin + HEIGHT, tl.cdiv(n, wide)), STEP):
        place = (at + tl.arange(0, STEP))[:, None] * wide + column[None, :]
        there = (place < n) & (column[None, :] < wide)
        value = tl.load(floats(x, s) + place, mask=there, other=0.0)
        low = value < 0
        above += tl.sum(tl.where(low, 0.0, value).to(tl.float64), 0)
        below += tl.sum(tl.where(low, value, 0.0).to(tl.float64), 0)
        negative += tl.sum(low.to(tl.int32), 0)
    to = sums + tl.load(table + 4 * num + s) + part * wide + column
    tl.store(to, above, mask=column < wide)
    tl.store(to + num_sums, below, mask=column < wide)
    tl.store(to + 2 * num_sums, negative.to(tl.float64), mask=column < wide)


@kernel
def _fold_columns(
    owner, first, table, num, sums, num_sums, totals, num_columns, WIDTH: tl.constexpr, STEP: tl.constexpr
):  # fmt: skip
    """Add up the parts of each column, and the rows that lie side by side."""
    s, t = tile(owner, first)
    columns, wide = tl.load(table + num + s), tl.load(table + 2 * num + s)
    count = tl.load(table + 3 * num + s) * (wide // columns)
    column = t * WIDTH + tl.arange(0, WIDTH)
    to = totals + tl.load(table + 5 * num + s) + column
    for kind in range(3):
        here = sums + kind * num_sums + tl.load(table + 4 * num + s)
        total = tl.zeros((WIDTH,), tl.float64)
        for at in range(0, count, STEP):
            row = at + tl.arange(0, STEP)[:, None]
            there = (row < count) & (column[None, :] < columns)
            total += tl.sum(
                tl.load(here + row * columns + column[None, :], mask=there, other=0.0), 0
            )
        tl.store(to + kind * num_columns, total, mask=column < columns)
