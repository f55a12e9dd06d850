"""Tensors side by side in one flat vector: what a method keeps of the tensors that it serves."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dgc_repro.kernel.batch import Batch

MOST_PARTS = 256
"""Buckets and rungs of a model are few; sets of parameters that are present may be many."""


class Segments(Batch):
    """A batch whose tensors lie side by side in ``flat``, in the order of its names.

    Kernels get addresses and sizes, so that some of the tensors (those of a bucket or of a rung) are a batch
    too, without a copy."""

    __slots__ = ("_parts", "flat", "places")

    def __init__(
        self, names: tuple[str, ...], shapes: Sequence[Sequence[int]], flat: Tensor
    ) -> None:
        """``flat``: 1-d, of as many values as the shapes have together."""
        sizes = [torch.Size(shape).numel() for shape in shapes]
        self.flat = flat
        self.places = {name: place for place, name in enumerate(names)}
        self._parts: dict[tuple[str, ...], Batch] = {}
        pieces = zip(flat.split(sizes), shapes, strict=True)
        super().__init__(names, [piece.view(torch.Size(shape)) for piece, shape in pieces])

    @classmethod
    def zeros(
        cls,
        names: tuple[str, ...],
        shapes: Sequence[Sequence[int]],
        device: torch.device,
        dtype: torch.dtype = torch.float32,
    ) -> Segments:
        """Zeros of these shapes."""
        size = sum(torch.Size(shape).numel() for shape in shapes)
        return cls(names, shapes, torch.zeros(size, dtype=dtype, device=device))

    @classmethod
    def zeros_like(cls, batch: Batch) -> Segments:
        """Float32 zeros with the names and shapes of a batch, on its device."""
        return cls.zeros(batch.names, [tensor.shape for tensor in batch.tensors], batch.device)

    def twin(self) -> Segments:
        """Others of the same names and shapes, whose values are undefined."""
        shapes = [tensor.shape for tensor in self.tensors]
        return Segments(self.names, shapes, torch.empty_like(self.flat))

    def of(self, names: tuple[str, ...]) -> Batch:
        """The tensors of these names."""
        if names == self.names:
            return self
        if names not in self._parts:
            if len(self._parts) >= MOST_PARTS:
                self._parts.clear()
            self._parts[names] = self.part([self.places[name] for name in names])
        return self._parts[names]


def numbers_of(names: tuple[str, ...]) -> Segments:
    """A number for each tensor, 0: f64 on the CPU, where the host reads it."""
    return Segments.zeros(names, [()] * len(names), torch.device("cpu"), torch.float64)
