"""Symmetric linear k-bit quantizer with really packed codes.

Paper: the plain reading of the quantizer in "Distributed Model Training With Dynamic Gradient
Compression" (section III: k-bit gradient quantization, k from 4 to 16), which does not say more.
Asks: `Gather` of n codes of b bits and one float32 scale a tensor or block:
n b / 8 + 4 ceil(n / block) bytes, filled up to whole groups of codes a row
(`CodeLayout.num_bytes`).
Differs: the paper is silent on scale, rounding and packing. Here the scale is max|x| / Q, so that
no value is clipped; rounding is to nearest by default.

    Q = 2^(b-1) - 1,  s = max|x| / Q,  code = round(x / s) + Q,  decoded = (code - Q) s

Letters: n = values, b = bits. Stochastic rounding is unbiased: E[decoded] = x.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from dgc_repro.compressor.interface import Context, State
from dgc_repro.exchange.payload import CodeLayout, Codes
from dgc_repro.exchange.requests import Exchange, Gather, Outcome
from dgc_repro.kernel import codes as kernels
from dgc_repro.kernel import native

ROUNDINGS = {
    "nearest": kernels.NEAREST,
    "toward_zero": kernels.TOWARD_ZERO,
    "stochastic": kernels.STOCHASTIC,
}
TENSOR_ROW = 4096  # values packed together where one scale serves the tensor; stays in cache


@dataclass(frozen=True)
class Uniform:
    """``bits``: 2..16. ``rounding``: nearest, toward_zero, stochastic. ``block``: values that share
    a scale; None for one scale a tensor."""

    bits: int = 8
    rounding: str = "nearest"
    block: int | None = None

    def __post_init__(self) -> None:
        whole = isinstance(self.bits, int) and not isinstance(self.bits, bool)
        if not whole or not 2 <= self.bits <= 16:
            raise ValueError(
                f"bits: a whole number from 2 to 16, got {self.bits!r}; "
                "for one bit use a sign method, for no compression compressor=dense"
            )
        if self.rounding not in ROUNDINGS:
            raise ValueError(f"rounding: one of {', '.join(ROUNDINGS)}, got {self.rounding!r}")
        counts = isinstance(self.block, int) and not isinstance(self.block, bool)
        if self.block is not None and (not counts or self.block < 1):
            raise ValueError(
                f"block: a whole number of values from 1, or null for one scale a tensor, "
                f"got {self.block!r}"
            )

    def init(self, tensor: Tensor) -> State:
        return {}

    def exchange(self, tensor: Tensor, state: State, context: Context) -> Exchange:
        own = self.encode(tensor, context)
        payloads = yield Gather(own)
        mean = payloads.mean(context.result(tensor))
        return Outcome(mean.view(tensor.shape), own, state)

    def energy(self, tensor: Tensor, context: Context) -> Tensor:
        return self.encode(tensor, context.within("energy")).dense().square().sum()

    def layout(self, n: int) -> CodeLayout:
        """How a tensor of n values is cut into rows."""
        return _layout(n, self.block or TENSOR_ROW, self.bits, self.block is not None)

    def encode(self, tensor: Tensor, context: Context) -> Codes:
        """Quantize and pack. tensor: f32, contiguous."""
        flat = tensor.view(-1)
        layout = self.layout(flat.numel())
        device = flat.device
        scales = context.scratch("scales", layout.num_scales, torch.float32, device)
        packed = context.scratch("packed", layout.num_packed, torch.uint8, device)
        payload = Codes(layout, scales, packed)
        if flat.numel() == 0:
            return payload
        rounding = ROUNDINGS[self.rounding]
        seed = context.key(shared=False) if rounding == kernels.STOCHASTIC else 0
        if native.usable(flat):
            if native.quantize(flat, layout.native, rounding, seed, scales, packed):
                context.found_finite(flat)
            return payload
        if not layout.per_row:
            low, high = torch.aminmax(flat)
            torch.maximum(high, -low, out=scales.view(()))
            scales.mul_(1.0 / (2 ** (self.bits - 1) - 1))
        num_codes, num_planes = kernels.group(self.bits)
        planes, tails = payload.planes[:num_planes], payload.planes[num_planes:]
        quantize = kernels.quantizer(self.bits, rounding, layout.per_row)
        key = torch.tensor(seed, dtype=torch.int32, device=device)
        body = layout.body_rows * layout.width
        if body:
            rows = flat[:body].view(layout.body_rows, num_codes, -1)
            own = scales[: layout.body_rows] if layout.per_row else scales
            start = _integer(0, device)
            quantize(rows, own, key, start, *(p.view(layout.body_rows, -1) for p in planes))
        if layout.tail_rows:
            rest = flat[body:]
            own = scales[layout.body_rows :] if layout.per_row else scales
            start = _integer(body, device)
            rows = _filled(rest, layout).view(layout.tail_rows, num_codes, -1)
            quantize(rows, own, key, start, *(t.view(layout.tail_rows, -1) for t in tails))
        return payload


@lru_cache(maxsize=4096)
def _layout(n: int, width: int, bits: int, per_row: bool) -> CodeLayout:
    return CodeLayout(n, width, bits, per_row)


@lru_cache(maxsize=4096)
def _integer(value: int, device: torch.device) -> Tensor:
    """An i32 scalar tensor (wrapping); cached, because making one costs more than a small kernel."""
    return torch.tensor(value, device=device).to(torch.int32)


def _filled(rest: Tensor, layout: CodeLayout) -> Tensor:
    """The tail's values as rows of ``tail_width``, filled up with zeros where they do not fit."""
    rows, width = layout.tail_rows, min(layout.width, rest.numel())
    if rest.numel() == rows * layout.tail_width:
        return rest
    filled = rest.new_zeros(rows, layout.tail_width)
    if rows == 1:
        filled[0, :width] = rest
        return filled
    whole = rest.numel() // width
    filled[:whole, :width] = rest[: whole * width].view(whole, width)
    left = rest.numel() - whole * width
    if left:
        filled[-1, :left] = rest[whole * width :]
    return filled
