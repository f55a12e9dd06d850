"""Natural compression: every value becomes a power of two next to it, at random without bias.

Paper: Horvath et al., "Natural compression for distributed deep learning", 2019 (MSML 2022,
arXiv:1905.10988), section 2.
Asks: to gather a sign bit and an 8-bit exponent a value: n + 4 ceil(n / 32) bytes, 9 bits a value.
Differs: below float32's normal range (2^-126) there are no exponents left in eight bits: such a value
becomes 0 or 2^-126, with the right mean. Above 2^127 there is no float32 power of two: such a value
becomes 2^127, the only place where there is a bias.

    C(x) = sign(x) 2^e with probability (2^(e+1) - |x|) / 2^e, else sign(x) 2^(e+1),
    e = floor(log2 |x|)

Letters: n = values. E[C(x)] = x, and E[(C(x) - x)^2] <= x^2 / 8.
"""

from __future__ import annotations

import torch

from dgc_repro.checked import checked
from dgc_repro.compressor.encoding import Quantizer
from dgc_repro.compressor.interface import Context
from dgc_repro.kernel import powers
from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.cached import cached
from dgc_repro.payload import Powers

_layout = cached()(powers.PowerLayout)


@checked
class Natural(Quantizer):
    """Send powers of two. Nothing to set, nothing to keep."""

    def encode_batch(self, batch: Batch, context: Context) -> Powers:
        """Round and pack."""
        layout = _layout(batch.sizes)
        buffer = context.scratch("powers", layout.size, torch.uint8, batch.device)
        powers.pack(batch, context.keys(batch.names, shared=False), layout, buffer)
        return Powers(batch.names, layout, buffer)
