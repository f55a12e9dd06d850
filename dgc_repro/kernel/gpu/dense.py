"""Sums, products and energies of all tensors of a batch (c/batch.c, c/sums.c)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton.language as tl
from torch import Tensor
from triton import jit

from dgc_repro.kernel.batch import Batch, starts
from dgc_repro.kernel.gpu.launch import floats, launch, magnitude, tile, tiles

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


def narrow(x: Batch, to: Tensor, limit: float) -> None:
    """As in kernel/narrow.py. ``limit``: the largest number of the type of ``to``."""
    launch(
        to, _narrow, tiles(x.sizes, TILE), x.sizes, starts(x.sizes), to.view(torch.int16), x, limit,
        HALF=to.dtype == torch.float16, TILE=TILE,
    )  # fmt: skip


@jit
def _narrow(owner, first, sizes, starts, to, x, limit, HALF: tl.constexpr, TILE: tl.constexpr):
    s, t = tile(owner, first)
    i = t * TILE + tl.arange(0, TILE)
    there = i < tl.load(sizes + s)
    value = tl.load(floats(x, s) + i, mask=there, other=0.0)
    kept = tl.where(value > limit, limit, tl.where(value < -limit, -limit, value))
    kept = tl.where(magnitude(value) == 0x7F800000, value, kept)
    if HALF:
        half = kept.to(tl.float16).to(tl.int16, bitcast=True)
    else:  # bf16: older GPUs and the interpreter round it in ways of their own
        bits = kept.to(tl.uint32, bitcast=True)
        bits = tl.where(value == value, (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16, 0x7FC0)
        half = bits.to(tl.int16)
    tl.store(to + tl.load(starts + s) + i, half, mask=there)


def widen(half: Tensor, x: Batch, weight: float, limit: float, *, accumulate: bool) -> None:
    """As in kernel/narrow.py. ``limit``: infinity, or what an infinity counts as."""
    launch(
        half, _widen, tiles(x.sizes, TILE), x.sizes, starts(x.sizes), half.view(torch.int16), x, weight,
        limit, HALF=half.dtype == torch.float16, ACCUMULATE=accumulate, TILE=TILE,
    )  # fmt: skip


@jit
def _widen(
    owner, first, sizes, starts, half, x, weight, limit, HALF: tl.constexpr, ACCUMULATE: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    s, t = tile(owner, first)
    i = t * TILE + tl.arange(0, TILE)
    there = i < tl.load(sizes + s)
    bits = tl.load(half + tl.load(starts + s) + i, mask=there, other=0)
    if HALF:
        value = bits.to(tl.float16, bitcast=True).to(tl.float32)
    else:
        value = (bits.to(tl.int32) << 16).to(tl.float32, bitcast=True)
    value = tl.where(value > limit, limit, tl.where(value < -limit, -limit, value)) * weight
    to = floats(x, s) + i
    if ACCUMULATE:
        value = tl.load(to, mask=there, other=0.0) + value
    tl.store(to, value, mask=there)


def summed(x: Batch, kind: int) -> tuple[Tensor, Tensor]:
    """sum |x| or sum x^2 of each tensor (f64[tensors], in an order of the device; not of `PEAKS`), and
    max|x|, NaN where there is one (f32[tensors])."""
    on, counts = x.tensors[0], tiles(x.sizes, TILE)
    sums = on.new_empty(sum(counts), dtype=torch.float64)
    largest = on.new_empty(sum(counts), dtype=torch.int32)
    totals = on.new_empty(len(x), dtype=torch.float64)
    peaks = on.new_empty(len(x), dtype=torch.float32)
    launch(on, _parts, counts, x.sizes, x, sums, largest, KIND=kind, TILE=TILE)
    launch(
        on,
        _fold,
        (1,) * len(x),
        counts,
        starts(counts),
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
