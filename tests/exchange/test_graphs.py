"""A step in a CUDA graph is refused before anything has changed; one in `torch.compile` trains as it is."""

from __future__ import annotations

from itertools import product

import graph_loops
import pytest
from everyday import everyday
from jobs import same
from processes import World

WAYS = ["after backward", "overlap", "fsdp"]
REFUSED = "UserError: torch.cuda.graph: a step with a compressor cannot be captured, because"


@pytest.mark.parametrize("way", WAYS)
def test_a_captured_step_is_refused_and_the_next_one_is_as_without(
    two_workers: World, way: str
) -> None:
    for said, after, without in two_workers(graph_loops.captured, way):
        assert said.startswith(REFUSED), said
        assert same(after, without)


@pytest.mark.parametrize("way", WAYS)
def test_a_backward_that_alone_is_captured_is_refused(two_workers: World, way: str) -> None:
    for said in two_workers(graph_loops.backward_captured, way):
        assert REFUSED.removeprefix("UserError: ") in said


PARTS = ["layers", "model", "step"]


@pytest.mark.parametrize(
    ("way", "part"),
    everyday(product(WAYS, PARTS), ("after backward", "step"), *((way, "model") for way in WAYS)),
)
def test_a_compiled_loop_trains_as_one_that_is_not(two_workers: World, way: str, part: str) -> None:
    for plain, compiled, graphs in two_workers(graph_loops.compiled, way, part):
        assert same(plain, compiled)
        assert graphs[0] == 0
        assert graphs[1] > (
            way != "fsdp"
        )  # torch cuts the graph of a model where DDP's buckets end


def test_what_cannot_be_compiled_is_one_exception(two_workers: World) -> None:
    for whole, autograd, buckets in two_workers(graph_loops.not_compiled):
        assert whole.startswith("Unsupported: ")
        assert "an exchange is never compiled" in whole
        assert autograd.startswith("RuntimeError: Compiled autograd is not compatible with C++ DDP")
        assert buckets.startswith(
            "UserError: model: DistributedDataParallel was called under torch._dynamo"
        )
