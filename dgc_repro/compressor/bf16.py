"""bfloat16: every value with float32's range and 8 significant bits.

Paper: Kalamkar et al., "A study of BFLOAT16 for deep learning training", 2019 (arXiv:1905.12322),
section 2; sending gradients in it is common practice (torch's bf16_compress_hook).
Asks: the mean of the tensor in bf16, 2 n bytes.
Differs: a finite value that would round to an infinity (above 3.39e38) is sent as the largest
bf16. What is not finite stays so. The average is made in bf16 by the allreduce: each worker's value is
scaled by 1 / N and rounded, then summed, as torch's hook does; with 8 significant bits that costs
more the more workers there are.

    own = bf16(x),  mean = sum over workers of bf16(own / N)

Letters: n = values, N = workers.
"""

from __future__ import annotations

import torch

from dgc_repro.compressor.cast import Cast


class BF16(Cast):
    """Send bfloat16 values. Nothing to set, nothing to keep."""

    dtype = torch.bfloat16
