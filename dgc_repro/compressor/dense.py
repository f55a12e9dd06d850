"""No compression: the gradient itself, averaged by one allreduce.

Asks: `Mean` of the tensor, 4 n bytes. Own = sent, so an error feedback around it keeps nothing,
and rung 0 of a ladder is this.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from dgc_repro.compressor.interface import Context, Measured, State, joined
from dgc_repro.kernel import batch as kernels
from dgc_repro.kernel.batch import Batch
from dgc_repro.payload import Wholes
from dgc_repro.payload.requests import Exchange, Mean, Outcome, together


@dataclass(frozen=True)
class Dense(Measured):
    """Send everything. Tensors of a batch may be of any float types."""

    def init(self, tensor: Tensor) -> State:
        return {}

    def exchange_batch(self, batch: Batch, states: Sequence[State], context: Context) -> Exchange:
        dtypes = {tensor.dtype: None for tensor in batch.tensors}
        if len(dtypes) > 1:
            by_dtype = [
                tuple(i for i, tensor in enumerate(batch.tensors) if tensor.dtype == dtype)
                for dtype in dtypes
            ]
            parts = {
                places: self.exchange_batch(
                    batch.part(places), [states[i] for i in places], context
                )
                for places in by_dtype
            }
            return joined((yield from together(parts)))
        means = yield Mean(batch, in_place=not context.own_is_read)
        return Outcome(means, Wholes(batch), states)

    def energies(self, batch: Batch, context: Context) -> Tensor:
        return kernels.energies(batch)
