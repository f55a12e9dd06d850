"""The largest entries of each chunk of each tensor as a payload (kernel/chunks.py).

Of each tensor: the levels of its codes (float32) or its values (float32), places within chunks, codes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dgc_repro.kernel import chunks, cosines
from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.chunks import ChunkLayout
from dgc_repro.payload.interface import BatchPayload


@dataclass(frozen=True, slots=True)
class Chunked(BatchPayload):
    """Entries of chunks that are stretches of a tensor. ``work``: f32[layout.work_size], in which chunks
    are decoded; it is overwritten, and may serve several payloads."""

    layout: ChunkLayout
    work: Tensor

    def write(self, places: Tensor, values: Tensor) -> None:
        """Entries as they travel, tensor after tensor. places: i64, within chunks; values: f32, or i64 codes
        whose levels are written by `write_levels`."""
        constants = self.layout.on(self.buffer.device)
        for packing in constants.places:
            packing.write(places, self.buffer)
        if constants.codes is None:
            self.buffer.view(torch.float32)[constants.values] = values
        else:
            constants.codes.write(values, self.buffer)

    def write_levels(self, levels: Tensor) -> None:
        """What codes mean. levels: f32[tensors, 2^bits]; those of a tensor without entries are not sent."""
        constants = self.layout.on(self.buffer.device)
        self.buffer.view(torch.float32)[constants.table] = levels.view(-1)[constants.levels]

    def entries(self) -> tuple[Tensor, Tensor]:
        """Where each entry stands in the buffer of rows, and its value: i64, f32."""
        constants = self.layout.on(self.buffer.device)
        places = torch.empty_like(constants.first)
        for packing in constants.places:
            packing.read(self.buffer, places)
        floats = self.buffer.view(torch.float32)
        if constants.codes is None:
            return constants.first + places, floats[constants.values]
        codes = torch.empty_like(places)
        constants.codes.read(self.buffer, codes)
        return constants.first + places, floats[constants.level_of_zero + codes]

    def add_sum_to_(
        self, others: Sequence[Chunked], batch: Batch, weight: float, *, accumulate: bool
    ) -> None:
        self.work.zero_()
        for one in (self, *others):
            places, values = one.entries()
            # Not index_add_: atomic additions of a GPU take denormal numbers for 0. Places are distinct.
            self.work.index_copy_(0, places, self.work[places] + values * weight)
        self._spread(batch, accumulate=accumulate)

    def _spread(self, batch: Batch, *, accumulate: bool) -> None:
        """tensors = or += the chunks in ``work``."""
        chunks.copy_out(self.work, batch, self.layout, accumulate=accumulate)

    def _zero_at(self, batch: Batch) -> None:
        places, _ = self.entries()
        chunks.copy_in(batch, self.work, self.layout)
        self.work.index_fill_(0, places, 0.0)
        chunks.copy_out(self.work, batch, self.layout, accumulate=False)


@dataclass(frozen=True, slots=True)
class Cosines(Chunked):
    """Entries of the cosine transforms of chunks (kernel/cosines.py). They have no places in the tensor."""

    def _spread(self, batch: Batch, *, accumulate: bool) -> None:
        cosines.inverse(self.work, batch, self.layout, accumulate=accumulate)

    def _zero_at(self, batch: Batch) -> None: ...
