"""Process groups of some ranks."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist


def splits() -> bool:
    """Whether torch makes a group by splitting the communicator of the world, in which all ranks of the world
    have to take part (nccl after ``init_process_group(device_id=)``)."""
    return getattr(dist.group.WORLD, "bound_device_id", None) is not None


def group_of_some(
    ranks: list[int],
    within: Sequence[dist.ProcessGroup],
    device: torch.device,
) -> dist.ProcessGroup:
    """A new process group of some ranks of the world. They call this together; the other ranks do not.

    ``within``: the group of just these ranks, or those of a mesh's dimensions, by which all of them reach
    each other. ``device``: of the small allreduce by which they agree on a number. Where torch splits, the
    only group in ``within`` is split."""
    number = torch.tensor([secrets.randbits(62)], device=device)
    for group in within:
        dist.all_reduce(number, dist.ReduceOp.MAX, group=group)
    made: Any
    with _named(f"dgc_repro-{int(number)}"):
        if splits():
            (parent,) = within
            made = dist.split_group(parent, [list(range(parent.size()))])
        else:
            backend = dist.get_backend(within[0])
            made = dist.new_group(ranks, backend=backend, use_local_synchronization=True)
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
