"""No compression: the gradient itself, averaged by one allreduce.

Asks: the mean of the tensor, 4 n bytes. Own = sent, so an error feedback around it keeps nothing,
and rung 0 of a ladder is this.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dgc_repro.compressor.interface import Compressor, Context, Step
from dgc_repro.kernel import batch as kernels
from dgc_repro.kernel.batch import Batch
from dgc_repro.payload import Wholes

if TYPE_CHECKING:
    from dgc_repro.exchange.world import World


@dataclass(frozen=True)
class Dense(Compressor):
    """Send everything. Tensors of a batch may be of any float types."""

    exact = True

    def step(self, xs: Sequence[Batch], out: Batch, world: World, context: Context) -> Step:
        sent = [Wholes(x) for x in xs]
        by_type: dict[torch.dtype, list[int]] = {}
        for place, tensor in enumerate(out.tensors):
            by_type.setdefault(tensor.dtype, []).append(place)
        if len(by_type) < 2:
            yield world.average(xs, out, partial(_flat, context, "dense"))
            return sent
        waits = []
        for dtype, places in by_type.items():
            buffer = partial(_flat, context, f"dense {dtype}")
            some = out.part(places)
            parts = [some if x is out else x.part(places) for x in xs]
            waits.append(world.average(parts, some, buffer))
        yield from waits
        return sent

    def energies(self, batch: Batch, context: Context) -> Tensor:
        return kernels.energies(batch)


def _flat(context: Context, label: str, size: int, like: Tensor) -> Tensor:
    return context.scratch(label, size, like.dtype, like.device)
