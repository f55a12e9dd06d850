"""Workers that all live in this process: the wire that moves nothing.

The driver has already combined what the workers hosted here ask for, so that one process hosting
all of them needs no communication at all. The ledger counts as if it had.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dgc_repro.exchange.wire import Pending, RanksDisagree, Sizes


class SimulatedWire:
    """``world_size`` workers in one process; the same answers as real processes would give."""

    def __init__(self, world_size: int, device: torch.device | None = None) -> None:
        if world_size < 1:
            raise ValueError(f"workers: a whole number from 1, got {world_size}")
        self.world_size = world_size
        self.local_workers = world_size
        self.rank = 0
        self.device = device or torch.device("cpu")

    def combine_(self, how: str, flat: Tensor) -> Pending:
        return Pending()

    def collect(
        self, flats: Sequence[Tensor], slot: str, sizes: Sequence[Sizes] | None = None
    ) -> tuple[list[list[Tensor]], Pending]:
        if sizes is None:
            assert len(flats) == self.world_size
            return [list(flats)] * self.world_size, Pending()
        sent = [flat.split(size.to) for flat, size in zip(flats, sizes, strict=True)]
        for worker, size in enumerate(sizes):
            for source, expected in enumerate(size.come):
                if sizes[source].to[worker] != expected:
                    raise RanksDisagree(
                        f"worker {worker} waits for {expected} bytes from worker {source}, "
                        f"which sends it {sizes[source].to[worker]}"
                    )
        return [[row[worker] for row in sent] for worker in range(self.world_size)], Pending()

    def barrier(self) -> None:
        return
