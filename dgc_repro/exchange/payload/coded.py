"""Payloads that code every value of a tensor: packed codes, signs, powers of two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from dgc_repro.exchange.payload.interface import BatchPayload
from dgc_repro.kernel import signs
from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.codes import CodeLayouts
from dgc_repro.kernel.layout import Kind, Layout
from dgc_repro.kernel.powers import PowerLayout
from dgc_repro.kernel.signs import SignLayout


@dataclass(frozen=True, slots=True)
class Coded(BatchPayload):
    """``layout``: where the parts of each tensor lie in the buffer, and how they are decoded."""

    names: tuple[str, ...]
    layout: Layout
    buffer: Tensor  # u8[layout.size]
    unit: ClassVar[torch.dtype] = torch.float32

    @property
    def num_bytes(self) -> int:
        return self.layout.end

    def of(self, tensor: int) -> list[Tensor]:
        """The parts of one tensor."""
        return self.layout.views(self.buffer, tensor)

    @property
    def tensor_kinds(self) -> Sequence[tuple[Kind, ...]]:
        return self.layout.kinds

    def by_tensor(self) -> list[tuple[int, float]]:
        layout = self.layout
        return [(layout.bytes_of(i), n * layout.bits / 32) for i, n in enumerate(layout.sizes)]

    @property
    def num_floats(self) -> float:
        return sum(self.layout.sizes) * self.layout.bits / 32

    def like(self, parts: Sequence[Tensor]) -> Self:
        if [part.numel() for part in parts] != [part.numel() for part in self.parts]:
            kind = type(self).__name__.lower()
            raise ValueError(f"{kind} of another size than this worker's: send them with `Gather`")
        return replace(self, buffer=parts[0].view(torch.uint8))

    def add_sum_to_(
        self, others: Sequence[Self], batch: Batch, weight: float, *, accumulate: bool
    ) -> None:
        buffers = [self.buffer, *(other.buffer for other in others)]  # `like` gives them one layout
        self.layout.decode(batch, buffers, weight, accumulate=accumulate)

    def dense(self) -> list[Tensor]:
        """f32[n] of each tensor. For tests and references."""
        values = [torch.empty(n, device=self.buffer.device) for n in self.layout.sizes]
        self.copy_to_(Batch(self.names, values), 1.0)
        return values


@dataclass(frozen=True, slots=True)
class Codes(Coded):
    """b-bit codes of a symmetric linear quantizer: value = (code - Q) * scale, Q = 2^(b-1) - 1."""

    layout: CodeLayouts

    def levels(self) -> list[Tensor]:
        """code - Q of each value: i64[n] of each tensor."""
        plain = replace(self, buffer=self.buffer.clone())
        for i in range(len(self.names)):
            plain.of(i)[0].fill_(1.0)
        return [values.long() for values in plain.dense()]


@dataclass(frozen=True, slots=True)
class Signs(Coded):
    """One bit a value, and what the bits of each tensor mean."""

    layout: SignLayout


@dataclass(frozen=True, slots=True)
class Powers(Coded):
    """Values +-2^(e - 127), 0 where e = 0, and +-infinity where e = 255: signs, then exponents."""

    layout: PowerLayout


def vote(payloads: Sequence[Signs], batch: Batch) -> None:
    """batch = the majority's sign of every value, 0 at a tie, in one pass over the packed words."""
    signs.vote(batch, payloads[0].layout, [payload.buffer for payload in payloads])
