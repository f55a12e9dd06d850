"""Quantized entries of randomly rotated blocks as a payload (kernel/rotate.py).

Of each tensor: the key of its rotation, where keys travel; a float32 scale a block; packed codes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from dgc_repro.kernel import codes, rotate
from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.cached import cached
from dgc_repro.kernel.rotate import RotatedLayout
from dgc_repro.kernel.workspace import at_a_time
from dgc_repro.payload.interface import BatchPayload

_LARGEST_FLOAT = torch.finfo(torch.float32).max


@dataclass(frozen=True, slots=True)
class Rotated(BatchPayload):
    """``levels``: f32[2^b], what a code stands for in a rotated block, times the block's scale. ``keys``:
    i32[tensors]; they travel where workers have keys of their own, else all know them. ``rotations``: how
    many, one after another. ``work``: f32[layout.work_size], which is overwritten by what is decoded."""

    layout: RotatedLayout
    levels: Tensor
    keys: Tensor
    rotations: int
    work: Tensor

    def like(self, row: Tensor) -> Self:
        other = BatchPayload.like(self, row)
        if not self.layout.travels:
            return other
        which, at = _key_places(self.layout, self.buffer.device)
        keys = torch.zeros_like(self.keys)
        keys[which] = other.buffer.view(torch.int32)[at]
        return replace(other, keys=keys)

    def write_keys(self) -> None:
        """Where keys travel."""
        if self.layout.travels:
            which, at = _key_places(self.layout, self.buffer.device)
            self.buffer.view(torch.int32)[at] = self.keys[which]

    def write(self, d: int, packed: Tensor, scales: Tensor) -> None:
        """Of all blocks of d values: codes (u8[rows, d b / 8]) and scales (f32[rows])."""
        layout, rows = self.layout, [one.rows for one in self.layout.groups[d]]
        torch._foreach_copy_(layout.codes(self.buffer, d), packed.split(rows))
        torch._foreach_copy_(layout.scales(self.buffer, d), scales.split(rows))

    def add_sum_to_(
        self, others: Sequence[Rotated], batch: Batch, weight: float, *, accumulate: bool
    ) -> None:
        for d, _, rows in self.layout.matrices(self.work):
            tensor, first = rotate.places(self.layout, d, rows.device)
            read = [(one.keys[tensor], *one._read(d)) for one in (self, *others)]
            step = max(1, at_a_time(rows.device) // d)
            for start in range(0, len(rows), step):
                some = slice(start, start + step)
                pieces = [(key[some], code[some], scale[some]) for key, code, scale in read]
                self._decode(pieces, first[some], weight, rows[some])
        rotate.copy_out(self.work, batch, self.layout, accumulate=accumulate)

    def _read(self, d: int) -> tuple[Tensor, Tensor]:
        """Packed codes (u8[rows, d b / 8]) and scales (f32[rows]) of all blocks of d values."""
        return (
            torch.cat(self.layout.codes(self.buffer, d)),
            torch.cat(self.layout.scales(self.buffer, d)),
        )

    def _decode(
        self,
        pieces: Sequence[tuple[Tensor, Tensor, Tensor]],
        first: Tensor,
        weight: float,
        to: Tensor,
    ) -> None:
        """to = weight * the sum of what keys, codes and scales of some blocks stand for. to: f32[rows, d].
        Where all keys are alike, the sum is rotated back, else each of its terms."""
        keys, limit = pieces[0][0], abs(weight) * _LARGEST_FLOAT
        for turn, (own_keys, packed, scales) in enumerate(pieces):
            values = self.levels[unpack(packed, self.layout.bits)]
            if self.layout.travels:
                rotate.rotate_back(values, own_keys, first, self.rotations)
            values.mul_((scales * weight)[:, None])
            if self.layout.travels:
                values.clamp_(-limit, limit)
            to.add_(values) if turn else to.copy_(values)
        if not self.layout.travels:
            rotate.rotate_back(to, keys, first, self.rotations)
            to.clamp_(-_LARGEST_FLOAT, _LARGEST_FLOAT)


def pack(code: Tensor, bits: int) -> Tensor:
    """i32[rows, d] -> u8[rows, d b / 8]: the parts of a row share bytes (kernel/codes.py)."""
    together, _ = codes.group(bits)
    parts = code.view(len(code), together, -1).unbind(1)
    return torch.cat(codes.pack(list(parts), bits), 1).to(torch.uint8)


def unpack(packed: Tensor, bits: int) -> Tensor:
    """The inverse."""
    _, size = codes.group(bits)
    planes = packed.to(torch.int32).view(len(packed), size, -1).unbind(1)
    return torch.cat(codes.unpack(list(planes), bits), 1)


@cached()
def _key_places(layout: RotatedLayout, device: torch.device) -> tuple[Tensor, Tensor]:
    """The tensors that have a key, and where it lies in an int32 view of the buffer: i64, i64."""
    which = torch.from_numpy(layout.lengths[rotate.KEYS].nonzero()[0])
    at = torch.from_numpy(layout.starts[rotate.KEYS])[which] // 4
    return which.to(device), at.to(device)
