"""Packed codes as a payload."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from dgc_repro.exchange.payload.laid_out import LaidOut
from dgc_repro.kernel import codes as kernels
from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.codes import CodeLayout, CodeLayouts

__all__ = ["CodeLayout", "CodeLayouts", "Codes"]


@dataclass(frozen=True, slots=True)
class Codes(LaidOut):
    """b-bit codes of a symmetric linear quantizer: value = (code - Q) * scale, Q = 2^(b-1) - 1."""

    layout: CodeLayouts

    @property
    def bits_per_value(self) -> int:
        return self.layout.bits

    def add_sum_to_(
        self, others: Sequence[Codes], batch: Batch, weight: float, *, accumulate: bool
    ) -> None:
        buffers = [self.buffer, *(codes.buffer for codes in others)]  # `like` gives them one layout
        kernels.dequantize(batch, self.layout, buffers, weight, accumulate=accumulate)

    def levels(self) -> list[Tensor]:
        """code - Q of each value: i64[n] of each tensor."""
        plain = Codes(self.names, self.layout, self.buffer.clone())
        for i in range(len(self.names)):
            plain.of(i)[0].fill_(1.0)
        return [values.long() for values in plain.dense()]
