"""Packed signs as a payload: one bit a value, and what the bits mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dgc_repro.exchange.payload.laid_out import LaidOut
from dgc_repro.kernel import signs as kernels
from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.signs import SignLayout


@dataclass(frozen=True, slots=True)
class Signs(LaidOut):
    """One bit a value, after what the bits of the tensor mean (kernel/signs.py's `SignLayout`)."""

    layout: SignLayout

    @property
    def bits_per_value(self) -> int:
        return 1

    def add_sum_to_(
        self, others: Sequence[Signs], batch: Batch, weight: float, *, accumulate: bool
    ) -> None:
        buffers = [self.buffer, *(signs.buffer for signs in others)]
        kernels.decode(batch, self.layout, buffers, weight, accumulate=accumulate)


def vote(payloads: Sequence[Signs], batch: Batch) -> None:
    """batch = the majority's sign of every value, 0 at a tie, in one pass over the packed words."""
    kernels.vote(batch, payloads[0].layout, [payload.buffer for payload in payloads])
