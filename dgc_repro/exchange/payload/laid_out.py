"""What payloads of a batch share whose parts have a fixed size: they lie in one buffer, by a `Layout`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from dgc_repro.exchange.payload.interface import BatchPayload
from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.layout import Kind, Layout


@dataclass(frozen=True, slots=True)
class LaidOut(BatchPayload):
    """``layout``: where the parts of each tensor lie in the buffer."""

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
        bits = self.bits_per_value
        return [(self.layout.bytes_of(i), n * bits / 32) for i, n in enumerate(self.layout.sizes)]

    @property
    def num_floats(self) -> float:
        return sum(self.layout.sizes) * self.bits_per_value / 32

    def like(self, parts: Sequence[Tensor]) -> Self:
        if [part.numel() for part in parts] != [part.numel() for part in self.parts]:
            kind = type(self).__name__.lower()
            raise ValueError(f"{kind} of another size than this worker's: send them with `Gather`")
        return replace(self, buffer=parts[0].view(torch.uint8))

    def dense(self) -> list[Tensor]:
        """f32[n] of each tensor. For tests and references."""
        values = [torch.empty(n, device=self.buffer.device) for n in self.layout.sizes]
        self.copy_to_(Batch(self.names, values), 1.0)
        return values

    @property
    @abstractmethod
    def bits_per_value(self) -> int:
        """Without scales and levels."""
