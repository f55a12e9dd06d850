"""What casts to half precision share: the exchange, and what is sent.

Asks: the mean of the tensor in the narrow type, 2 n bytes. The tensors of a batch are averaged as one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from dgc_repro.checked import checked
from dgc_repro.compressor.explained import explained_of_each
from dgc_repro.compressor.interface import Compressor, Context, Step
from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.narrow import narrow, widen
from dgc_repro.payload import Halves

if TYPE_CHECKING:
    from dgc_repro.exchange.world import World


@checked
class Cast(Compressor):
    """Casts, averages in the narrow type, and casts back. Nothing to set, nothing to keep."""

    dtype: ClassVar[torch.dtype]

    def step(self, xs: Sequence[Batch], out: Batch, world: World, context: Context) -> Step:
        sent = [self.cast(x, context.at(worker)) for worker, x in enumerate(xs)]
        first = sent[0].values
        mean = context.scratch("mean", first.numel(), first.dtype, first.device)
        yield world.mean([one.values for one in sent], mean)
        widen(mean, out, 1.0, accumulate=False, saturate=True)
        return sent

    def energies(self, batch: Batch, context: Context) -> Tensor:
        return explained_of_each(batch, self.cast(batch, context.within("energy")), context)

    def cast(self, batch: Batch, context: Context) -> Halves:
        """The tensors in the narrow type, as they are sent."""
        values = context.scratch("half", sum(batch.sizes), self.dtype, batch.device)
        narrow(batch, values)
        return Halves(values)
