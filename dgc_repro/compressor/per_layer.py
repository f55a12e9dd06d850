"""Per-layer choice: some tensors go as they are, all others through the wrapped compressor.

Papers that leave biases and normalization layers uncompressed (PowerSGD: "vector-shaped
parameters") do it with this wrapper; those that compress every tensor (GraVAC) go without.
Asks: the mean of the exempt tensors, and what the wrapped compressor asks for the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated

import torch
from torch import Tensor

from dgc_repro.checked import checked, within
from dgc_repro.compressor.interface import (
    Compressor,
    Context,
    Step,
    Wrapper,
)
from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.cached import cached

if TYPE_CHECKING:
    from dgc_repro.exchange.world import World

VECTORS = "vectors"


@checked
class PerLayer(Wrapper):
    """Some tensors go uncompressed. ``dense``: what goes uncompressed, each entry ``vectors`` (tensors of
    at most one dimension) or a pattern on parameter names such as ``fc.*``; ``smaller_than``: tensors with
    fewer values go uncompressed too."""

    inner: Compressor
    dense: Annotated[Sequence[str], "`vectors` or patterns, as ['vectors', 'fc.*']"] = (VECTORS,)
    smaller_than: Annotated[int, within(0, name="a number of values")] = 0

    def exempt(self, tensor: Tensor, name: str) -> bool:
        """Whether this tensor goes dense."""
        dense, _ = _parts(tuple(self.dense), self.smaller_than, (name,), (tensor.shape,))
        return bool(dense)


def _is_exempt(dense: Sequence[str], smaller_than: int, shape: torch.Size) -> bool:
    return (len(shape) <= 1 and VECTORS in dense) or shape.numel() < smaller_than


@cached(4096)
def _parts(
    dense: tuple[str, ...],
    smaller_than: int,
    names: tuple[str, ...],
    shapes: tuple[torch.Size, ...],
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The places of the tensors that go dense, and of the others."""
    patterns = [entry for entry in dense if entry != VECTORS]
    exempt = [
        _is_exempt(dense, smaller_than, shape)
        or any(fnmatchcase(name, pattern) for pattern in patterns)
        for shape, name in zip(shapes, names, strict=True)
    ]
    places = range(len(names))
    return tuple(i for i in places if exempt[i]), tuple(i for i in places if not exempt[i])


@dataclass(frozen=True)
class Rest(Wrapper):
    """What a `PerLayer` wraps, for the tensors that it does not exempt."""

    inner: Compressor

    def step(self, xs: Sequence[Batch], out: Batch, world: World, context: Context) -> Step:
        return (yield from self.inner.step(xs, out, world, context.within("per_layer")))
