"""A compressor whose all-to-alls are damaged on their way.

Named in a config as ``wrapper.damaged._target_: damaged.OnItsWay``; real processes need tests/ on
PYTHONPATH.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dgc_repro.compressor.interface import Compressor, Context, Step, Wrapper
from dgc_repro.exchange.world import Wait, World
from dgc_repro.kernel.batch import Batch


@dataclass(frozen=True)
class OnItsWay(Wrapper):
    """What rank ``sender`` writes to others at step ``at_step`` (from 1) has a broken header; what it
    keeps of it is whole."""

    inner: Compressor
    at_step: int = 1
    sender: int = 1

    def step(self, xs: Sequence[Batch], out: Batch, world: World, context: Context) -> Step:
        is_here = (context.rank, context.step + 1) == (self.sender, self.at_step)
        to: Any = Breaking(world) if is_here else world
        return (yield from self.inner.step(xs, out, to, context))


class Breaking:
    """The workers, but that what they send to each other of shards begins with no header."""

    def __init__(self, world: World) -> None:
        self._world = world

    def __getattr__(self, name: str) -> Any:
        return getattr(self._world, name)

    def swap(
        self,
        rows: Sequence[Tensor],
        to: Sequence[Sequence[int]],
        come: Sequence[Sequence[int]],
        slot: tuple[Hashable, ...],
        floats: float = 0.0,
    ) -> Wait:
        """As of `World`."""
        if slot[0] == "shards":
            rows = [row.clone() for row in rows]
            for row, sizes in zip(rows, to, strict=True):
                for piece in row.split(list(sizes)):
                    if piece.numel():
                        piece[:8].view(torch.int64).fill_(12345)
        return self._world.swap(rows, to, come, slot, floats)
