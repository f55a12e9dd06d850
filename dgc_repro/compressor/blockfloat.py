"""Narrow floating-point numbers with scales of blocks: FP8, OCP's microscaling formats, NVFP4.

Paper: Open Compute Project, "OCP microscaling formats (MX) specification", version 1.0, 2023, sections 5 and
6.3; Rouhani et al., "Microscaling data formats for deep learning", 2023 (arXiv:2310.10537). NVFP4: NVIDIA,
"Pretraining large language models with NVFP4", 2025 (arXiv:2509.25149), its appendix on quantization. FP8:
Micikevicius et al., "FP8 formats for deep learning", 2022 (arXiv:2209.05433), with one scale a tensor.
Asks: to gather what a tensor's values take:

    ==================  ==========  ===============================  ===================
    format              numbers     bytes of n values                bits a value, large n
    ==================  ==========  ===============================  ===================
    fp8_e4m3, fp8_e5m2  E4M3, E5M2  4 + n                            8
    mxfp8, mxfp8_e5m2   E4M3, E5M2  ceil(n / 32) + n                 8.25
    mxfp6, mxfp6_e3m2   E2M3, E3M2  ceil(n / 32) + 3 ceil(n / 4)     6.25
    mxfp4               E2M1        ceil(n / 32) + ceil(n / 2)       4.25
    nvfp4               E2M1        4 + ceil(n / 16) + ceil(n / 2)   4.5
    ==================  ==========  ===============================  ===================

Differs: these formats were made for matrix products. Here gradients are sent in them, and means are taken in
float32 (exchange.aggregation=sharded quantizes the mean again). MXINT8, whose numbers are whole, is left out.
A block is a stretch of values as they lie
in memory; the last one may be shorter. Codes lie one after another; the specification leaves the order in
memory open. It also leaves open what becomes of a block that holds a NaN or an infinity: here its scale is
E8M0's NaN. With a scale of the tensor, nothing of the tensor decodes to a finite value.

    mx:     X = 2^(floor(log2 max|x|) - emax), from 2^-127 on;            decoded = X q(x / X)
    nvfp4:  t = max|tensor| / (6 x 448),  s = E4M3(max|block| / (6 t));   decoded = t s q(x / (t s))
    fp8:    t = max|tensor| / largest;                                    decoded = t q(x / t)

q rounds to the nearest number of the format, of two to the even one, and what is above the largest to the
largest. In mx a block's largest value lies between 2^emax X and twice that, where E4M3 ends at 1.75 2^emax,
E2M3 at 1.875 and E2M1 at 1.5: it is clipped by a quarter at most. An nvfp4 scale that was rounded down clips
by 1 / 17 at most. Where a block's largest value is below max|tensor| / 28672, its scale s is one of E4M3's
subnormal numbers and clips by a third at most. Below max|tensor| / 458752, s is 0 and the block is
sent as zeros.

Compared by running with torchao 0.18.0 (to_mx with floor, nvfp4_quantize): scales and codes of all MX formats
are the same, bit for bit, in blocks whose scale is above 2^-127. There torchao divides by 2^-126. Those of
nvfp4 are the same but for its lowest s, which is 2^-6, and for values beside a tie: it multiplies by the
reciprocal of t s.

``rounding=stochastic`` rounds to one of the two numbers beside a value, without bias but for what is clipped:
fp8_* has no bias, the others have one in the largest values of blocks, and nvfp4 in blocks that are sent as
zeros.

Letters: n = values, emax = exponent of the format's largest number.
"""

from __future__ import annotations

from typing import Annotated

import torch

from dgc_repro.checked import checked, one_of
from dgc_repro.compressor.encoding import Quantizer
from dgc_repro.compressor.interface import Context
from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.cached import cached
from dgc_repro.kernel.floats import E2M1, E2M3, E3M2, E4M3, E5M2, FloatLayout, Format
from dgc_repro.payload import Floats

FORMATS = {
    "fp8_e4m3": Format(E4M3),
    "fp8_e5m2": Format(E5M2),
    "mxfp8": Format(E4M3, 32),
    "mxfp8_e5m2": Format(E5M2, 32),
    "mxfp6": Format(E2M3, 32),
    "mxfp6_e3m2": Format(E3M2, 32),
    "mxfp4": Format(E2M1, 32),
    "nvfp4": Format(E2M1, 16, E4M3),
}
NEAREST, STOCHASTIC = "nearest", "stochastic"
_layout = cached()(FloatLayout)


@checked
class BlockFloat(Quantizer):
    """``format``: a name in `FORMATS`. ``rounding``: nearest, stochastic."""

    format: Annotated[str, one_of(FORMATS)] = "mxfp8"
    rounding: Annotated[str, one_of((NEAREST, STOCHASTIC))] = NEAREST

    @property
    def block(self) -> int | None:
        """Values that share a scale, None for one a tensor."""
        return FORMATS[self.format].block

    def encode_batch(self, batch: Batch, context: Context) -> Floats:
        """Scale, round and pack."""
        layout = _layout(batch.sizes, FORMATS[self.format])
        size = 0 if batch.native else layout.total
        buffer = context.scratch("floats", layout.size, torch.uint8, batch.device)
        work = context.scratch("scaled", size, torch.float32, batch.device)
        drawn = self.rounding == STOCHASTIC
        keys = context.keys(batch.names, shared=False) if drawn else None
        layout.encode(batch, buffer, keys, work)
        return Floats(batch.names, layout, buffer)
