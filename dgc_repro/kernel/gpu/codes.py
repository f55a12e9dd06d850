"""Quantize all tensors of a batch to packed codes, and back (c/codes.c; the layout: kernel/codes.py).

A program handles one row: G parts of L values, whose codes share B bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import triton.language as tl
from torch import Tensor
from triton import jit, next_power_of_2

from dgc_repro.kernel import codes as reference
from dgc_repro.kernel import counter
from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.cached import cached
from dgc_repro.kernel.codes import CodeLayouts
from dgc_repro.kernel.gpu import dense
from dgc_repro.kernel.gpu.launch import (
    fixed,
    floats,
    hashed,
    inverse,
    kernel,
    launch,
    load_rows,
    load_tile,
    magnitude,
    peaks_of,
    store_rows,
    tile,
)

CHUNK = 2048  # values of a row handled at a time
ON_THE_STEP = tl.constexpr(1.0 + 2.0**-21)
ROUND = tl.constexpr(1.5 * 2.0**23)  # added and taken away, it rounds what is below 2^22
INFINITE = tl.constexpr(0x7F800000)


def quantize(
    x: Batch,
    layout: CodeLayouts,
    buffer: Tensor,
    rounding: int,
    keys: counter.Numbers | None,
    levels: int,
    rule: int,
) -> None:
    """As in kernel/codes.py; ``levels`` given."""
    peaks = None
    if rule != reference.GIVEN:
        by_row = layout.tensors[0].per_row
        peaks = peaks_of(x, _rows(layout)) if by_row else dense.summed(x, dense.PEAKS)[1]
    launch(
        buffer, _quantize, _rows(layout), len(x), _table(layout), x, [buffer],
        peaks, (0,) if keys is None else keys, float(levels), float(np.float32(1.0 / levels)),
        float(np.float32(reference.LARGEST_NORM / levels)), ROUNDING=rounding, RULE=rule,
        **_sizes(layout),
    )  # fmt: skip


def dequantize(
    x: Batch, layout: CodeLayouts, buffers: Sequence[Tensor], weight: float, *, accumulate: bool
) -> None:
    """As in kernel/codes.py."""
    launch(
        x.tensors[0], _dequantize, _rows(layout), len(x), _table(layout), x, list(buffers), len(buffers),
        weight, ACCUMULATE=accumulate, **_sizes(layout),
    )  # fmt: skip


@cached(1024)
def _rows(layout: CodeLayouts) -> tuple[int, ...]:
    return tuple([one.body_rows + one.tail_rows for one in layout.tensors])


@cached(1024)
def _sizes(layout: CodeLayouts) -> dict[str, int]:
    codes, size = reference.group(layout.bits)
    widest = layout.tensors[0].width  # of no tensor's size: each would be compiled for
    chunk = max(1, min(CHUNK, next_power_of_2(widest)) // codes)
    return {
        "BITS": layout.bits, "G": codes, "B": size, "PER_ROW": layout.tensors[0].per_row, "CHUNK": chunk,
        "num_warps": 4 if chunk * codes >= 512 else 1,
    }  # fmt: skip


@cached(1024)
def _table(layout: CodeLayouts) -> npt.NDArray[np.int64]:
    """Numbers of each tensor that the kernels need: i64[7, tensors]."""
    rows = [
        (one.n, one.width, one.body_rows, one.tail_rows, one.tail_width, *starts)
        for one, starts in zip(layout.tensors, layout.starts.T.tolist(), strict=True)
    ]
    return fixed(np.ascontiguousarray(np.array(rows, dtype=np.int64).T))


@jit
def _row(table, num, s, r, G: tl.constexpr, B: tl.constexpr):
    """Where row r of tensor s lies: its first value, how many it has, the length of its parts, the place of
    its first random number; its first packed byte, and the bytes from one plane to the next."""
    n, width = tl.load(table + s), tl.load(table + num + s)
    body_rows, tail_rows = tl.load(table + 2 * num + s), tl.load(table + 3 * num + s)
    tail_width = tl.load(table + 4 * num + s)
    tail, body, t = r >= body_rows, body_rows * width, r - body_rows
    start = tl.where(tail, body + t * width, r * width)
    values = tl.minimum(n - start, width)
    length = tl.where(tail, tail_width, width) // G
    index = tl.where(tail, body + t * tail_width, start)
    body_plane = body_rows * (width // G)
    first = tl.where(tail, B * body_plane + t * length, r * length)
    plane = tl.where(tail, tail_rows * length, body_plane)
    return start, values, length, index, first, plane


@jit
def _whole(at, values, length, G: tl.constexpr, CHUNK: tl.constexpr):
    """Whether all values from column `at` on are there, in rows that begin at multiples of 4."""
    end = at + CHUNK
    return (end <= length) & ((G - 1) * length + end <= values) & (length % 4 == 0)


@kernel
def _quantize(
    owner, first, num, table, x, buffers, peaks, keys, limit, share, most, ROUNDING: tl.constexpr,
    RULE: tl.constexpr, BITS: tl.constexpr, G: tl.constexpr, B: tl.constexpr, PER_ROW: tl.constexpr,
    CHUNK: tl.constexpr,
):  # fmt: skip
    s, r = tile(owner, first)
    start, values, length, index, first_byte, plane = _row(table, num, s, r, G, B)
    buffer = tl.load(buffers)
    scales = (buffer + tl.load(table + 5 * num + s)).to(tl.pointer_type(tl.float32))
    planes = (buffer + tl.load(table + 6 * num + s) + first_byte).to(tl.pointer_type(tl.uint8))
    x = floats(x, s) + start
    if RULE == 2:
        scale = tl.load(scales + (r if PER_ROW else 0))
    else:
        if PER_ROW:
            found = tl.zeros((CHUNK * G,), tl.int32)
            for t in range(tl.cdiv(values, CHUNK * G)):
                found = tl.maximum(found, magnitude(load_tile(x, t, values, 0.0, CHUNK * G)))
            largest = tl.max(found, 0)
            tl.store(peaks + tl.program_id(0), largest)
        else:
            largest = magnitude(tl.load(peaks + s))
        peak = largest.to(tl.float32, bitcast=True)
        scale = peak * share
        if RULE == 1 and PER_ROW:
            part = inverse(peak)
            squares = tl.zeros((CHUNK * G,), tl.int64)
            for t in range(tl.cdiv(values, CHUNK * G)):
                value = load_tile(x, t, values, 0.0, CHUNK * G) * part
                value = value * value * 1073741824.0
                value = tl.where(value < 8388608.0, (value + 8388608.0) - 8388608.0, value)
                squares += value.to(tl.int32).to(tl.int64)
            root = tl.sqrt(tl.sum(squares, 0).to(tl.float64) * (1.0 / 1073741824.0))
            norm = scale * root.to(tl.float32)
            usual = (largest < INFINITE) & (largest >= 0x00800000)
            scale = tl.where(usual, tl.where(norm > most, most, norm), scale)
        tl.store(scales + (r if PER_ROW else 0), scale, mask=PER_ROW or r == 0)
    factor = tl.where(scale >= 1.1754943508222875e-38, inverse(scale), 0.0)
    if ROUNDING == 1:
        factor = factor * ON_THE_STEP
    q: tl.constexpr = 2 ** (BITS - 1) - 1
    part = tl.arange(0, G)[:, None]
    for at in range(0, length, CHUNK):
        column = at + tl.arange(0, CHUNK)[None, :]
        place = part * length + column
        there = (column < length) & (place < values)
        whole = _whole(at, values, length, G, CHUNK)
        y = load_rows(x, place, there, whole, 0.0) * factor
        if ROUNDING == 2:
            below = tl.floor(y)
            random = hashed((index + place).to(tl.uint32), tl.load(keys + s).to(tl.uint32))
            random = ((random >> 9).to(tl.int32).to(tl.float32) + 0.5) * (1.0 / 8388608.0)
            y = below + tl.where(random < y - below, 1.0, 0.0)
        y = tl.where(y < -limit, -limit, y)
        y = tl.where(y > limit, limit, y)
        if ROUNDING == 0:
            y = (y + ROUND) - ROUND
        # A NaN has the code of zero, as in C, where the lower bits of its conversion are 0.
        code = tl.where(there & (y == y), y, 0.0).to(tl.int32) + q
        for byte in tl.static_range(B):
            shift = part * BITS - byte * 8
            left = code << tl.minimum(tl.maximum(shift, 0), 8)
            right = code >> tl.minimum(tl.maximum(-shift, 0), 16)
            piece = tl.where(shift >= 0, left, right) & 0xFF
            piece = tl.where((shift < 8) & (shift > -BITS), piece, 0)
            packed = tl.sum(piece, 0)[None, :].to(tl.uint8)
            store_rows(planes + byte * plane, column, packed, column < length, whole)


@kernel
def _dequantize(
    owner, first, num, table, x, buffers, sources, weight, ACCUMULATE: tl.constexpr, BITS: tl.constexpr,
    G: tl.constexpr, B: tl.constexpr, PER_ROW: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    s, r = tile(owner, first)
    start, values, length, _, first_byte, plane = _row(table, num, s, r, G, B)
    scales_at, packed_at = tl.load(table + 5 * num + s), tl.load(table + 6 * num + s)
    x = floats(x, s) + start
    q: tl.constexpr = 2 ** (BITS - 1) - 1
    part = tl.arange(0, G)[:, None]
    for at in range(0, length, CHUNK):
        column = at + tl.arange(0, CHUNK)[None, :]
        place = part * length + column
        there = (column < length) & (place < values)
        whole = _whole(at, values, length, G, CHUNK)
        total = tl.zeros((G, CHUNK), tl.float32)
        if ACCUMULATE:
            total = load_rows(x, place, there, whole, 0.0)
        for source in range(sources):
            buffer = tl.load(buffers + source)
            scales = (buffer + scales_at).to(tl.pointer_type(tl.float32))
            planes = (buffer + packed_at + first_byte).to(tl.pointer_type(tl.uint8))
            factor = tl.load(scales + (r if PER_ROW else 0)) * weight
            code = tl.zeros((G, CHUNK), tl.int32)
            for byte in tl.static_range(B):
                row = load_rows(planes + byte * plane, column, column < length, whole, 0).to(
                    tl.int32
                )
                shift = byte * 8 - part * BITS
                left = row << tl.minimum(tl.maximum(shift, 0), 16)
                right = row >> tl.minimum(tl.maximum(-shift, 0), 8)
                piece = tl.where(shift >= 0, left, right)
                code |= tl.where((shift < BITS) & (shift > -8), piece, 0)
            value = ((code & (2**BITS - 1)) - q).to(tl.float32) * factor
            if ACCUMULATE:
                total = total + value
            else:
                total = tl.where(source == 0, value, total + value)
        store_rows(x, place, total, there, whole)
