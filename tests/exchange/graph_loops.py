"""Loops in a CUDA graph, as far as that can be had without a GPU, and in a compiled step, for test_graphs.py."""

from __future__ import annotations

from functools import partial
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from jobs import raised
from loops import EF4, Layers, backward, gradients
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from dgc_repro.exchange.attached import Attached, attach
from dgc_repro.exchange.comm_hook import HookState, comm_hook


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


def attached(way: str) -> tuple[Any, Attached]:
    """A model and its exchange. ``way``: the junction, or a hook that is made before DDP."""
    torch.manual_seed(0)
    module: Any = Layers(torch.float32, torch.float32)
    if way == "fsdp":
        mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("node", "gpu"))
        module = fully_shard(module, mesh=mesh["gpu"])
        return module, attach(module, EF4, mesh=mesh, dim="node")
    if way == "hook":
        state = HookState(module, EF4)
        model = DistributedDataParallel(module)
        model.register_comm_hook(state, comm_hook)
        return model, state
    model = DistributedDataParallel(module)
    return model, attach(model, EF4, overlap=way == "overlap")


def captured(way: str) -> tuple[list[str], Any, Any]:
    """What is raised when parts of a step are captured, and the gradients of the step that follows, beside
    those of a loop that has tried no capture."""
    found, said = [], []
    for captures in (True, False):
        model, exchange = attached(way)
        if captures:
            with Capturing():
                said.append(raised(partial(backward, model, dist.get_rank())))
        backward(model, dist.get_rank())
        if way != "hook":
            if captures:
                with Capturing():
                    said.append(raised(exchange.step))
            exchange.step()
        found.append(
            {n: getattr(g, "_local_tensor", g) for n, g in gradients(model).items()}  # of FSDP
        )
        exchange.detach()
    return said, found[0], found[1]


def backward_captured(way: str) -> str:
    """What a backward raises that alone is captured."""
    model, exchange = attached(way)
    loss = model(torch.ones(2, 6)).sum()
    with Capturing():
        said = raised(loss.backward)
    exchange.detach()
    return said
