"""One bit a value of all tensors of a batch: signs, votes, powers of two (c/signs.c, c/powers.c).

A program handles one row of 4096 values in 128 words of 32 bits (kernel/signs.py)."""

from __future__ import annotations

from collections.abc import Sequence

import triton.language as tl
from torch import Tensor
from triton import jit

from dgc_repro.kernel import counter
from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.gpu.launch import (
    Numbers,
    floats,
    hashed,
    kernel,
    launch,
    load_rows,
    magnitude,
    peaks_of,
    store_rows,
    tile,
    tiles,
)
from dgc_repro.kernel.layout import Layout

ROW, WORDS, BITS = tl.constexpr(4096), tl.constexpr(128), tl.constexpr(32)
SIGN = tl.constexpr(0x80000000)
WARPS = 8  # a thread has 16 values of a row: with 32 it spills registers


def pack_signs(x: Batch, layout: Layout, buffer: Tensor, *, zero_too: bool) -> None:
    """As `pack` of kernel/signs.py."""
    counts = tiles(x.sizes, 4096)
    launch(
        buffer, _pack_signs, counts, x.sizes, x, [buffer], _starts(layout, -1), peaks_of(x, counts),
        ZERO_TOO=zero_too, num_warps=WARPS,
    )  # fmt: skip


def decode_signs(
    x: Batch,
    layout: Layout,
    num_levels: Numbers,
    buffers: Sequence[Tensor],
    weight: float,
    *,
    accumulate: bool,
) -> None:
    """As `decode` of kernel/signs.py."""
    launch(
        x.tensors[0], _decode_signs, tiles(x.sizes, 4096), x.sizes, x, num_levels, _starts(layout, 0),
        _starts(layout, -1), list(buffers), len(buffers), weight, ACCUMULATE=accumulate,
        COLUMNS=max(num_levels, default=0) > 2, num_warps=WARPS,
    )  # fmt: skip


def vote(x: Batch, layout: Layout, buffers: Sequence[Tensor]) -> None:
    """As `vote` of kernel/signs.py."""
    launch(
        x.tensors[0], _vote, tiles(x.sizes, 4096), x.sizes, x, _starts(layout, -1), list(buffers),
        len(buffers), num_warps=WARPS,
    )  # fmt: skip


def pack_powers(x: Batch, keys: counter.Numbers, layout: Layout, buffer: Tensor) -> None:
    """As `pack` of kernel/powers.py."""
    counts = tiles(x.sizes, 4096)
    launch(
        buffer, _pack_powers, counts, x.sizes, x, [buffer], _starts(layout, 0), _starts(layout, 1), keys,
        peaks_of(x, counts), num_warps=WARPS,
    )  # fmt: skip


def decode_powers(
    x: Batch, layout: Layout, buffers: Sequence[Tensor], weight: float, *, accumulate: bool
) -> None:
    """As `decode` of kernel/powers.py."""
    launch(
        x.tensors[0], _decode_powers, tiles(x.sizes, 4096), x.sizes, x, _starts(layout, 0),
        _starts(layout, 1), list(buffers), len(buffers), weight, ACCUMULATE=accumulate, num_warps=WARPS,
    )  # fmt: skip


def _starts(layout: Layout, part: int) -> Numbers:
    return tuple(layout.starts[part].tolist())


