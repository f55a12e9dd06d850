"""A step in a CUDA graph is refused before anything has changed; one in `torch.compile` trains as it is."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from everyday import everyday
from jobs import raised, same
from loops import EF4, Layers, backward, gradients, weights
from processes import World
from torch import Tensor, nn
from torch._dynamo import compiled_autograd
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from dgc_repro import Attached, attach


def two_layers() -> nn.Module:
    return Layers(torch.float32, torch.float32)


class Capturing:
    """Inside, torch says that the operations of this process become a CUDA graph."""

    def __enter__(self) -> None:
        self._patches = [
            patch.object(torch.cuda, name, lambda: True)
            for name in ("is_initialized", "is_current_stream_capturing")
        ]
        for one in self._patches:
            one.start()

    def __exit__(self, *_: object) -> None:
        for one in self._patches:
            one.stop()


def attached(
    way: str, make: Callable[[], Any] = two_layers, compile_layers: Any = None
) -> tuple[Any, Attached]:
    """A model and its exchange. ``way``: the junction; ``compile_layers``: the backend, where each layer is
    compiled first."""
    torch.manual_seed(0)
    module = make()
    if compile_layers:
        for layer in module.layers:
            layer.compile(backend=compile_layers)
    if way == "fsdp":
        mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("node", "gpu"))
        for layer in module.layers:
            fully_shard(layer, mesh=mesh["gpu"])
        fully_shard(module, mesh=mesh["gpu"])
        return module, attach(module, EF4, mesh=mesh, dim="node")
    model = DistributedDataParallel(module)
    return model, attach(model, EF4, overlap=way == "overlap")


def captured(way: str) -> tuple[str, str, Any, Any]:
    """What is raised when a step is captured and when a backward alone is, and the gradients of the step that
    follows, beside those of a loop that has tried no capture."""
    found, said = [], ["", ""]
    for captures in (True, False):
        model, exchange = attached(way)
        if captures:
            with Capturing():
                said[0] = raised(partial(backward, model, dist.get_rank()))
        backward(model, dist.get_rank())
        grads = gradients(model)
        found.append({n: getattr(g, "_local_tensor", g) for n, g in grads.items()})  # of FSDP
        if captures:
            loss = model(torch.ones(2, 6)).sum()
            with Capturing():
                said[1] = raised(loss.backward)
        exchange.detach()
    return said[0], said[1], found[0], found[1]


class Block(nn.Module):
    """A layer whose forward is no code of torch's, which torch.compile leaves out beside a hook."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(512, 512, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.linear(x))


class Wide(nn.Module):
    """Three layers of a megabyte, which is DDP's first bucket."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*[Block() for _ in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layers(x.repeat(1, 86)[:, :512])
        return found


def compiled(way: str, part: str) -> tuple[list[Tensor], list[Tensor], list[int]]:
    """Parameters after three steps of a loop and of one that is compiled, and how many graphs each has.
    ``part``: what is compiled: the ``layers``, the ``model``, or the ``step``."""
    found: list[list[Tensor]] = []
    counts = []
    for compiles in ("", part):
        graphs: list[object] = []

        def count(graph: Any, _: object, graphs: list[object] = graphs) -> Any:
            graphs.append(graph)
            return graph.forward

        model, exchange = attached(way, Wide, count if compiles == "layers" else None)
        # foreach: torch 2.11 itself compiles the other form of SGD to other bits.
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=True)
        net = torch.compile(model, backend=count) if compiles == "model" else model

        def step(net: Any = net, optimizer: Any = optimizer) -> None:
            optimizer.zero_grad()
            backward(net, dist.get_rank())
            optimizer.step()

        take = torch.compile(step, backend=count) if compiles == "step" else step
        for _ in range(3):
            take()
        exchange.detach()
        torch.compiler.reset()
        found.append(weights(model))
        counts.append(len(graphs))
    return found[0], found[1], counts


def not_compiled() -> list[str]:
    """What is raised where the end of a step is to be one graph, with compiled autograd, and for a DDP model
    that sends its gradients without buckets."""
    model, exchange = attached("after backward")
    said = [raised(torch.compile(exchange._finish, backend="eager", fullgraph=True))]
    loss = model(torch.ones(2, 6)).sum()
    with compiled_autograd._enable(torch.compile(backend="eager")):
        said.append(raised(loss.backward))
    exchange.detach()
    with torch._dynamo.config.patch(optimize_ddp="python_reducer"):
        model = DistributedDataParallel(Layers(torch.float32))
    said.append(raised(lambda: attach(model, EF4)))
    torch.compiler.reset()
    return said


WAYS = ["after backward", "overlap", "fsdp"]
REFUSED = "torch.cuda.graph: a step with a compressor cannot be captured, because"


@pytest.mark.parametrize("way", WAYS)
def test_a_capture_is_refused_and_the_next_step_is_sound(two_workers: World, way: str) -> None:
    for of_step, of_backward, after, without in two_workers(captured, way):
        assert of_step.startswith(f"UserError: {REFUSED}"), of_step
        assert REFUSED in of_backward
        assert same(after, without)


COMPILED = [*product(WAYS, ("layers", "model", "step"))]


@pytest.mark.parametrize(
    ("way", "part"),
    everyday(COMPILED, ("after backward", "step"), *((way, "model") for way in WAYS)),
)
def test_a_compiled_loop_trains_as_one_that_is_not(two_workers: World, way: str, part: str) -> None:
    for plain, after, graphs in two_workers(compiled, way, part):
        assert same(plain, after)
        assert graphs[0] == 0
        assert graphs[1] > (way != "fsdp")  # torch cuts a model's graph where DDP's buckets end


def test_what_cannot_be_compiled_is_one_exception(two_workers: World) -> None:
    for whole, autograd, buckets in two_workers(not_compiled):
        assert whole.startswith("Unsupported: ")
        assert "an exchange is never compiled" in whole
        assert autograd.startswith("RuntimeError: Compiled autograd is not compatible with C++ DDP")
        assert buckets.startswith(
            "UserError: model: DistributedDataParallel was called under torch._dynamo"
        )
