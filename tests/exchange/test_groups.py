"""Process groups of an exchange's own, where the model's group leaves ranks of the world out.

torch names a group after its ranks and the number of groups made before, which the ranks that a group leaves
out do not count: without care a later group has several names, and its ranks wait for each other for ever."""

from __future__ import annotations

import inspect

import group_loops
import pytest
import torch.distributed as dist
from processes import World

PAIR, REST, OTHER_PAIR = [0, 1], [2], [1, 2]


SPLITS_GLOO = "backend" in inspect.signature(dist.split_group).parameters  # since torch 2.13
BOUND = pytest.param(
    True,
    id="init_process_group(device_id=)",
    marks=pytest.mark.skipif(not SPLITS_GLOO, reason="this torch splits groups of nccl alone"),
)


@pytest.mark.parametrize("is_bound", [pytest.param(False, id=""), BOUND])
def test_a_group_of_some_ranks_trains_and_all_can_make_another(
    three_workers: World, is_bound: bool
) -> None:
    first, second, third = three_workers(group_loops.in_groups, [PAIR, REST], is_bound)
    assert first[str(PAIR)] == second[str(PAIR)]
    assert str(REST) not in third
    assert first["sum"] == second["sum"] == third["sum"] == [3]


def test_a_rank_may_be_in_several_groups(three_workers: World) -> None:
    first, second, third = three_workers(group_loops.in_groups, [PAIR, OTHER_PAIR], False)
    assert first[str(PAIR)] == second[str(PAIR)]
    assert second[str(OTHER_PAIR)] == third[str(OTHER_PAIR)]
    assert first["sum"] == [3]


def test_a_mesh_of_some_ranks_trains_where_torch_does_not_split(three_workers: World) -> None:
    assert three_workers(group_loops.sharded_in_part, False) == ["nothingnothing"] * 2 + ["nothing"]
    first, second, third = three_workers(group_loops.sharded_in_part, True)
    assert first == second
    assert first.startswith(
        "UserError: mesh: it has 2 of the world's 3 ranks, and the world was made with "
    )
    assert first.endswith("nothing")
    assert third == "nothing"


@pytest.mark.parametrize("static", [False, True])
def test_ranks_begin_the_collectives_of_two_groups_in_one_order(
    two_workers: World, static: bool
) -> None:
    """DDP sends its bitmap of used parameters after the buckets; with a static graph once, before them."""
    first, second = two_workers(group_loops.order_of_two_groups, static)
    assert first == second
    steps = " ".join(map(str, first)).split(" -1")
    assert {*steps[0].split()} == ({"1"} if static else {"0"})
    assert {*" ".join(steps[1:]).split()} == {"0"}


@pytest.mark.parametrize("again", [False, True])
def test_a_mistake_of_one_rank_is_told_to_its_group_at_once(
    four_workers: World, again: bool
) -> None:
    told = four_workers(group_loops.mistaken_in_a_pair, again)
    problem = "UserError: model: attach takes a DistributedDataParallel model, or one that fully_shard has "
    problem += "sharded, got Layers; wrap it first"
    assert [said for said, _, _ in told] == [f"{problem} (rank 1)", problem, "nothing", "nothing"]
    assert max(seconds for _, seconds, _ in told) < 10
    assert [after for _, _, after in told] == ["nothing"] * 4


def test_attach_waits_as_long_as_the_process_group(two_workers: World) -> None:
    assert two_workers(group_loops.patience_of_groups) == [[600, 1234, 5]] * 2
