"""Payloads that code every value of a tensor: packed codes, signs, powers of two, narrow floats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from dgc_repro.kernel import signs
from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.codes import CodeLayouts
from dgc_repro.kernel.floats import FloatLayout
from dgc_repro.kernel.powers import PowerLayout
from dgc_repro.kernel.signs import SignLayout
from dgc_repro.payload.interface import BatchPayload


@dataclass(frozen=True, slots=True)
class Coded(BatchPayload):
    """``layout``: where the parts of each tensor lie in the buffer, and how they are decoded."""

    layout: CodeLayouts | SignLayout | PowerLayout | FloatLayout

    def add_sum_to_(
        self, others: Sequence[Self], batch: Batch, weight: float, *, accumulate: bool
    ) -> None:
        buffers = [self.buffer, *(other.buffer for other in others)]  # `like` gives them one layout
        self.layout.decode(batch, buffers, weight, accumulate=accumulate)


@dataclass(frozen=True, slots=True)
class Codes(Coded):
    """b-bit codes of a symmetric linear quantizer: value = (code - Q) * scale, Q = 2^(b-1) - 1."""

    layout: CodeLayouts

    def levels(self) -> list[Tensor]:
        """code - Q of each value: i64[n] of each tensor."""
        plain = replace(self, buffer=self.buffer.clone())
        for i in range(len(self.names)):
            self.layout.view(plain.buffer, i, 0).fill_(1.0)
        values = [torch.empty(n, device=self.buffer.device) for n in self.layout.sizes]
        plain.copy_to_(Batch(self.names, values), 1.0)
        return [tensor.long() for tensor in values]


@dataclass(frozen=True, slots=True)
class Signs(Coded):
    """One bit a value, and what the bits of each tensor mean."""

    layout: SignLayout


@dataclass(frozen=True, slots=True)
class Powers(Coded):
    """Values +-2^(e - 127), 0 where e = 0, and +-infinity where e = 255: signs, then exponents."""

    layout: PowerLayout


@dataclass(frozen=True, slots=True)
class Floats(Coded):
    """Narrow floating-point numbers, and scales of tensors or blocks."""

    layout: FloatLayout


def vote(payloads: Sequence[Signs], batch: Batch) -> None:
    """batch = the majority's sign of every value, 0 at a tie, in one pass over the packed words."""
    signs.vote(batch, payloads[0].layout, [payload.buffer for payload in payloads])
