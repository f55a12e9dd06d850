"""The wire between real processes: gloo on CPUs, nccl on GPUs.

gloo lacks some dtypes, and an unsupported one can hang a job for minutes: gathers and broadcasts
move uint8 views whatever is inside. Collectives are issued in one order from one thread.
"""

from __future__ import annotations

import contextlib
import datetime
import secrets
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from dgc_repro.exchange.wire import BROADCAST, SUM, Pending, Sizes, arriving
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

    def combine_(self, how: str, flat: Tensor) -> Pending:
        if how == BROADCAST:
            group = self.group or dist.group.WORLD
            return Pending(
                dist.broadcast(flat.view(torch.uint8), group_src=0, group=group, async_op=True)
            )
        operation = dist.ReduceOp.SUM if how == SUM else dist.ReduceOp.MAX
        return Pending(dist.all_reduce(flat, operation, group=self.group, async_op=True))

    def collect(
        self, flats: Sequence[Tensor], slot: str, sizes: Sequence[Sizes] | None = None
    ) -> tuple[list[list[Tensor]], Pending]:
        (own,) = flats
        assert own.dtype == torch.uint8
        come = arriving(self.world_size, own, sizes)
        flat = self._buffers.scratch((slot,), sum(come), torch.uint8, self.device)
        # Slices, not rows of a matrix: the rows of an empty matrix begin at odd, unaligned places.
        rows = list(flat.split(come))
        how: Any = {"group": self.group, "async_op": True}
        if sizes is not None:
            pending = Pending(dist.all_to_all_single(flat, own, come, sizes[0].to, **how))
        elif self._in_pieces and own.numel() > PIECE_BYTES and self.world_size > 1:
            # As many collectives as there are pieces, the same on all ranks: payloads are of one size.
            cut = [
                slice(begin, begin + PIECE_BYTES) for begin in range(0, own.numel(), PIECE_BYTES)
            ]
            pending = Pending(
                *[dist.all_gather([row[here] for row in rows], own[here], **how) for here in cut]
            )
        else:
            pending = Pending(dist.all_gather_into_tensor(flat, own, **how))
        return [rows], pending

    def barrier(self) -> None:
        dist.barrier(group=self.group)


def splits() -> bool:
    """Whether torch makes a group by splitting the communicator of the world, in which all ranks of the world
    have to take part (nccl after ``init_process_group(device_id=)``)."""
    return getattr(dist.group.WORLD, "bound_device_id", None) is not None


def group_of_some(
    ranks: list[int],
    within: Sequence[dist.ProcessGroup],
    device: torch.device,
    timeout_seconds: float | None = None,
) -> dist.ProcessGroup:
    """A new process group of some ranks of the world. They call this together; the other ranks do not.

    ``within``: the group of just these ranks, or those of a mesh's dimensions, by which all of them reach
    each other. ``device``: of the small allreduce by which they agree on a number. Where torch splits, the
    only group in ``within`` is split."""
    number = torch.tensor([secrets.randbits(62)], device=device)
    for group in within:
        dist.all_reduce(number, dist.ReduceOp.MAX, group=group)
    timeout = None if timeout_seconds is None else datetime.timedelta(seconds=timeout_seconds)
    made: Any
    with _named(f"dgc_repro-{int(number)}"):
        if splits():
            (parent,) = within
            made = dist.split_group(parent, [list(range(parent.size()))], timeout)
        else:
            backend = dist.get_backend(within[0])
            made = dist.new_group(ranks, timeout, backend, use_local_synchronization=True)
    assert isinstance(made, dist.ProcessGroup)
    return made


@contextlib.contextmanager
def _named(name: str) -> Iterator[None]:
    """Have torch give a group this name. By itself torch takes the number of groups made so far (before torch
    2.13 the number of groups of this rank), which differs between ranks where a group has left some of them
    out: the next group would then have two names, and its ranks would wait for each other for ever."""
    module: Any = dist.distributed_c10d
    before = module._process_group_name
    module._process_group_name = lambda ranks, use_hashed_name: name
    try:
        yield
    finally:
        module._process_group_name = before
