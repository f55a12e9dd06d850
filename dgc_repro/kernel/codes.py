"""Quantize to k-bit codes that are really packed, and back: one fused pass each way.

Layout. The tensor is a matrix of rows of ``width`` values (one scale a row, or one for all) and a
shorter last row. A row is cut into as many equal parts as there are codes in a whole number of
bytes (4 bits: 2 codes in 1 byte; 6 bits: 4 codes in 3 bytes). The first value of every part
shares bytes, then the second: both the reads and the writes are contiguous, which is what a CPU's
vector unit needs. Packing goes through int32: bit operations on uint8 are not vectorized.

Letters: b = bits, G = codes in a group, B = bytes in a group, L = length of a part, Q = 2^(b-1) - 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from dgc_repro.kernel import counter, native
from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.cached import cached
from dgc_repro.kernel.layout import Layout

NEAREST, TOWARD_ZERO, STOCHASTIC = 0, 1, 2
# What a scale is, over the number of levels: max|x|, ||x||_2, or what the caller has written there.
LARGEST, TWO_NORM, GIVEN = 0, 1, 2
_SMALLEST_NORMAL = torch.finfo(torch.float32).tiny
_LARGEST_FLOAT = torch.finfo(torch.float32).max
LARGEST_NORM = _LARGEST_FLOAT * (1 - 2.0**-22)  # less four steps: no code decodes to an infinity
# Scale, inverse and product are rounded four times in all (2^-22): without this margin a value on a
# step, the largest one above all, may come out just below it and lose the whole step toward zero.
_ON_THE_STEP = 1.0 + 2.0**-21

_quantize = native.Function("dgc_quantize_all")
_dequantize = native.Function("dgc_dequantize_all")


def group(bits: int) -> tuple[int, int]:
    """Codes in a group G and bytes in a group B: the smallest whole number of bytes."""
    shared = min(8, bits & -bits)  # gcd(bits, 8)
    return 8 // shared, bits // shared


def pack(parts: list[Tensor], bits: int) -> list[Tensor]:
    """G rows of codes (i32, 0 <= code < 2^b) to B rows of byte values (i32, 0..255)."""
    rows = []
    for byte in range(group(bits)[1]):
        value = None
        for position, part in enumerate(parts):
            shift = position * bits - byte * 8  # of this code's lowest bit inside this byte
            if shift >= 8 or shift + bits <= 0:
                continue
            piece = _shifted(part, shift)
            value = piece if value is None else value | piece
        assert value is not None
        rows.append(value & 0xFF if bits not in (2, 4, 8) else value)
    return rows


def unpack(rows: list[Tensor], bits: int) -> list[Tensor]:
    """B rows of byte values (i32) to G rows of codes (i32): the inverse of `pack`."""
    parts = []
    for position in range(group(bits)[0]):
        value = None
        for byte, row in enumerate(rows):
            shift = byte * 8 - position * bits
            if shift >= bits or shift + 8 <= 0:
                continue
            piece = _shifted(row, shift)
            value = piece if value is None else value | piece
        assert value is not None
        parts.append(value & ((1 << bits) - 1))
    return parts


def _shifted(value: Tensor, by: int) -> Tensor:
    """value << by, or >> where negative; nothing is done for 0 (in eager mode a pass costs)."""
    return value << by if by > 0 else value >> -by if by < 0 else value


def _inverse(scale: Tensor) -> Tensor:
    """1 / scale, and 0 where the scale is 0 or denormal (its inverse would be infinite)."""
    return torch.where(scale >= _SMALLEST_NORMAL, 1.0 / scale, torch.zeros_like(scale))


def _row_scale(x: Tensor, rule: int, levels: int) -> Tensor:
    """The scale of each row: f32[rows], from x: f32[rows, G, L].

    The 2-norm sums the squares of x / max|x| as integers: neither overflow nor the order of the sum
    matters. A norm that float32 cannot hold becomes the largest number that it can: that is above
    every value still."""
    peak = x.abs().amax(dim=(1, 2))
    scale = peak * (1.0 / levels)
    if rule == LARGEST:
        return scale
    part = x * (1.0 / peak).view(-1, 1, 1)
    squares = torch.round(part * part * 2.0**30).to(torch.int64).sum(dim=(1, 2))
    norm = scale * (squares.to(torch.float64) * 2.0**-30).sqrt().to(torch.float32)
    usual = (peak >= _SMALLEST_NORMAL) & (peak <= _LARGEST_FLOAT)
    return torch.where(usual, norm.clamp(max=LARGEST_NORM / levels), scale)


def _code(
    x: Tensor,
    inverse: Tensor,
    index: Tensor | None,
    key: Tensor,
    rounding: int,
    largest: int,
    levels: int,
) -> Tensor:
    """Codes 0..2Q (i32) of x / scale, Q - levels at least and Q + levels at most; Q stands for zero."""
    y = x * inverse
    if rounding == NEAREST:
        y = torch.round(y)
    elif rounding == TOWARD_ZERO:
        y = torch.trunc(y)
    else:
        assert index is not None
        below = torch.floor(y)
        # floor(y + u) would lose u's low bits for large codes; comparing with the fraction does not.
        y = below + (counter.uniform(index, key) < y - below).to(torch.float32)
    return y.clamp(-levels, levels).to(torch.int32) + largest


def quantize_rows(
    x: Tensor,
    scales: Tensor,
    planes: Sequence[Tensor],
    bits: int,
    rounding: int,
    levels: int,
    *,
    own_scale: bool,
    rule: int = LARGEST,
    key: int = 0,
    first: int = 0,
) -> None:
    """x: f32[rows, G, L] -> planes: u8[rows, L], B of them, with tensor operations.

    With ``own_scale`` scales: f32[rows] is written, max|x| or ||x||_2 of each row (``rule``) over
    ``levels``; else scales: f32[1] is read. ``first``: the place of x[0, 0, 0] in its tensor, so that every
    value has a random number of its own."""
    largest, (rows, num_parts, length) = 2 ** (bits - 1) - 1, x.shape
    if own_scale:
        scales.copy_(_row_scale(x, rule, levels))
    inverse = _inverse(scales.view(-1, 1))
    if rounding == TOWARD_ZERO:
        inverse = inverse * _ON_THE_STEP
    parts = []
    for part in range(num_parts):
        index = None
        if rounding == STOCHASTIC:
            row = torch.arange(rows, dtype=torch.int32, device=x.device).view(-1, 1)
            column = torch.arange(length, dtype=torch.int32, device=x.device).view(1, -1)
            index = (row * num_parts + part) * length + column + _integer(first, x.device)
        drawn = _integer(key, x.device)
        parts.append(_code(x[:, part], inverse, index, drawn, rounding, largest, levels))
    for plane, packed in zip(planes, pack(parts, bits), strict=True):
        plane.copy_(packed.to(torch.uint8))


def dequantize_rows(
    x: Tensor,
    scales: Tensor,
    planes: Sequence[Tensor],
    bits: int,
    weight: float,
    *,
    accumulate: bool,
) -> None:
    """x = or += weight * decoded, with tensor operations. x: f32[rows, G, L]; planes: u8[rows, L], B of them;
    scales: f32[rows] or f32[1]."""
    factor = (scales * weight).view(-1, 1)
    for part, code in enumerate(unpack([plane.to(torch.int32) for plane in planes], bits)):
        decoded = (code - (2 ** (bits - 1) - 1)).to(torch.float32) * factor
        x[:, part].copy_(x[:, part] + decoded if accumulate else decoded)


@dataclass(frozen=True)
class CodeLayout:
    """How n values are cut into rows: whole rows of ``width`` and one shorter last row.

    ``per_row`` says whether every row has a scale of its own or one scale serves all.
    """

    n: int
    width: int
    bits: int
    per_row: bool

    @cached_property
    def body_rows(self) -> int:
        """Whole rows. A row whose width is no multiple of a group belongs to the tail (filled up)."""
        return self.n // self.width if self.width % group(self.bits)[0] == 0 else 0

    @cached_property
    def tail_rows(self) -> int:
        """Rows that are filled up to a whole group before they are packed."""
        rest = self.n - self.body_rows * self.width
        return -(-rest // self.width)

    @cached_property
    def tail_width(self) -> int:
        """Values of a tail row after filling up; all tail rows have one width."""
        rest = self.n - self.body_rows * self.width
        codes, _ = group(self.bits)
        return -(-min(rest, self.width) // codes) * codes

    @cached_property
    def num_scales(self) -> int:
        return self.body_rows + self.tail_rows if self.per_row else min(1, self.n)

    @cached_property
    def body_plane(self) -> int:
        """Bytes of one byte plane of the whole rows (there are B planes)."""
        return self.body_rows * (self.width // group(self.bits)[0])

    @cached_property
    def tail_plane(self) -> int:
        """Bytes of one byte plane of the last rows."""
        return self.tail_rows * (self.tail_width // group(self.bits)[0])

    @cached_property
    def num_packed(self) -> int:
        """Bytes of packed codes: B planes of the whole rows, then B planes of the last rows."""
        return group(self.bits)[1] * (self.body_plane + self.tail_plane)

    @cached_property
    def num_bytes(self) -> int:
        """Bytes that travel: scales and packed codes, filling included."""
        return 4 * self.num_scales + self.num_packed

    @cached_property
    def native(self) -> native.Layout:
        """The same for the C kernels."""
        codes, size = group(self.bits)
        return native.Layout(
            self.n, self.width, self.body_rows, self.tail_rows, self.tail_width, self.bits, codes, size,
            self.per_row,
        )  # fmt: skip

    def stretches(
        self, x: Tensor, scales: Tensor, packed: Tensor
    ) -> list[tuple[Tensor, Tensor, list[Tensor], int, int]]:
        """The whole rows and the last rows, where there are any: values (f32), scales, planes
        (u8[rows, L] each), width after filling up, and the place of the first value."""
        count = group(self.bits)[1]
        planes = packed.split([self.body_plane] * count + [self.tail_plane] * count)
        body, found = self.body_rows * self.width, []
        for rows, width, start, end, first, some in (
            (self.body_rows, self.width, 0, body, 0, planes[:count]),
            (self.tail_rows, self.tail_width, body, self.n, self.body_rows, planes[count:]),
        ):
            if rows:
                own = scales[first : first + rows] if self.per_row else scales
                shaped = [plane.view(rows, -1) for plane in some]
                found.append((x[start:end], own, shaped, width, start))
        return found


class CodeLayouts(Layout):
    """Of a batch: scales (f32) and packed codes (u8) of each tensor."""

    def __init__(self, tensors: Sequence[CodeLayout]) -> None:
        sizes, self.bits = tuple([one.n for one in tensors]), tensors[0].bits
        scales, packed = [one.num_scales for one in tensors], [one.num_packed for one in tensors]
        parts = [(scales, torch.float32), (packed, torch.uint8)]
        super().__init__(sizes, parts, np.array(sizes) * self.bits / 32)
        self.tensors = tuple(tensors)
        self.native = (native.Layout * len(tensors))(*[one.native for one in tensors])

    def decode(
        self, x: Batch, buffers: Sequence[Tensor], weight: float, *, accumulate: bool
    ) -> None:
        if x.native:
            _dequantize(
                len(x), x.lengths, x.pointers, self.native, self.of(0), self.of(1), len(buffers),
                native.pointers(buffers), weight, accumulate,
            )  # fmt: skip
            return
        if x.on_gpu:
            from dgc_repro.kernel.gpu import codes as gpu

            gpu.dequantize(x, self, buffers, weight, accumulate=accumulate)
            return
        for i, tensor in enumerate(x.tensors):
            for source, buffer in enumerate(buffers if tensor.numel() else ()):
                scales, packed = self.views(buffer, i)
                add = accumulate or source > 0
                _dequantize_one(tensor.view(-1), self.tensors[i], scales, packed, weight, add)


def quantize(
    x: Batch,
    layout: CodeLayouts,
    buffer: Tensor,
    rounding: int,
    keys: counter.Numbers | None = None,
    *,
    levels: int | None = None,
    rule: int = LARGEST,
) -> None:
    """Quantize and pack into ``buffer`` (u8[layout.size]). ``keys``: i32[tensors], of stochastic rounding;
    ``levels``: codes reach from -levels to levels (None: Q); ``rule``: what a scale is. Where scales are
    GIVEN, there is one for each tensor, and it stands in the buffer."""
    levels = levels or 2 ** (layout.bits - 1) - 1
    if x.native:
        _quantize(
            len(x), x.lengths, x.pointers, layout.native, layout.of(0), layout.of(1), rounding,
            None if keys is None else keys.ctypes.data, levels, rule, buffer.data_ptr(),
        )  # fmt: skip
        return
    if x.on_gpu:
        from dgc_repro.kernel.gpu import codes as gpu

        gpu.quantize(x, layout, buffer, rounding, keys, levels, rule)
        return
    for i, tensor in enumerate(x.tensors):
        if tensor.numel():
            scales, packed = layout.views(buffer, i)
            key = 0 if keys is None else int(keys[i])
            _quantize_one(
                tensor.view(-1), layout.tensors[i], scales, packed, rounding, key, levels, rule
            )


def _quantize_one(
    x: Tensor, layout: CodeLayout, scales: Tensor, packed: Tensor,
    rounding: int, key: int, levels: int, rule: int,
) -> None:  # fmt: skip
    """With tensor operations. x: f32[n], not empty."""
    if not layout.per_row and rule == LARGEST:
        low, high = torch.aminmax(x)
        torch.maximum(high, -low, out=scales.view(()))
        scales.mul_(1.0 / levels)
    own_scale = layout.per_row and rule != GIVEN
    codes, _ = group(layout.bits)
    for values, own, planes, width, first in layout.stretches(x, scales, packed):
        rows = _filled(values, planes[0].shape[0], min(layout.width, values.numel()), width)
        quantize_rows(
            rows.view(len(rows), codes, -1), own, planes, layout.bits, rounding, levels,
            own_scale=own_scale, rule=rule, key=key, first=first,
        )  # fmt: skip


def _dequantize_one(
    x: Tensor,
    layout: CodeLayout,
    scales: Tensor,
    packed: Tensor,
    weight: float,
    accumulate: bool,
) -> None:
    """With tensor operations. x: f32[n], not empty."""
    codes, _ = group(layout.bits)
    for values, own, planes, width, _ in layout.stretches(x, scales, packed):
        shape = (planes[0].shape[0], codes, width // codes)
        if values.numel() == shape[0] * width:  # nothing was filled up
            rows = values.view(shape)
            dequantize_rows(rows, own, planes, layout.bits, weight, accumulate=accumulate)
            continue
        filled = values.new_empty(shape)
        dequantize_rows(filled, own, planes, layout.bits, weight, accumulate=False)
        decoded = filled.view(shape[0], -1)[:, : layout.width].reshape(-1)[: values.numel()]
        values.add_(decoded) if accumulate else values.copy_(decoded)


def _filled(values: Tensor, rows: int, width: int, filled_width: int) -> Tensor:
    """Values in rows of ``width``, each filled up with zeros: f32[rows, filled_width]."""
    if values.numel() == rows * filled_width:
        return values.view(rows, filled_width)
    filled = values.new_zeros(rows, filled_width)
    whole = values.numel() // width
    filled[:whole, :width] = values[: whole * width].view(whole, width)
    left = values.numel() - whole * width
    if left:
        filled[-1, :left] = values[whole * width :]
    return filled


@cached(4096)
def _integer(value: int, device: torch.device) -> Tensor:
    """An i32 scalar tensor (wrapping); cached, because making one costs more than a small kernel."""
    return torch.tensor(value, device=device).to(torch.int32)
