"""Process groups of an exchange's own, where the model's group leaves ranks of the world out.

torch names a group after its ranks and the number of groups made before, which the ranks that a group leaves
out do not count: without care a later group has several names, and its ranks wait for each other for ever."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from itertools import product
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from jobs import raised
from loops import EF4, Layers, backward
from processes import World
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from dgc_repro import FP16, attach
from dgc_repro.exchange import door

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


def train(ranks: Ranks) -> tuple[list[float], list[float]]:
    """The first values of the parameters of a model that these ranks train, during and after backward; a sum
    over the world afterwards."""
    group, found = dist.new_group(ranks), list[float]()
    of_group = list(product((EF4, FP16()), (True, False)))
    for method, overlap in of_group if dist.get_rank() in ranks else ():
        torch.manual_seed(0)
        model = DistributedDataParallel(Layers(torch.float32), process_group=group)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        exchange = attach(model, method, overlap=overlap)
        backward(model, [*ranks].index(dist.get_rank()))
        optimizer.step()
        exchange.detach()
        found += [float(p.flatten()[0]) for p in model.parameters()]
    return found, sum_over_the_world()


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


def step_of_nodes(model: Any, mesh: DeviceMesh) -> None:
    exchange = attach(model, EF4, mesh=mesh, dim="node")
    backward(model, dist.get_rank())
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
    with patch.object(door, "patience", lambda _: 20.0):
        said = raised(lambda: attach(plain if rank == 1 else model, EF4).detach())
        took = time.monotonic() - begun
        return said, took, raised(lambda: attach(model, EF4).detach())


def patience_of_groups() -> list[float]:
    """How long `attach` waits in groups of 10 and of 1234 seconds."""
    found = []
    for seconds in (10, 1234):
        group = dist.new_group(timeout=timedelta(seconds=seconds))
        model = DistributedDataParallel(Layers(torch.float32), process_group=group)
        exchange = attach(model, EF4)
        found.append(exchange._rendezvous.seconds)
        exchange.detach()
    return found


def sum_over_the_world() -> list[float]:
    """A sum over a new group of all ranks."""
    everybody, one = dist.new_group(), torch.ones(1)
    dist.all_reduce(one, group=everybody)
    dist.destroy_process_group(everybody)
    return one.tolist()  # type: ignore[no-any-return]


def test_a_group_of_some_ranks_trains_as_a_world(two_workers: World, three_workers: World) -> None:
    first, second, third = three_workers(train, [1, 2])
    assert second[0] == third[0] == two_workers(train, [0, 1])[0][0]
    assert len(second[0]) == 8
    assert first == ([], [3])
    assert second[1] == third[1] == [3]


def test_a_mesh_of_some_ranks_trains_where_torch_does_not_split(three_workers: World) -> None:
    assert three_workers(sharded_in_part, False) == ["nothingnothing"] * 2 + ["nothing"]
    first, second, third = three_workers(sharded_in_part, True)
    assert first == second
    assert first.startswith(
        "UserError: mesh: it has 2 of the world's 3 ranks, and the world was made with "
    )
    assert first.endswith("nothing")
    assert third == "nothing"


@pytest.mark.parametrize("again", [False, True])
def test_a_mistake_is_told_to_its_group_at_once(four_workers: World, again: bool) -> None:
    told = four_workers(mistaken_in_a_pair, again)
    problem = "UserError: model: attach takes a DistributedDataParallel model, or one that fully_shard has "
    problem += "sharded, got Layers; wrap it first"
    assert [said for said, _, _ in told] == [f"{problem} (rank 1)", problem, "nothing", "nothing"]
    assert max(seconds for _, seconds, _ in told) < 10
    assert [after for _, _, after in told] == ["nothing"] * 4


def test_attach_waits_as_long_as_the_process_group(two_workers: World) -> None:
    assert two_workers(patience_of_groups) == [[600, 1234]] * 2