@jit
def _row(owner, first, sizes):
    """The tensor; its values of this row by part and word, and which of them there are; the words of the
    row, and which of them there are; whether the row is whole."""
    s, t = tile(owner, first)
    n, start = tl.load(sizes + s), t * ROW
    left = n - start
    length = tl.minimum((left + BITS - 1) // BITS, WORDS)
    word = tl.arange(0, WORDS)[None, :]
    place = tl.arange(0, BITS)[:, None] * length + word
    there = (word < length) & (place < tl.minimum(left, ROW))
    return s, start + place, there, start // BITS + word, word < length, left >= ROW


@jit
def _words(addresses, source, at, s):
    """The words of tensor s in a buffer."""
    return (tl.load(addresses + source) + tl.load(at + s)).to(tl.pointer_type(tl.uint32))


@jit
def _joined(bits):
    """bool[32, words] -> u32[1, words]."""
    part = tl.arange(0, BITS).to(tl.uint32)[:, None]
    return tl.sum(bits.to(tl.uint32) << part, 0)[None, :]


@jit
def _bit(words):
    """u32[1, words] -> bool[32, words]."""
    return ((words >> tl.arange(0, BITS).to(tl.uint32)[:, None]) & 1) != 0


@jit
def _put_peak(largest, value):
    tl.store(largest + tl.program_id(0), tl.max(tl.max(magnitude(value), 0), 0))


@kernel
def _pack_signs(owner, first, sizes, x, buffers, at, largest, ZERO_TOO: tl.constexpr):
    s, place, there, word, used, whole = _row(owner, first, sizes)
    value = load_rows(floats(x, s), place, there, whole, 1.0)
    _put_peak(largest, value)
    tl.store(
        _words(buffers, 0, at, s) + word, _joined(value <= 0 if ZERO_TOO else value < 0), mask=used
    )


@kernel
def _decode_signs(
    owner, first, sizes, x, num_levels, levels_at, at, buffers, sources, weight,
    ACCUMULATE: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    s, place, there, word, used, whole = _row(owner, first, sizes)
    given = tl.load(num_levels + s)
    columns = tl.maximum(given // 2, 1)
    column = place % columns if COLUMNS else place * 0
    # Compared as blocks: the interpreter has no & of a block and a scalar of bool.
    given = tl.zeros_like(place) + given
    to = floats(x, s)
    total = tl.zeros((BITS, WORDS), tl.float32)
    if ACCUMULATE:
        total = load_rows(to, place, there, whole, 0.0)
    for source in range(sources):
        levels = (tl.load(buffers + source) + tl.load(levels_at + s)).to(
            tl.pointer_type(tl.float32)
        )
        high = tl.load(levels + column, mask=there & (given > 0), other=1.0)
        low = tl.load(levels + columns + column, mask=there & (given > 1), other=0.0)
        low = tl.where(given > 1, low, -high)
        negative = _bit(tl.load(_words(buffers, source, at, s) + word, mask=used, other=0))
        value = tl.where(negative, low, high) * weight
        if ACCUMULATE:
            total = total + value
        else:
            total = tl.where(source == 0, value, total + value)
    store_rows(to, place, total, there, whole)


@kernel
def _vote(owner, first, sizes, x, at, buffers, sources):
    s, place, there, word, used, whole = _row(owner, first, sizes)
    balance = tl.zeros((BITS, WORDS), tl.int32)
    for source in range(sources):
        negative = _bit(tl.load(_words(buffers, source, at, s) + word, mask=used, other=0))
        balance += tl.where(negative, -1, 1)
    sign = tl.where(balance > 0, 1.0, tl.where(balance < 0, -1.0, 0.0))
    store_rows(floats(x, s), place, sign, there, whole)


@kernel
def _pack_powers(owner, first, sizes, x, buffers, at, exponents_at, keys, largest):
    s, place, there, word, used, whole = _row(owner, first, sizes)
    value = load_rows(floats(x, s), place, there, whole, 0.0)
    _put_peak(largest, value)
    bits = value.to(tl.uint32, bitcast=True)
    tl.store(_words(buffers, 0, at, s) + word, _joined((bits >> 31) != 0), mask=used)
    size = bits & 0x7FFFFFFF
    random = hashed(place.to(tl.uint32), tl.load(keys + s).to(tl.uint32)) >> 9
    power = tl.minimum((size + random) >> 23, 254)
    power = tl.where(size >= 0x7F800000, 255, power)
    to = (tl.load(buffers) + tl.load(exponents_at + s)).to(tl.pointer_type(tl.uint8))
    store_rows(to, place, power.to(tl.uint8), there, whole)


@kernel
def _decode_powers(
    owner, first, sizes, x, at, exponents_at, buffers, sources, weight, ACCUMULATE: tl.constexpr
):
    s, place, there, word, used, whole = _row(owner, first, sizes)
    to = floats(x, s)
    total = tl.zeros((BITS, WORDS), tl.float32)
    if ACCUMULATE:
        total = load_rows(to, place, there, whole, 0.0)
    for source in range(sources):
        negative = _bit(tl.load(_words(buffers, source, at, s) + word, mask=used, other=0))
        powers = (tl.load(buffers + source) + tl.load(exponents_at + s)).to(
            tl.pointer_type(tl.uint8)
        )
        bits = load_rows(powers, place, there, whole, 0).to(tl.uint32) << 23
        bits = bits | tl.where(negative, SIGN, 0).to(tl.uint32)
        value = bits.to(tl.float32, bitcast=True) * weight
        if ACCUMULATE:
            total = total + value
        else:
            total = tl.where(source == 0, value, total + value)
    store_rows(to, place, total, there, whole)
