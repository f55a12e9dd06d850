"""Train with every public compressor, during backward too, and on FSDP2, for tests/test_wheel.py.

Two ranks of torchrun, in an environment of torch and numpy. Prints the names of the compressors."""

from __future__ import annotations

import importlib.util
import inspect
import pydoc

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import dgc_repro
from dgc_repro import ErrorFeedback, TopK, attach
from dgc_repro.errors import REPRO_LIBRARIES
from dgc_repro.kernel import native

INNER = {
    "BlockMomentum": dgc_repro.EFSignSGD(),
    "ErrorFeedback": TopK(),
    "Ladder": (dgc_repro.Dense(), dgc_repro.Uniform(bits=8)),
    "LoCo": dgc_repro.Uniform(bits=4),
    "Sharded": dgc_repro.Uniform(bits=4),
}
"""What wrappers get where error feedback is wrong."""
POLICIES = {"Ladder": dgc_repro.Warmup(field="bits", values=[8])}


def compressor(name: str):
    """One of the class with this name; a wrapper around what it may stand around."""
    made = getattr(dgc_repro, name)
    if name in INNER:
        return made(INNER[name])
    parameters = inspect.signature(made).parameters
    return made(ErrorFeedback(TopK())) if "inner" in parameters else made()


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 40), nn.ReLU(), nn.Linear(40, 10))


def step(model: nn.Module) -> None:
    """A step of SGD with this rank's data; the ranks then have the same weights."""
    inputs = torch.randn(8, 64, generator=torch.Generator().manual_seed(dist.get_rank()))
    nn.functional.cross_entropy(model(inputs), inputs[:, :10].argmax(1)).backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()


def refused(name: str) -> str:
    """The line with which a public name asks for the extra; empty where it is there."""
    try:
        getattr(dgc_repro, name)
    except ImportError as error:
        return str(error)
    return ""


def main() -> None:
    present = [name for name in REPRO_LIBRARIES if importlib.util.find_spec(name)]
    assert present in ([], ["filelock"]), present  # torch installs this one
    assert native.library() is not None, "the kernels are C"
    lines = {name: line for name in dgc_repro._PUBLIC if (line := refused(name))}
    needs = "needs pandas, which is not installed; pip install 'dgc_repro[repro]'"
    of_results = ("load_claims", "load_results", "load_runs")
    assert lines == {name: f"dgc_repro.{name} {needs}" for name in of_results}
    exec("from dgc_repro import *", {})
    assert "attach" in pydoc.render_doc(dgc_repro)
    names = [name for name, of in dgc_repro._PUBLIC.items() if of.startswith("compressor.")]
    for name in names:
        model = DistributedDataParallel(net())
        attach(model, compressor(name), POLICIES.get(name))
        step(model)
        weights = nn.utils.parameters_to_vector(model.parameters()).detach()
        everybody = [torch.empty_like(weights) for _ in range(2)]
        dist.all_gather(everybody, weights)
        assert torch.equal(*everybody), name
    model = DistributedDataParallel(net())
    exchange = attach(model, ErrorFeedback(TopK()), overlap=True)
    step(model)
    assert exchange.ledger.payload_bytes > 0
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("node", "gpu"))
    sharded = fully_shard(net(), mesh=mesh["gpu"])
    exchange = attach(sharded, ErrorFeedback(TopK()), mesh=mesh, dim="node")
    step(sharded)
    assert exchange.ledger.payload_bytes > 0
    if dist.get_rank() == 0:
        print(*names)


dist.init_process_group("gloo")
main()
dist.destroy_process_group()
