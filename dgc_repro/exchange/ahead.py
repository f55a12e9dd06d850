"""Compile the GPU kernels of a method before training begins.

Triton compiles a kernel when it is first launched, which takes seconds. In the middle of training the other
ranks would wait for them. `variants` runs a step on pretended tensors (exchange/pretended.py) and notes what
is launched, so that the list is that of the real launches.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from dgc_repro.compressor.interface import Compressor, nested
from dgc_repro.compressor.ladder import Ladder
from dgc_repro.compressor.per_layer import PerLayer
from dgc_repro.exchange.clock import Clock
from dgc_repro.exchange.exchange import Exchange
from dgc_repro.exchange.world import World
from dgc_repro.kernel.batch import on_gpu
from dgc_repro.kernel.cached import forget
from dgc_repro.policy.interface import Plan, Policy, measures

CUDA = torch.device("cuda", 0)
WORKERS = 2


def compile_ahead(
    compressor: Compressor,
    parameters: Mapping[str, Tensor],
    device: torch.device,
    policy: Policy | None = None,
    *,
    unit: str = "layer",
) -> None:
    """Compile and load all kernels that an exchange will launch on its GPU. Nothing is launched; gradients,
    states and random numbers stay as they are. On a CPU nothing happens.

    Warns where the list cannot be made: kernels are then compiled in the first steps."""
    if device.type != "cuda" or not on_gpu(()):
        return
    from torch._subclasses.fake_tensor import FakeTensor  # a slow import

    from dgc_repro.kernel.gpu.compiling import announced, compiled

    if any(isinstance(p, FakeTensor) for p in parameters.values()):
        return  # launches are counted, and there may be no GPU
    try:
        found = variants(compressor, parameters, policy, unit=unit, device=device)
    except Exception as error:
        text = f"GPU kernels will be compiled in the first steps: {type(error).__name__}: {error}"
        warnings.warn(text, stacklevel=2)
        return
    with announced():
        for _ in compiled(found, device):
            pass


def variants(
    compressor: Compressor,
    parameters: Mapping[str, Tensor],
    policy: Policy | None = None,
    *,
    unit: str = "layer",
    device: torch.device = CUDA,
) -> set[Any]:
    """What Triton compiles for a step of all these tensors, or of some (DDP's buckets, FSDP's units), on each
    rung that the policy may plan: `Variant`s of kernel/gpu/launch.py. Needs Triton, and no GPU.

    ``parameters``: name to tensor; their shapes and types matter, and their values do not. An exchange whose
    tensor operations have sizes that depend on values (shards of sparse payloads) is followed as far
    as there."""
    from torch._subclasses.fake_tensor import DynamicOutputShapeException  # slow imports

    from dgc_repro.exchange.pretended import Pretended
    from dgc_repro.kernel.gpu.launch import Launches

    before = Launches.count, Launches.touched, Launches.reads, Launches.record
    found: set[Any] = set()
    Launches.record = found
    try:
        with Pretended():
            like = {
                name: torch.empty_strided(p.shape, p.stride(), dtype=p.dtype, device=device)
                for name, p in unlike(compressor, parameters)
            }
            for plan in plans(compressor, policy):
                with suppress(DynamicOutputShapeException):
                    _step(compressor, like, plan, unit)
    finally:
        Launches.count, Launches.touched, Launches.reads, Launches.record = before
        forget()
    return found


def unlike(
    compressor: Compressor, parameters: Mapping[str, Tensor]
) -> Iterator[tuple[str, Tensor]]:
    """One of all parameters that a compressor treats alike: of one shape, type and order in memory."""
    seen = set()
    exempts = [part.exempt for part in nested(compressor) if isinstance(part, PerLayer)]
    for name, p in parameters.items():
        kind = p.shape, p.stride(), p.dtype, tuple([exempt(p, name) for exempt in exempts])
        if kind not in seen:
            seen.add(kind)
            yield name, p


def plans(compressor: Compressor, policy: Policy | None) -> Iterator[Plan]:
    """A plan for each combination of kernels that a policy may ask for."""
    ladder = next((part for part in nested(compressor) if isinstance(part, Ladder)), None)
    if ladder is None:
        yield Plan(0)
        return
    rungs = range(len(ladder.rungs))
    for rung in rungs:
        yield Plan(rung)
    if policy is not None and measures(policy):
        first = policy.plan(policy.init(), 0)
        for weak in rungs:
            for strong in rungs[weak:]:
                asked = None if policy.chooses else strong
                yield replace(first, rung=asked, by_tensor={}, candidates=(weak, strong))


def _step(compressor: Compressor, like: Mapping[str, Tensor], plan: Plan, unit: str) -> None:
    """A step of all tensors, and then one of those that have a dimension at most: where a bucket has nothing
    else, some methods take other kernels."""
    device = next(iter(like.values())).device
    world = World(WORKERS, device=device, clock=Clock(torch.device("cpu")))

    def choose(energies: Tensor) -> int:
        return plan.candidates[1]

    exchange = Exchange(compressor, like, world, unit=unit, choose=choose)
    vectors = {name: p for name, p in like.items() if p.dim() <= 1 and unit == "layer"}
    for part, some in enumerate((like, vectors) if 0 < len(vectors) < len(like) else (like,)):
        given = [{n: torch.empty_like(p) for n, p in some.items()} for _ in range(WORKERS)]
        exchange.run(given, plan, part).finish()
