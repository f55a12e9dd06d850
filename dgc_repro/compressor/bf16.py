"""bfloat16: every value with float32's range and 8 significant bits.

Paper: Kalamkar et al., "A study of BFLOAT16 for deep learning training", 2019 (arXiv:1905.12322),
section 2; sending gradients in it is common practice (torch's bf16_compress_hook).
Asks: `Mean` of the tensor in bf16, 2 n bytes.
Differs: a finite value that would round to an infinity (above 3.39e38) is sent as the largest
bf16. What is not finite stays so. The average is made in bf16 by the allreduce: each worker's value is
scaled by 1 / N and rounded, then summed, as torch's hook does; with 8 significant bits that costs
more the more workers there are.

    own = bf16(x),  mean = sum over workers of bf16(own / N)

Letters: n = values, N = workers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dgc_repro.compressor.cast import cast, exchange_cast
from dgc_repro.compressor.explained import explained
from dgc_repro.compressor.interface import Context, State
from dgc_repro.exchange.requests import Exchange


@dataclass(frozen=True)
class BF16:
    """Send bfloat16 values. Nothing to set, nothing to keep."""

    def init(self, tensor: Tensor) -> State:
        return {}

    def exchange(self, tensor: Tensor, state: State, context: Context) -> Exchange:
        return (yield from exchange_cast(torch.bfloat16, tensor, state, context))

    def energy(self, tensor: Tensor, context: Context) -> Tensor:
        return explained(tensor, cast(torch.bfloat16, tensor, context.within("energy")), context)
