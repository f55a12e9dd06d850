"""Half precision: every value as an IEEE half (5 exponent bits, 10 of mantissa).

Paper: Micikevicius et al., "Mixed precision training", ICLR 2018 (arXiv:1710.03740), section 3,
names the format and its range; sending gradients in it is common practice (torch's
fp16_compress_hook), the "AMP" of GraVAC's related work.
Asks: the mean of the tensor in fp16, 2 n bytes.
Differs: no loss scaling. A finite value beyond +-65504 is sent as +-65504 instead of an infinity, and
so is the mean, which the narrow sum may round up past it; under 2^-24 (6e-8) values vanish. What is
not finite stays so. The average is made in fp16 by the allreduce: each worker's value is scaled by
1 / N and rounded, then summed, as torch's hook does; so shares under 2^-25 vanish after they were sent,
which no error feedback sees.

    own = fp16(x),  mean = sum over workers of fp16(own / N)

Letters: n = values, N = workers.
"""

from __future__ import annotations

import torch

from dgc_repro.compressor.cast import Cast


class FP16(Cast):
    """Send halves. Nothing to set, nothing to keep."""

    dtype = torch.float16
