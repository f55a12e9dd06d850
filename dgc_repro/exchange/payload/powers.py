"""Signed powers of two as a payload: nine bits a value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dgc_repro.exchange.payload.laid_out import LaidOut
from dgc_repro.kernel import powers as kernels
from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.powers import PowerLayout


@dataclass(frozen=True, slots=True)
class Powers(LaidOut):
    """Values +-2^(e - 127), 0 where e = 0, and +-infinity where e = 255: signs, then exponents."""

    layout: PowerLayout

    @property
    def bits_per_value(self) -> int:
        return 9

    def add_sum_to_(
        self, others: Sequence[Powers], batch: Batch, weight: float, *, accumulate: bool
    ) -> None:
        buffers = [self.buffer, *(powers.buffer for powers in others)]
        kernels.decode(batch, self.layout, buffers, weight, accumulate=accumulate)
