"""The wire between real processes: gloo on CPUs, nccl on GPUs.

gloo lacks some dtypes, and an unsupported one can hang a job for minutes: gathers and broadcasts
move uint8 views whatever is inside. Collectives are issued in one order from one thread.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dgc_repro.exchange.wire import Pending, Sizes
from dgc_repro.kernel.workspace import Workspace

PIECE_BYTES = 1 << 20
"""A larger gather on gloo goes in pieces. gloo announces that it is ready to receive on the same connection
on which it sends: behind a message that is on its way already, so that with the whole payload in two
messages the rank that comes second sends first, and the other waits for half of it (5.7 MB at
100 Mbit/s, 2 workers: 720 ms, in pieces 490, the link's own 474)."""


class ProcessGroupWire:
    """One worker here, the others in the processes of ``group`` (default: the world)."""

    local_workers = 1

    def __init__(self, device: torch.device, group: dist.ProcessGroup | None = None) -> None:
        self.group = group
        self.world_size = dist.get_world_size(group)
        self.rank = dist.get_rank(group)
        self.device = device
        self._buffers = Workspace()
        self._in_pieces = device.type == "cpu" and dist.get_backend(group) == "gloo"

    def sum_(self, flat: Tensor) -> Pending:
        return _work(dist.all_reduce(flat, dist.ReduceOp.SUM, group=self.group, async_op=True))

    def max_(self, flat: Tensor) -> Pending:
        return _work(dist.all_reduce(flat, dist.ReduceOp.MAX, group=self.group, async_op=True))

    def broadcast_(self, flat: Tensor) -> Pending:
        return _work(
            dist.broadcast(
                flat.view(torch.uint8),
                group_src=0,
                group=self.group or dist.group.WORLD,
                async_op=True,
            )
        )

    def gather(self, flats: Sequence[Tensor], slot: str) -> tuple[list[Tensor], Pending]:
        (own,) = flats
        assert own.dtype == torch.uint8
        size = own.numel()
        rows = self._buffers.scratch((slot,), self.world_size * size, torch.uint8, self.device)
        # Slices, not rows of a matrix: the rows of an empty matrix begin at odd, unaligned places.
        everybody = [rows[rank * size : (rank + 1) * size] for rank in range(self.world_size)]
        if self._in_pieces and size > PIECE_BYTES and self.world_size > 1:
            return everybody, self._gather_in_pieces(everybody, own)
        work = dist.all_gather_into_tensor(rows, own, group=self.group, async_op=True)
        return everybody, _work(work)

    def _gather_in_pieces(self, everybody: Sequence[Tensor], own: Tensor) -> Pending:
        """As many collectives as there are pieces, the same on all ranks: payloads are of one size."""
        works = []
        for begin in range(0, own.numel(), PIECE_BYTES):
            here = slice(begin, begin + PIECE_BYTES)
            pieces = [row[here] for row in everybody]
            works.append(_work(dist.all_gather(pieces, own[here], group=self.group, async_op=True)))
        return _All(works)

    def all_to_all(
        self, flats: Sequence[Tensor], sizes: Sequence[Sizes], slot: str
    ) -> tuple[list[list[Tensor]], Pending]:
        (own,), (size,) = flats, sizes
        assert own.dtype == torch.uint8
        rows = self._buffers.scratch((slot,), sum(size.come), torch.uint8, self.device)
        work = dist.all_to_all_single(
            rows, own, size.come, size.to, group=self.group, async_op=True
        )
        return [list(rows.split(size.come))], _work(work)

    def barrier(self) -> None:
        dist.barrier(group=self.group)


class _All:
    """Several collectives that are waited for as one."""

    def __init__(self, pending: Sequence[Pending]) -> None:
        self._pending = pending

    def is_completed(self) -> bool:
        return all(one.is_completed() for one in self._pending)

    def wait(self) -> None:
        for one in self._pending:
            one.wait()


def node_groups(
    device: torch.device, node_size: int, timeout_seconds: float
) -> tuple[ProcessGroupWire, ProcessGroupWire | None]:
    """The wire inside this worker's node of ``node_size`` consecutive ranks, and, for the first of
    them, the wire between nodes. All ranks call it together."""
    world, rank = dist.get_world_size(), dist.get_rank()
    timeout = datetime.timedelta(seconds=timeout_seconds)
    inside = None
    for first in range(0, world, node_size):
        group: Any = dist.new_group(list(range(first, first + node_size)), timeout)
        if first <= rank < first + node_size:
            inside = ProcessGroupWire(device, group)
    leaders: Any = dist.new_group(list(range(0, world, node_size)), timeout)
    assert inside is not None, "the workers are a multiple of the node's size"
    return inside, ProcessGroupWire(device, leaders) if rank % node_size == 0 else None


def _work(work: dist.Work | None) -> Pending:
    """What torch returns for a collective of a group that this process is in."""
    assert work is not None
    return work
