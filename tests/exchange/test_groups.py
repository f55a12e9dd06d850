"""Process groups of an exchange's own, where the model's group leaves ranks of the world out.

torch names a group after its ranks and the number of groups made before, which the ranks that a group leaves
out do not count: without care a later group has several names, and its ranks wait for each other for ever."""

from __future__ import annotations

import group_loops
import pytest
from processes import World


def test_a_group_of_some_ranks_trains_and_all_can_make_another(three_workers: World) -> None:
    first, second, third = three_workers(group_loops.train, [1, 2])
    assert second[0] == third[0]
    assert len(second[0]) == 4
    assert first == ([], [3])
    assert second[1] == third[1] == [3]


def test_a_mesh_of_some_ranks_trains_where_torch_does_not_split(three_workers: World) -> None:
    assert three_workers(group_loops.sharded_in_part, False) == ["nothingnothing"] * 2 + ["nothing"]
    first, second, third = three_workers(group_loops.sharded_in_part, True)
    assert first == second
    assert first.startswith(
        "UserError: mesh: it has 2 of the world's 3 ranks, and the world was made with "
    )
    assert first.endswith("nothing")
    assert third == "nothing"


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
    assert two_workers(group_loops.patience_of_groups) == [[600, 1234]] * 2
