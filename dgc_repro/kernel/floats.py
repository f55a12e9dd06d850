"""Narrow floating-point numbers with scales of blocks: OCP's microscaling formats, NVFP4, and plain FP8.

A number of b bits is a sign, an exponent and m bits of mantissa. Without its sign its bits, read as a whole
number, count the numbers from 0 on: so they are found by adding, and what they mean is read from a table.
Infinities and NaN of a format are not used: what is too large becomes its largest number. Codes lie one
after another in whole groups of bytes (kernel/codes.py). Tensor operations do everything on a
GPU, for all tensors of a batch together; on a CPU c/floats.c has the same bits.

Letters: n = values, g = values of a block, b = bits of a value, m = bits of its mantissa.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dgc_repro.kernel import codes, counter, native, sums
from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.cached import cached, few
from dgc_repro.kernel.layout import Layout
from dgc_repro.kernel.workspace import at_a_time

_ROW = 32  # values; tensors are filled up to whole rows
_NO_NUMBER = 255  # the exponent of what is not finite, in float32 and in E8M0
TENSOR, BLOCKS, CODES = range(3)
"""The parts of a tensor's payload: f32[1] scale of the tensor, u8[blocks] scales, u8 packed codes."""

_encode = native.Function("dgc_floats_encode")
_decode = native.Function("dgc_floats_decode")


@dataclass(frozen=True)
class Element:
    """A kind of number. ``largest``: the largest that is used."""

    exponent_bits: int
    mantissa_bits: int
    largest: float

    @property
    def bits(self) -> int:
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def lowest(self) -> int:
        """The exponent of the smallest number with a full mantissa."""
        return 2 - (1 << (self.exponent_bits - 1))

    @property
    def highest(self) -> int:
        """That of the largest number."""
        return int(np.floor(np.log2(self.largest)))

    @property
    def last(self) -> int:
        """The code of the largest number."""
        steps = int(self.largest / 2.0 ** (self.highest - self.mantissa_bits))
        return (self.highest - self.lowest << self.mantissa_bits) + steps

    @property
    def native(self) -> tuple[int, ...]:
        """`element_t` of c/floats.c."""
        return self.bits, self.mantissa_bits, self.lowest, self.highest, self.last


E4M3, E5M2 = Element(4, 3, 448.0), Element(5, 2, 57344.0)
E2M3, E3M2, E2M1 = Element(2, 3, 7.5), Element(3, 2, 28.0), Element(2, 1, 6.0)


@dataclass(frozen=True)
class Format:
    """``block``: g, None without scales of blocks. ``scale``: what kind of number these are, None for E8M0
    (powers of two). Without blocks, and where blocks have scales with a mantissa, the tensor has one too."""

    element: Element
    block: int | None = None
    scale: Element | None = None

    @property
    def of_tensor(self) -> bool:
        """Whether tensors have a scale."""
        return self.block is None or self.scale is not None

    @property
    def native(self) -> ctypes.Array[ctypes.c_int32]:
        """`form_t` of c/floats.c."""
        scale = self.scale.native if self.scale else (0,) * 5
        return (ctypes.c_int32 * 11)(*self.element.native, *scale, self.block or 0)


