"""Rows ``time``: a training step with plain DDP, with torch's communication hooks, and with compressors.

No time fails. The ranks share this machine, so that compression has no slow network to gain from.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as torch_powersgd
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from dgc_repro.compressor.error_feedback import ErrorFeedback
from dgc_repro.compressor.powersgd import PowerSGD
from dgc_repro.compressor.topk import TopK
from dgc_repro.compressor.uniform import Uniform
from dgc_repro.exchange.door import attach
from dgc_repro.selfcheck.exchanges import joined, meet, own_device
from dgc_repro.selfcheck.rows import CUDA, Checks

WIDTH, DEPTH, BATCH = 1024, 6, 32
WARMUP, REPEATS = 4, 7  # steps
PLAIN = "plain DDP"
TORCHS_POWERSGD = "torch's PowerSGD hook"
"""It starts collectives in callbacks of futures. gloo's threads may call these in another order on another
rank, which ended a rank here once. So it is timed with nccl only."""
Ddp = DistributedDataParallel
Way = Callable[[Ddp], object]


def fp16(model: Ddp) -> None:
    """torch's hook that sends 16 bits."""
    model.register_comm_hook(dist.group.WORLD, fp16_compress_hook)


def powersgd(model: Ddp) -> None:
    """torch's PowerSGD hook of rank 4."""
    state = torch_powersgd.PowerSGDState(
        dist.group.WORLD, matrix_approximation_rank=4, start_powerSGD_iter=2
    )
    model.register_comm_hook(state, torch_powersgd.powerSGD_hook)


def ours(compressor: Any, *, overlap: bool = False) -> Way:
    """A compressor of ours."""
    return lambda model: attach(model, compressor, overlap=overlap)


WAYS: dict[str, Way] = {
    PLAIN: lambda model: None,
    "torch's fp16 hook": fp16,
    TORCHS_POWERSGD: powersgd,
    "8 bits": ours(ErrorFeedback(Uniform(8))),
    "8 bits, overlap": ours(ErrorFeedback(Uniform(8)), overlap=True),
    "top-k 1 %": ours(ErrorFeedback(TopK(0.01))),
    "PowerSGD": ours(ErrorFeedback(PowerSGD(4))),
}


def checks(device: str) -> Checks:
    """A case for each way."""
    own, backend = own_device(device), "nccl" if device == CUDA else "gloo"
    found: dict[str, float] = {}
    with joined(backend):
        meet(own, backend)
        for name, way in WAYS.items():
            if name == TORCHS_POWERSGD and device != CUDA:
                continue
            yield name, partial(told, name, way, own, found)
    plain = found.pop(PLAIN, None)
    ranks = int(os.environ["SELFCHECK_RANKS"])
    head = f"{ranks} rank{'s' * (ranks > 1)} of {backend}"
    if plain is None:
        return f"{head}: see the cases"
    rest = ", ".join(f"{name} {seconds / plain:.2f} x" for name, seconds in found.items())
    return f"{head}, plain DDP {1e3 * plain:.1f} ms a step; {rest}"


def told(name: str, way: Way, device: torch.device, found: dict[str, float]) -> str:
    """Measure a way and note its seconds."""
    found[name] = seconds_of(way, device)
    return f"{1e3 * found[name]:.2f} ms"


def seconds_of(way: Way, device: torch.device) -> float:
    """The median of some training steps."""
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(DEPTH)]
    model = Ddp(nn.Sequential(*layers).to(device), gradient_as_bucket_view=True)
    way(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    inputs = torch.randn(BATCH, WIDTH, device=device)
    seconds = []
    for _ in range(WARMUP + REPEATS):
        dist.barrier()
        began = time.perf_counter()
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
        if device.type == CUDA:
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds[WARMUP:])
