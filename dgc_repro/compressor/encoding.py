"""What quantizers share: the exchange, and how values become packed codes with scales."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import lru_cache

import torch
from torch import Tensor

from dgc_repro.compressor.explained import explained
from dgc_repro.compressor.interface import Context, State
from dgc_repro.exchange.payload import CodeLayout, Codes, Payload
from dgc_repro.exchange.requests import Exchange, Gather, Outcome
from dgc_repro.kernel import codes as kernels
from dgc_repro.kernel import native

# Values packed together where one scale serves the tensor. Longer rows are slower: their parts lie
# 4096 bytes apart, where a processor takes a load for one that waits for a store.
TENSOR_ROW = 512


class Quantizer(ABC):
    """A method without state that sends its coding of a tensor to everybody."""

    def init(self, tensor: Tensor) -> State:
        return {}

    def exchange(self, tensor: Tensor, state: State, context: Context) -> Exchange:
        own = self.encode(tensor, context)
        payloads = yield Gather(own)
        mean = payloads.mean(context.result(tensor))
        return Outcome(mean.view(tensor.shape), own, state)

    def energy(self, tensor: Tensor, context: Context) -> Tensor:
        return explained(tensor, self.encode(tensor, context.within("energy")), context)

    @abstractmethod
    def encode(self, tensor: Tensor, context: Context) -> Payload:
        """Quantize and pack. tensor: f32, contiguous."""


@lru_cache(maxsize=4096)
def layout_of(n: int, bits: int, block: int | None) -> CodeLayout:
    """How a tensor of n values is cut into rows: blocks with a scale each, or one scale for all."""
    return CodeLayout(n, block or TENSOR_ROW, bits, block is not None)


def encode(
    tensor: Tensor,
    context: Context,
    layout: CodeLayout,
    rounding: int,
    *,
    levels: int | None = None,
    rule: int = kernels.LARGEST,
    scales: Tensor | None = None,
) -> Codes:
    """Quantize and pack. tensor: f32, contiguous.

    Codes reach from -levels to levels (None: Q, all that the bits hold). ``rule``: what a scale is
    (kernel/codes.py); ``scales``: where it is GIVEN, f32[1] or one for each row."""
    flat = tensor.view(-1)
    device = flat.device
    if scales is None:
        scales = context.scratch("scales", layout.num_scales, torch.float32, device)
    packed = context.scratch("packed", layout.num_packed, torch.uint8, device)
    payload = Codes(layout, scales, packed)
    if flat.numel() == 0:
        return payload
    seed = context.key(shared=False) if rounding == kernels.STOCHASTIC else 0
    if native.usable(flat):
        if native.quantize(
            flat, layout.native, rounding, seed, scales, packed, levels=levels, rule=rule
        ):
            context.found_finite(flat)
        return payload
    if not layout.per_row and rule == kernels.LARGEST:
        low, high = torch.aminmax(flat)
        torch.maximum(high, -low, out=scales.view(()))
        scales.mul_(1.0 / (levels or 2 ** (layout.bits - 1) - 1))
    num_codes, num_planes = kernels.group(layout.bits)
    planes, tails = payload.planes[:num_planes], payload.planes[num_planes:]
    writes_scale = layout.per_row and rule != kernels.GIVEN
    quantize = kernels.quantizer(layout.bits, rounding, writes_scale, levels, rule)
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
