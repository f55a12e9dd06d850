"""Symmetric linear k-bit quantizer with really packed codes.

Paper: the plain reading of the quantizer in "Distributed Model Training With Dynamic Gradient
Compression" (section III: k-bit gradient quantization, k from 4 to 16), which does not say more.
Asks: `Gather` of n codes of b bits and one float32 scale a tensor or block:
n b / 8 + 4 ceil(n / block) bytes, filled up to whole groups of codes a row
(`CodeLayout.num_bytes`).
Differs: the paper is silent on scale, rounding and packing. Here the scale is max|x| / Q, so that
no value is clipped; rounding is to nearest by default. Where s is below float32's normal range, so that
max|x| is below Q x 1.2e-38, all values are sent as 0. A stochastic draw has 23 bits: its mean is right to
2^-24 of a step.

    Q = 2^(b-1) - 1,  s = max|x| / Q,  code = round(x / s) + Q,  decoded = (code - Q) s

Letters: n = values, b = bits. Stochastic rounding is unbiased: E[decoded] = x. No value is moved by more
than a step: from 3 bits on no entry of an error feedback's residual is above max|g| / (Q - 1). With 2 bits
(Q = 1) and stochastic rounding it may be, and settles as that of QSGD with 1 level (compressor/qsgd.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from dgc_repro.compressor.encoding import encode, layout_of
from dgc_repro.compressor.explained import explained
from dgc_repro.compressor.interface import Context, State
from dgc_repro.exchange.payload import CodeLayout, Codes
from dgc_repro.exchange.requests import Exchange, Gather, Outcome
from dgc_repro.kernel import codes as kernels

ROUNDINGS = {
    "nearest": kernels.NEAREST,
    "toward_zero": kernels.TOWARD_ZERO,
    "stochastic": kernels.STOCHASTIC,
}


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
        return explained(tensor, self.encode(tensor, context.within("energy")), context)

    def layout(self, n: int) -> CodeLayout:
        """How a tensor of n values is cut into rows."""
        return layout_of(n, self.bits, self.block)

    def encode(self, tensor: Tensor, context: Context) -> Codes:
        """Quantize and pack. tensor: f32, contiguous."""
        rounding = ROUNDINGS[self.rounding]
        return encode(tensor, context, self.layout(tensor.numel()), rounding)
