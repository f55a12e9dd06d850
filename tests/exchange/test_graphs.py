"""A step in a CUDA graph is refused before anything has changed; a step in `torch.compile` trains as it is."""

from __future__ import annotations

import graph_loops
import pytest
from laws import same
from processes import World

WAYS = ["after backward", "overlap", "hook", "fsdp"]
REFUSED = "UserError: torch.cuda.graph: a step with a compressor cannot be captured, because"


@pytest.mark.parametrize("way", WAYS)
def test_a_captured_step_is_refused_and_the_next_one_is_as_without(
    two_workers: World, way: str
) -> None:
    for said, after, without in two_workers(graph_loops.captured, way):
        assert len(said) == (1 if way == "hook" else 2)
        assert all(one.startswith(REFUSED) for one in said), said
        assert same(after, without)


@pytest.mark.parametrize("way", WAYS)
def test_a_backward_that_alone_is_captured_is_refused(two_workers: World, way: str) -> None:
    for said in two_workers(graph_loops.backward_captured, way):
        assert REFUSED.removeprefix("UserError: ") in said
