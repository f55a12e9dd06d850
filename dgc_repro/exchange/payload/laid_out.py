"""What payloads of a batch share whose parts have a fixed size: they lie in one buffer, by a `Layout`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from dgc_repro.exchange.payload.interface import BatchPayload
from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.layout import Layout


@dataclass(frozen=True, slots=True)
class LaidOut(BatchPayload):
    """``layout``: where the parts of each tensor lie in the buffer."""

    names: tuple[str, ...]
    layout: Layout
    buffer: Tensor  # u8[layout.size]

    @property
    def parts(self) -> tuple[Tensor, ...]:
        """The buffer; of one tensor its parts, so that tensors that are sent one by one take no more bytes
        than together."""
        return tuple(self.of(0)) if len(self.names) == 1 else (self.buffer,)

    def of(self, tensor: int) -> list[Tensor]:
        """The parts of one tensor."""
        return self.layout.views(self.buffer, tensor)

    def bytes_by_tensor(self) -> list[tuple[str, int]]:
        return [(name, self.layout.bytes_of(i)) for i, name in enumerate(self.names)]

    def like(self, parts: Sequence[Tensor]) -> Self:
        if [part.numel() for part in parts] != [part.numel() for part in self.parts]:
            kind = type(self).__name__.lower()
            raise ValueError(f"{kind} of another size than this worker's: send them with `Gather`")
        return replace(self, buffer=_side_by_side(parts))

    def dense(self) -> list[Tensor]:
        """f32[n] of each tensor. For tests and references."""
        values = [torch.empty(n, device=self.buffer.device) for n in self.sizes]
        if values:
            self.copy_to_(Batch(self.names, values), 1.0)
        return values

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many values each tensor has."""
        raise NotImplementedError


def _side_by_side(parts: Sequence[Tensor]) -> Tensor:
    """The parts as one stretch of bytes that begins where a float32 may: as they lie, if they do so."""
    pieces = [part.view(torch.uint8) for part in parts]
    storage, first = pieces[0].untyped_storage().data_ptr(), pieces[0].storage_offset()
    end = first
    for piece in pieces:
        follows = piece.storage_offset() == end and piece.untyped_storage().data_ptr() == storage
        if first % 4 or not follows:
            return torch.cat(pieces)
        end += piece.numel()
    return pieces[0].as_strided((end - first,), (1,))
