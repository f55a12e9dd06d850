"""Loops in process groups that leave ranks of the world out, for test_groups.py."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from jobs import raised
from loops import EF4, Layers, Sided, backward
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from dgc_repro.exchange.attached import attach

Ranks = list[int]


@contextlib.contextmanager
def bound(is_bound: bool) -> Iterator[None]:
    """Inside, the world is as after ``init_process_group(device_id=)``: torch makes groups by splitting."""
    world = dist.group.WORLD
    assert world is not None
    if is_bound:
        world.bound_device_id = torch.device("cpu", 0)
    try:
        yield
    finally:
        world.bound_device_id = None


def train(group: dist.ProcessGroup) -> list[float]:
    """Train in a group, twice, with a group of the exchange's own each time. The parameters' first values."""
    torch.manual_seed(0)
    model = DistributedDataParallel(Layers(torch.float32), process_group=group)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        exchange = attach(model, EF4, overlap=True)
        optimizer.zero_grad()
        backward(model, dist.get_rank())
        exchange.step()
        optimizer.step()
        exchange.detach()
    return [float(p.flatten()[0]) for p in model.parameters()]


def in_groups(groups: list[Ranks], is_bound: bool) -> dict[str, list[float]]:
    """What each of this rank's pairs has trained, one after another, and a sum over the world afterwards."""
    rank, found = dist.get_rank(), {}
    with bound(is_bound):
        made = (
            [*map(dist.new_group, groups)]
            if not is_bound
            else [
                group if rank in ranks else None
                for group in [dist.split_group(split_ranks=groups)]
                for ranks in groups
            ]
        )
        for ranks, group in zip(groups, made, strict=True):
            if rank in ranks and len(ranks) > 1:
                found[str(ranks)] = train(group)
    return {**found, "sum": sum_over_the_world()}


def sharded_in_part(is_bound: bool) -> str:
    """What `attach` raises on this rank for a model that is sharded over two ranks of three, and what a group
    of the world that is made afterwards raises."""
    mesh = DeviceMesh("cpu", [[0], [1]], mesh_dim_names=("node", "gpu"))
    said = ""
    if dist.get_rank() < 2:
        model = fully_shard(Layers(torch.float32), mesh=mesh["gpu"])
        with bound(is_bound):
            said = raised(partial(step_of_nodes, model, mesh))
    return said + raised(sum_over_the_world)


def order_of_two_groups(static: bool) -> list[int]:
    """How many collectives DDP has begun in its own group since backward began, whenever the communication
    thread begins one in the group of the exchange; it is slow."""
    torch.manual_seed(0)
    model = DistributedDataParallel(
        Sided(), find_unused_parameters=not static, static_graph=static, bucket_cap_mb=1e-4
    )
    exchange = attach(model, EF4, overlap=True)
    own: Any = model.process_group
    wire, found, first = exchange._exchange.link.wire, list[int](), 0
    begin = wire.collect

    def collect(*arguments: Any) -> Any:
        time.sleep(0.05)
        found.append(own._get_sequence_number_for_group() - first)
        return begin(*arguments)

    for _ in range(3):
        wire.collect = begin  # type: ignore[method-assign]
        model.zero_grad()
        loss = model(torch.ones(2, 6)).sum()
        first = own._get_sequence_number_for_group()
        wire.collect = collect  # type: ignore[method-assign]
        loss.backward()
        exchange.step()
        found.append(-1)
    exchange.detach()
    return found


def step_of_nodes(model: Any, mesh: DeviceMesh) -> None:
    exchange = attach(model, EF4, mesh=mesh, dim="node")
    backward(model, dist.get_rank())
    exchange.step()
    exchange.detach()


def mistaken_in_a_pair(again: bool) -> tuple[str, float, str]:
    """In two pairs, rank 1 passes the module without DDP. What this rank is told, after how many seconds, and
    what it is told when all call `attach` once more. ``again``: all have made the mistake before."""
    rank, pairs = dist.get_rank(), ([0, 1], [2, 3])
    group = [*map(dist.new_group, pairs)][rank // 2]
    model = DistributedDataParallel(Layers(torch.float32), process_group=group)
    plain: Any = model.module
    if again:
        assert raised(lambda: attach(plain, EF4)).startswith("UserError: model: attach takes")
        if rank % 2 == 0:
            time.sleep(0.2)  # whose problem may not be taken for one of the next call
    begun = time.monotonic()
    said = raised(lambda: attach(plain if rank == 1 else model, EF4, timeout_seconds=20).detach())
    took = time.monotonic() - begun
    return said, took, raised(lambda: attach(model, EF4, timeout_seconds=20).detach())


def patience_of_groups() -> list[float]:
    """How long `attach` waits in groups of 10 and of 1234 seconds, and where it is told to wait 5."""
    groups = [dist.new_group(timeout=timedelta(seconds=seconds)) for seconds in (10, 1234, 1234)]
    found = []
    for group, given in zip(groups, ({}, {}, {"timeout_seconds": 5}), strict=True):
        model = DistributedDataParallel(Layers(torch.float32), process_group=group)
        exchange = attach(model, EF4, **given)  # type: ignore[arg-type]
        assert exchange._rendezvous is not None
        found.append(exchange._rendezvous.seconds)
        exchange.detach()
    return found


def sum_over_the_world() -> list[float]:
    """A sum over a new group of all ranks."""
    everybody, one = dist.new_group(), torch.ones(1)
    dist.all_reduce(one, group=everybody)
    dist.destroy_process_group(everybody)
    return one.tolist()  # type: ignore[no-any-return]