class FloatLayout(Layout):
    """Of a batch: the parts of each tensor. ``starts_of``: where tensors begin that are filled up to whole
    rows; ``total``: values of all of them."""

    def __init__(self, sizes: tuple[int, ...], form: Format) -> None:
        n, bits = np.array(sizes, dtype=np.int64), form.element.bits
        together, size = codes.group(bits)
        parts = [
            (np.minimum(n, 1) if form.of_tensor else None, torch.float32),
            (None if form.block is None else -(-n // form.block), torch.uint8),
            (-(-n // together) * size, torch.uint8),
        ]
        super().__init__(sizes, parts, n * bits / 32)
        self.form, self.native = form, form.native
        self.rows = -(-n // _ROW)
        ends = np.cumsum(self.rows) * _ROW
        self.starts_of, self.total = (ends - self.rows * _ROW).tolist(), int(ends[-1])

    def values(self, work: Tensor) -> list[Tensor]:
        """Those of each tensor, without what fills it up. work: [total]."""
        each = zip(self.starts_of, self.sizes, strict=True)
        return [work[start : start + n] for start, n in each]

    def decode(
        self, x: Batch, buffers: Sequence[Tensor], weight: float, *, accumulate: bool
    ) -> None:
        if x.native:
            numbers = table(self.form.element, x.device) * weight
            _decode(
                len(x), x.lengths, x.pointers, self.native, numbers.data_ptr(),
                table(self.form.scale, x.device).data_ptr(), *self._at(), len(buffers),
                native.pointers(buffers), accumulate,
            )  # fmt: skip
            return
        flat = [tensor.view(-1) for tensor in x.tensors]
        for source, buffer in enumerate(buffers if self.total else ()):
            values = self.values(self._decoded(buffer, weight))
            if accumulate or source:
                torch._foreach_add_(flat, values)
            else:
                torch._foreach_copy_(flat, values)

    def _at(self) -> tuple[int | None, int, int]:
        """Where the parts of each tensor begin, as arguments of a C function."""
        return self.of(TENSOR) if self.form.of_tensor else None, self.of(BLOCKS), self.of(CODES)

    def _decoded(self, buffer: Tensor, weight: float) -> Tensor:
        """f32[total]."""
        form, device = self.form, buffer.device
        packed = torch.zeros(self.total * form.element.bits // 8, dtype=torch.uint8, device=device)
        torch._foreach_copy_(self._packed(packed), self._part(buffer, CODES))
        width = form.block or _ROW
        scales = torch.ones(self.total // width, device=device)
        if form.block is not None:
            found = torch.zeros(self.total // width, dtype=torch.uint8, device=device)
            torch._foreach_copy_(self._blocks(found), self._part(buffer, BLOCKS))
            scales = table(form.scale, device)[found.int()]
        if form.of_tensor:
            scales = scales * self._of_blocks(torch.cat(self._part(buffer, TENSOR)))
        numbers = (table(form.element, device) * weight)[unpack(packed, form.element.bits)]
        return numbers.view(-1, width).mul_(scales[:, None]).view(-1)

    def _part(self, buffer: Tensor, part: int) -> list[Tensor]:
        return [self.view(buffer, i, part) for i in range(len(self.sizes))]

    def _packed(self, packed: Tensor) -> list[Tensor]:
        """The codes of each tensor among those of all rows."""
        bits = self.form.element.bits
        each = zip(self.starts_of, self.lengths[CODES].tolist(), strict=True)
        return [packed[start * bits // 8 :][:count] for start, count in each]

    def _blocks(self, scales: Tensor) -> list[Tensor]:
        """The scales of each tensor among those of all rows."""
        width = self.form.block or _ROW
        each = zip(self.starts_of, self.lengths[BLOCKS].tolist(), strict=True)
        return [scales[start // width :][:count] for start, count in each]

    def _of_blocks(self, each: Tensor) -> Tensor:
        """A number of each tensor that is not empty, for each of its blocks, or rows where there are none."""
        return each[_tensor_of_blocks(self, each.device)]

    def encode(self, x: Batch, buffer: Tensor, keys: counter.Numbers | None, work: Tensor) -> None:
        """Round to nearest, or at random with ``keys`` (i32[tensors]), and pack into ``buffer`` (u8[size]).
        work: f32[total]; C kernels need none."""
        form, device = self.form, x.device
        top = form.element.largest * (form.scale.largest if form.scale else 1.0)
        factors = sums.peaks(x) / _number(top, device)
        if x.native:
            _encode(
                len(x), x.lengths, x.pointers, self.native, form.element.largest,
                table(form.scale, device).data_ptr(), factors.data_ptr(),
                None if keys is None else keys.ctypes.data, *self._at(), buffer.data_ptr(),
            )  # fmt: skip
            return
        if not self.total:
            return
        work.zero_()
        torch._foreach_copy_(self.values(work), [tensor.view(-1) for tensor in x.tensors])
        filled = [i for i, n in enumerate(self.sizes) if n]
        outer = factors[_filled(self, device)]
        if form.of_tensor:
            torch._foreach_copy_(
                [self.view(buffer, i, TENSOR)[0] for i in filled], list(outer.unbind())
            )
        rows = work.view(-1, form.block or _ROW)
        factor = self._of_blocks(outer)
        drawn, place = None, None
        if keys is not None:
            key = torch.from_numpy(keys[filled]).to(device, non_blocking=True)
            drawn, place = self._of_blocks(key)[:, None], _places(self, device).view(rows.shape)
        packed, scales = [], []
        step = max(1, at_a_time(device) // rows.shape[1])
        for start in range(0, len(rows), step):
            some = slice(start, start + step)
            code, scale = _scaled(rows[some], form, factor[some])
            y = torch.where(scale[:, None] > 0, rows[some] / scale[:, None], 0.0)
            random = None
            if drawn is not None and place is not None:
                random = counter.uniform(place[some], drawn[some])
            packed.append(pack(rounded(y, form.element, random).view(-1), form.element.bits))
            scales.append(code)
        torch._foreach_copy_(self._part(buffer, CODES), self._packed(torch.cat(packed)))
        if form.block is not None:
            torch._foreach_copy_(self._part(buffer, BLOCKS), self._blocks(torch.cat(scales)))


def _scaled(x: Tensor, form: Format, factor: Tensor) -> tuple[Tensor, Tensor]:
    """The code of each block's scale, and the scale: u8[blocks], f32[blocks]. x: f32[blocks, g]; ``factor``:
    f32[blocks], the scale of the tensor of each."""
    if form.block is None:
        return factor, factor
    largest = x.abs().amax(1)
    if form.scale is None:
        exponent = largest.view(torch.int32) >> 23  # as E8M0 counts: from -127
        code = (exponent - form.element.highest).clamp(0, _NO_NUMBER - 1)
        code = code.masked_fill(exponent == _NO_NUMBER, _NO_NUMBER)
        return code.to(torch.uint8), table(None, x.device)[code]
    ratio = largest / _number(form.element.largest, x.device) / factor
    code = rounded(torch.where(factor > 0, ratio, 0.0), form.scale, None)
    return code.to(torch.uint8), table(form.scale, x.device)[code] * factor


def rounded(y: Tensor, element: Element, random: Tensor | None) -> Tensor:
    """The code of the number next to each value (of two, the even one), or of one of the two beside it, at
    random without bias: i32. y: f32; random: f32 in (0, 1), or None."""
    low, mantissa = element.lowest, element.mantissa_bits
    word = y.view(torch.int32)
    exponent = ((word >> 23 & _NO_NUMBER) - 127).clamp_(low, element.highest + 1)
    steps = y.abs() * ((127 + mantissa - exponent) << 23).view(torch.float32)
    if random is None:
        steps = steps.round_()
    else:
        below = steps.floor()
        steps = below + (random < steps - below)
    # A value that is not finite may have any code: its scale is not finite either.
    whole = steps.nan_to_num_(0.0).clamp_(max=4 << mantissa).to(torch.int32)
    code = (whole + (exponent - low << mantissa)).clamp_(max=element.last)
    return code | ((word >> 31 & 1) << (element.bits - 1))


@cached()
def table(element: Element | None, device: torch.device) -> Tensor:
    """What each code stands for: f32[2^b]. None: E8M0."""
    if element is None:
        numbers = np.exp2(np.arange(256.0) - 127)
        numbers[_NO_NUMBER] = np.nan
    else:
        code = np.arange(1 << (element.bits - 1))
        whole = 1 << element.mantissa_bits
        exponent = np.maximum(code // whole - 1, 0)
        steps = np.where(code < whole, code, whole + code % whole)
        numbers = steps * np.exp2(exponent + float(element.lowest - element.mantissa_bits))
        numbers[element.last + 1 :] = np.nan
        numbers = np.concatenate([numbers, -numbers])
    return torch.from_numpy(numbers.astype(np.float32)).to(device)


@cached()
def _number(value: float, device: torch.device) -> Tensor:
    """A divisor: f32[]. Divided by a Python number, a GPU multiplies by its rounded reciprocal."""
    return torch.full((), value, device=device)


@few
def _tensor_of_blocks(layout: FloatLayout, device: torch.device) -> Tensor:
    """Which of the tensors that are not empty each block, or row, is of: i64."""
    filled = layout.rows[layout.rows > 0] * (_ROW // (layout.form.block or _ROW))
    return torch.from_numpy(np.repeat(np.arange(len(filled)), filled)).to(device)


@cached()
def _filled(layout: FloatLayout, device: torch.device) -> Tensor:
    """The tensors that are not empty: i64."""
    return torch.from_numpy(layout.rows.nonzero()[0]).to(device)


@few
def _places(layout: FloatLayout, device: torch.device) -> Tensor:
    """The place of each value in its tensor: i32[total]."""
    places = np.arange(layout.total) - np.repeat(layout.starts_of, layout.rows * _ROW)
    return torch.from_numpy(places.astype(np.int32)).to(device)


def pack(code: Tensor, bits: int) -> Tensor:
    """i32[n], whole groups -> u8[n b / 8], group after group."""
    together, _ = codes.group(bits)
    planes = codes.pack(list(code.view(-1, together).unbind(1)), bits)
    return torch.stack(planes, 1).view(-1).to(torch.uint8)


def unpack(packed: Tensor, bits: int) -> Tensor:
    """The inverse."""
    _, size = codes.group(bits)
    planes = packed.to(torch.int32).view(-1, size).unbind(1)
    return torch.stack(codes.unpack(list(planes), bits), 1).view(-1)
