"""Symmetric linear k-bit quantizer with really packed codes.

Paper: the plain reading of the quantizer in "Distributed Model Training With Dynamic Gradient
Compression" (section III: k-bit gradient quantization, k from 4 to 16), which does not say more.
Asks: to gather n codes of b bits and one float32 scale a tensor or block:
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

from typing import Annotated

from dgc_repro.checked import Count, checked, one_of, within
from dgc_repro.compressor.encoding import Quantizer, encode, layouts_of
from dgc_repro.compressor.interface import Context
from dgc_repro.kernel import codes as kernels
from dgc_repro.kernel.batch import Batch
from dgc_repro.payload import Codes

ROUNDINGS = {
    "nearest": kernels.NEAREST,
    "toward_zero": kernels.TOWARD_ZERO,
    "stochastic": kernels.STOCHASTIC,
}


@checked
class Uniform(Quantizer):
    """``bits``: of a value that is sent. ``rounding``: to the grid. ``block``: values that share
    a scale; None for one scale a tensor."""

    bits: Annotated[
        int,
        within(2, 16),
        "for one bit use a sign method, for no compression compressor=dense",
    ] = 8
    rounding: Annotated[str, one_of(ROUNDINGS)] = "nearest"
    block: Annotated[Count | None, "null for one scale a tensor"] = None

    def encode_batch(self, batch: Batch, context: Context) -> Codes:
        """Quantize and pack."""
        layout = layouts_of(batch.sizes, self.bits, self.block)
        return encode(batch, context, layout, ROUNDINGS[self.rounding])
