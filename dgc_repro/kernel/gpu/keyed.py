"""Entries at the first places of a keyed permutation, of all tensors of a batch (c/permute.c).

Tables of a layout, one row each (i64): values of each tensor, entries, bits of the permutation, where header
and values begin in the buffer."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import triton.language as tl
from torch import Tensor
from triton import jit

from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.cached import cached
from dgc_repro.kernel.gpu import dense
from dgc_repro.kernel.gpu.launch import Numbers, fixed, floats, hashed, kernel, launch, tile, tiles
from dgc_repro.kernel.gpu.sparse import ENTRIES

WARPS = 8  # a thread hashes 8 numbers: with 16 it spills registers


class Keys(Hashable, Protocol):
    """`KeyedLayout` of the payload (payload/keyed.py)."""

    sizes: Numbers
    counts: Numbers
    starts: npt.NDArray[np.int64]
    travels: bool


def gather(x: Batch, layout: Keys, keys: Tensor, buffer: Tensor, *, scaled: bool) -> None:
    """Write headers and values. keys: i32[tensors]; ``scaled``: n / k times the values."""
    programs = tuple([max(1, count) for count in tiles(layout.counts, ENTRIES)])
    launch(
        buffer, _gather, programs, _table(layout), len(x), x, [buffer], keys, TRAVELS=layout.travels,
        SCALED=scaled, TILE=ENTRIES, num_warps=WARPS,
    )  # fmt: skip


def add_up(
    x: Batch,
    layout: Keys,
    sources: Sequence[tuple[Tensor, Tensor]],
    weight: float,
    *,
    accumulate: bool,
) -> None:
    """x = or += weight * every payload (its keys and its buffer), in their order."""
    if not accumulate:
        dense.zero(x)
    for keys, buffer in sources:
        _visit(x, layout, keys, buffer, weight, zero=False)


def zero_at(x: Batch, layout: Keys, keys: Tensor) -> None:
    """x = 0 where a payload has entries."""
    _visit(x, layout, keys, keys, 0.0, zero=True)


def _visit(
    x: Batch, layout: Keys, keys: Tensor, buffer: Tensor, weight: float, *, zero: bool
) -> None:
    launch(
        x.tensors[0], _scatter, tiles(layout.counts, ENTRIES), _table(layout), len(x), x, [buffer],
        keys, weight, ZERO=zero, TILE=ENTRIES, num_warps=WARPS,
    )  # fmt: skip


@cached()
def _table(layout: Keys) -> npt.NDArray[np.int64]:
    bits = [max(0, n - 1).bit_length() for n in layout.sizes]
    return fixed(np.array([layout.sizes, layout.counts, bits, *layout.starts], dtype=np.int64))


@jit
def _places(n, bits, key, i, there):
    """The places of these numbers in the permutation of n; what falls outside walks on."""
    place = _scrambled(bits, key, i)
    outside = there & (place >= n)
    while tl.max(outside.to(tl.int32), 0) > 0:
        place = tl.where(outside, _scrambled(bits, key, place), place)
        outside = there & (place >= n)
    return place


@jit
def _scrambled(bits, key, number):
    """The permutation of 2^bits."""
    high_bits = bits // 2
    low_bits = bits - high_bits
    low_mask = (((bits * 0 + 1) << low_bits) - 1).to(tl.uint32)
    high_mask = (((bits * 0 + 1) << high_bits) - 1).to(tl.uint32)
    low, high = number.to(tl.uint32) & low_mask, (number >> low_bits).to(tl.uint32)
    for turn in range(0, tl.where(bits > 6, 8, 24), 2):
        high = high ^ (hashed(low, hashed((bits * 0 + turn).to(tl.uint32), key)) & high_mask)
        low = low ^ (hashed(high, hashed((bits * 0 + turn + 1).to(tl.uint32), key)) & low_mask)
    return (high.to(tl.int64) << low_bits) | low.to(tl.int64)


@jit
def _entries(table, num, s, t, keys, TILE: tl.constexpr):
    """Entries of a tile, which of them there are, and their places."""
    i = t * TILE + tl.arange(0, TILE)
    there = i < tl.load(table + num + s)
    key = tl.load(keys + s).to(tl.uint32)
    return i, there, _places(tl.load(table + s), tl.load(table + 2 * num + s), key, i, there)


@kernel
def _gather(
    owner, first, table, num, x, buffers, keys, TRAVELS: tl.constexpr,
    SCALED: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    s, t = tile(owner, first)
    buffer = tl.load(buffers)
    i, there, place = _entries(table, num, s, t, keys, TILE)
    if TRAVELS:
        header = (buffer + tl.load(table + 3 * num + s)).to(tl.pointer_type(tl.int64))
        tl.store(header, tl.load(keys + s).to(tl.int64), mask=t == 0)
    value = tl.load(floats(x, s) + place, mask=there, other=0.0)
    if SCALED:
        n, k = tl.load(table + s).to(tl.float64), tl.load(table + num + s).to(tl.float64)
        value = value * (n / k).to(tl.float32)
    to = (buffer + tl.load(table + 4 * num + s)).to(tl.pointer_type(tl.float32))
    tl.store(to + i, value, mask=there)


@kernel
def _scatter(
    owner, first, table, num, x, buffers, keys, weight, ZERO: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    s, t = tile(owner, first)
    buffer = tl.load(buffers)
    i, there, place = _entries(table, num, s, t, keys, TILE)
    to = floats(x, s) + place
    if ZERO:
        tl.store(to, place.to(tl.float32) * 0.0, mask=there)
    else:
        sent = (buffer + tl.load(table + 4 * num + s)).to(tl.pointer_type(tl.float32))
        value = tl.load(sent + i, mask=there, other=0.0) * weight
        tl.store(to, tl.load(to, mask=there, other=0.0) + value, mask=there)
