"""Sums, products and energies of all tensors of a batch (c/batch.c, c/sums.c)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton.language as tl
from torch import Tensor
from triton import jit

from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.gpu.launch import floats, launch, magnitude, starts_of, tile, tiles

TILE = 2048
MAGNITUDES, SQUARES, PEAKS = 0, 1, 2


def add(a: Batch, b: Sequence[Tensor], to: Batch, weight: float) -> None:
    """to = a + weight * b, rounded once."""
    launch(
        a.tensors[0], _add, tiles(a.sizes, TILE), a.sizes, to, a, list(b), weight,
        PLAIN=weight == 1.0, TILE=TILE,
    )  # fmt: skip


@jit
def _add(owner, first, sizes, to, a, b, weight, PLAIN: tl.constexpr, TILE: tl.constexpr):
    s, t = tile(owner, first)
    i = t * TILE + tl.arange(0, TILE)
    there = i < tl.load(sizes + s)
    x = tl.load(floats(a, s) + i, mask=there)
    y = tl.load(floats(b, s) + i, mask=there)
    total = x + y if PLAIN else tl.fma(y, tl.zeros_like(y) + weight, x)
    tl.store(floats(to, s) + i, total, mask=there)


def scale(x: Batch, weight: float, to: Batch) -> None:
    """to = weight * x."""
    launch(x.tensors[0], _scale, tiles(x.sizes, TILE), x.sizes, to, x, weight, TILE=TILE)


@jit
def _scale(owner, first, sizes, to, x, weight, TILE: tl.constexpr):
    s, t = tile(owner, first)
    i = t * TILE + tl.arange(0, TILE)
    there = i < tl.load(sizes + s)
    tl.store(floats(to, s) + i, tl.load(floats(x, s) + i, mask=there) * weight, mask=there)


def zero(x: Batch) -> None:
    """x = 0."""
    launch(x.tensors[0], _zero, tiles(x.sizes, TILE), x.sizes, x, TILE=TILE)


@jit
def _zero(owner, first, sizes, x, TILE: tl.constexpr):
    s, t = tile(owner, first)
    i = t * TILE + tl.arange(0, TILE)
    tl.store(floats(x, s) + i, tl.zeros((TILE,), tl.float32), mask=i < tl.load(sizes + s))


def summed(x: Batch, kind: int) -> tuple[Tensor, Tensor]:
    """sum |x| or sum x^2 of each tensor (f64[tensors], in an order of the device; not of `PEAKS`), and
    max|x|, NaN where there is one (f32[tensors])."""
    on, counts = x.tensors[0], tiles(x.sizes, TILE)
    sums = on.new_empty(sum(counts), dtype=torch.float64)
    largest = on.new_empty(sum(counts), dtype=torch.int32)
    totals = on.new_empty(len(x), dtype=torch.float64)
    peaks = on.new_empty(len(x), dtype=torch.float32)
    launch(on, _parts, counts, x.sizes, x, sums, largest, KIND=kind, TILE=TILE)
    starts = starts_of(counts)
    launch(
        on,
        _fold,
        (1,) * len(x),
        counts,
        starts,
        sums,
        largest,
        totals,
        peaks,
        KIND=kind,
        WIDTH=1024,
    )
    return totals, peaks


@jit
def _parts(owner, first, sizes, x, sums, largest, KIND: tl.constexpr, TILE: tl.constexpr):
    s, t = tile(owner, first)
    i = t * TILE + tl.arange(0, TILE)
    value = tl.load(floats(x, s) + i, mask=i < tl.load(sizes + s), other=0.0)
    tl.store(largest + tl.program_id(0), tl.max(magnitude(value), 0))
    if KIND != 2:
        wide = value.to(tl.float64)
        wide = wide * wide if KIND == 1 else tl.abs(wide)
        tl.store(sums + tl.program_id(0), tl.sum(wide, 0))


@jit
def _fold(
    owner,
    first,
    counts,
    starts,
    sums,
    largest,
    totals,
    peaks,
    KIND: tl.constexpr,
    WIDTH: tl.constexpr,
):
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
