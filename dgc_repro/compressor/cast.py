"""What casts to half precision share: the exchange, and what is sent.

Asks: `Mean` of the tensor in the narrow type, 2 n bytes.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from dgc_repro.checked import checked
from dgc_repro.compressor.explained import explained
from dgc_repro.compressor.interface import Context, State
from dgc_repro.exchange.payload import Whole
from dgc_repro.exchange.requests import Exchange, Mean, Outcome
from dgc_repro.kernel.narrow import narrow, widen


@checked
class Cast:
    """Casts, averages in the narrow type, and casts back. Nothing to set, nothing to keep."""

    dtype: ClassVar[torch.dtype]

    def init(self, tensor: Tensor) -> State:
        return {}

    def exchange(self, tensor: Tensor, state: State, context: Context) -> Exchange:
        own = cast(self.dtype, tensor, context)
        mean = yield Mean(own.values, in_place=not context.own_is_read)
        result = context.result(tensor)
        widen(mean.view(-1), result, 1.0, accumulate=False, saturate=True)
        return Outcome(result.view(tensor.shape), own, state)

    def energy(self, tensor: Tensor, context: Context) -> Tensor:
        return explained(tensor, cast(self.dtype, tensor, context.within("energy")), context)


def cast(dtype: torch.dtype, tensor: Tensor, context: Context) -> Whole:
    """The tensor in the narrow type, as it is sent. tensor: f32, contiguous."""
    half = context.scratch("half", tensor.numel(), dtype, tensor.device)
    if narrow(tensor.view(-1), half):
        context.found_finite(tensor)
    return Whole(half.view(tensor.shape))
