"""Half precision: every value as an IEEE half (5 exponent bits, 10 of mantissa).

Paper: Micikevicius et al., "Mixed precision training", ICLR 2018 (arXiv:1710.03740), section 3,
names the format and its range; sending gradients in it is common practice (torch's
fp16_compress_hook), the "AMP" of GraVAC's related work.
Asks: `Mean` of the tensor in fp16, 2 n bytes.
Differs: no loss scaling. A finite value beyond +-65504 is sent as +-65504 instead of an infinity, and
so is the mean, which the narrow sum may round up past it; under 2^-24 (6e-8) values vanish. What is
not finite stays so. The average is made in fp16 by the allreduce: each worker's value is scaled by
1 / N and rounded, then summed, as torch's hook does; so shares under 2^-25 vanish after they were sent,
which no error feedback sees.

    own = fp16(x),  mean = sum over workers of fp16(own / N)

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
class FP16:
    """Send halves. Nothing to set, nothing to keep."""

    def init(self, tensor: Tensor) -> State:
        return {}

    def exchange(self, tensor: Tensor, state: State, context: Context) -> Exchange:
        return (yield from exchange_cast(torch.float16, tensor, state, context))

    def energy(self, tensor: Tensor, context: Context) -> Tensor:
        return explained(tensor, cast(torch.float16, tensor, context.within("energy")), context)
