"""Rows ``exchange``: ranks that exchange gradients as a user's loop does, against simulated workers.

With ``device="cpu"`` the ranks are gloo's, with ``"cuda"`` nccl's. Their model's gradients are given values,
so that forward and backward round nothing, and the same means are expected everywhere.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from dgc_repro.compressor.dense import Dense
from dgc_repro.compressor.dgc_sampled import DGCSampled
from dgc_repro.compressor.error_feedback import ErrorFeedback
from dgc_repro.compressor.powersgd import PowerSGD
from dgc_repro.compressor.qsgd import QSGD
from dgc_repro.compressor.randomk import RandomK
from dgc_repro.compressor.redsync import RedSync
from dgc_repro.compressor.signsgd import SignSGD
from dgc_repro.compressor.threshold import Threshold
from dgc_repro.compressor.topk import TopK
from dgc_repro.compressor.uniform import Uniform
from dgc_repro.exchange.door import attach
from dgc_repro.launch.rendezvous import use_loopback
from dgc_repro.selfcheck.law_settings.base import EPS, Setting
from dgc_repro.selfcheck.methods import difference, play, simulation
from dgc_repro.selfcheck.rows import CUDA, Checks, Mismatch, Skip

COLLECTIVE_SECONDS = 60.0
STEPS = 4
SEED = 7
SCALE = 2.0**10
SHAPES = {"first": (600, 500), "bias": (33,), "last": (33, 130), "one": (1,)}
"""The first alone is larger than DDP's first bucket."""
Gradients = dict[str, Tensor]


def method(name: str, compressor: Any, **tolerance: float) -> Setting:
    """A setting of these rows."""
    return Setting(name, compressor, **tolerance)  # type: ignore[arg-type]


CODES = method("4 bits", ErrorFeedback(Uniform(4)))
METHODS = (
    method("dense", Dense()),
    CODES,
    method("top-k", ErrorFeedback(TopK(0.05))),
    method("random-k, its values averaged", ErrorFeedback(RandomK(0.05))),
    method("QSGD", QSGD(7)),
    method("signs, by vote", SignSGD()),
    method("PowerSGD", ErrorFeedback(PowerSGD(2)), cancelled=12 * 600**0.5 * EPS),
    method("threshold (ragged)", ErrorFeedback(Threshold(0.05))),
    method("DGC (ragged)", ErrorFeedback(DGCSampled(0.05))),
    method("RedSync (ragged)", ErrorFeedback(RedSync(0.05))),
)
IN_FSDP = tuple(one for one in METHODS if one.name in ("dense", "4 bits", "DGC (ragged)"))


@dataclass(frozen=True)
class Loop:
    """A loop of a user. ``way``: ``after`` backward, ``overlap`` or ``fsdp``;
    ``broken``: a step in which the last rank has a gradient that is not finite; ``scaled``: the loss is
    scaled; ``detached``: a step before which the exchange lets go of the model, and after which it is
    attached anew."""

    setting: Setting
    way: str = "after"
    broken: int | None = None
    scaled: bool = False
    detached: int | None = None

    def __str__(self) -> str:
        """``overlap, 4 bits, GradScaler``."""
        more = ["GradScaler"] if self.scaled else ["NaN"] if self.broken is not None else []
        more += ["detached and attached again"] if self.detached is not None else []
        return ", ".join([self.way, self.setting.name, *more])


LOOPS = (
    *(Loop(one, way) for one in METHODS for way in ("after", "overlap")),
    *(Loop(one, "fsdp") for one in IN_FSDP),
    *(Loop(CODES, way, broken=1) for way in ("after", "overlap", "fsdp")),
    *(Loop(CODES, way, broken=1, scaled=True) for way in ("after", "overlap")),
    *(Loop(CODES, way, detached=2) for way in ("after", "overlap")),
)


def checks(device: str) -> Checks:
    """A case for each loop."""
    ranks = int(os.environ["SELFCHECK_RANKS"])
    own = own_device(device)
    backend = "nccl" if device == CUDA else "gloo"
    with joined(backend):
        meet(own, backend)
        for loop in LOOPS:
            yield str(loop), partial(compared, loop, own)
    return f"{len(LOOPS)} loops, {ranks} rank{'s' * (ranks > 1)} of {backend}: the means of simulated workers"


def own_device(device: str) -> torch.device:
    """This rank's. Ranks share GPUs where there are too few."""
    if device != CUDA:
        return torch.device(device)
    gpu = int(os.environ["SELFCHECK_RANK"]) % torch.cuda.device_count()
    torch.cuda.set_device(gpu)
    return torch.device(CUDA, gpu)


@contextmanager
def joined(backend: str) -> Iterator[None]:
    """Inside, the ranks of this row are a world of torch.distributed. The first call decides the backend; the
    world lasts as long as the process."""
    if not dist.is_initialized():
        use_loopback()
        dist.init_process_group(
            backend,
            init_method=f"file://{os.environ['SELFCHECK_RENDEZVOUS']}",
            rank=int(os.environ["SELFCHECK_RANK"]),
            world_size=int(os.environ["SELFCHECK_RANKS"]),
            timeout=datetime.timedelta(seconds=COLLECTIVE_SECONDS),
        )
    yield


def meet(device: torch.device, backend: str) -> None:
    """One collective. Raises Skip where nccl takes no two ranks on one GPU, with nccl's reason."""
    try:
        dist.all_reduce(torch.ones(1, device=device))
        if device.type == CUDA:
            torch.cuda.synchronize(device)
    except dist.DistBackendError as error:
        if backend != "nccl" or torch.cuda.device_count() >= dist.get_world_size():
            raise
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise Skip(f"fewer GPUs than ranks, and nccl says: {lines[-1]}") from error


def gradient(rank: int, step: int, loop: Loop) -> Gradients:
    """What a rank's backward is to leave, on the CPU."""
    source = torch.Generator().manual_seed(100 * step + rank)
    found = {name: torch.randn(shape, generator=source) for name, shape in SHAPES.items()}
    if step == loop.broken and rank == int(os.environ["SELFCHECK_RANKS"]) - 1:
        found["last"][3, 7] = torch.nan
    return found


class Given(nn.Module):
    """A model whose gradients are the values that it is given."""

    def __init__(self) -> None:
        super().__init__()
        for name, shape in SHAPES.items():
            self.register_parameter(name, nn.Parameter(torch.zeros(shape)))

    def forward(self, *given: Tensor) -> Tensor:
        """The sum of products of parameters and values."""
        products = [(p * g).sum() for p, g in zip(self.parameters(), given, strict=True)]
        return torch.stack(products).sum()


def played(loop: Loop, device: torch.device) -> list[Gradients | None]:
    """Each step's gradients for the optimizer on this rank, on the CPU; None where a step was left out."""
    rank, world = dist.get_rank(), dist.get_world_size()
    model: Any = Given().to(device)
    scaler = torch.amp.GradScaler(device.type, init_scale=SCALE) if loop.scaled else None
    settings: dict[str, Any] = {"seed": SEED}
    if loop.broken is not None and not loop.scaled:
        settings["on_nonfinite"] = "skip"
    if scaler is not None:
        settings["scaler"] = scaler
    compressor = loop.setting.compressor
    if loop.way == "fsdp":
        mesh = init_device_mesh(device.type, (world, 1), mesh_dim_names=("node", "gpu"))
        fully_shard(model, mesh=mesh["gpu"])
        settings |= {"mesh": mesh, "dim": "node"}
    else:
        model = DistributedDataParallel(model, bucket_cap_mb=1, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    if loop.way == "overlap":
        settings["overlap"] = True
    exchange: Any = None
    found: list[Gradients | None] = []
    for step in range(STEPS):
        if step == loop.detached:
            exchange.detach()
            exchange = None
        elif exchange is None:
            exchange = attach(model, compressor, **settings)
        optimizer.zero_grad()
        given = gradient(rank, step, loop).values()
        loss = model(*(one.to(device) for one in given))
        (loss if scaler is None else scaler.scale(loss)).backward()
        happened = True
        if exchange is not None:
            happened = exchange.applied
        scale = 1.0 if scaler is None else scaler.get_scale()
        found.append(_taken(model, scale) if happened else None)
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
            lower = SCALE / 2 if loop.broken is not None and step >= loop.broken else SCALE
            if scaler.get_scale() != lower:
                raise Mismatch(f"step {step}: the scale is {scaler.get_scale()}, not {lower}")
    exchange.detach()
    return found


def _taken(model: nn.Module, scale: float) -> Gradients:
    found = {}
    for name, parameter in model.named_parameters():
        gradient: Any = parameter.grad
        local = gradient.to_local() if hasattr(gradient, "to_local") else gradient
        found[name.removeprefix("module.")] = (local.detach().cpu() / scale).view(parameter.shape)
    return found


def expected(loop: Loop) -> list[Gradients | None]:
    """The same of simulated workers on the CPU, or with plain sums where nothing is attached."""
    world = dist.get_world_size()
    exchange = None
    found: list[Gradients | None] = []
    for step in range(STEPS):
        every = [gradient(rank, step, loop) for rank in range(world)]
        if step == loop.detached:
            exchange = None
            found.append({n: sum(own[n] / world for own in every) for n in SHAPES})  # type: ignore[misc]
            continue
        exchange = exchange or simulation(loop.setting, world, every[0])
        found.append(None if step == loop.broken else play(exchange, loop.setting, every))
    return found


def compared(loop: Loop, device: torch.device) -> str:
    """Whether every rank has the means of simulated workers. Raises Mismatch on all ranks."""
    fault = ""
    try:
        _compare(loop.setting, played(loop, device), expected(loop))
    except Mismatch as error:
        fault = str(error)
    faults: list[str] = [""] * dist.get_world_size()
    dist.all_gather_object(faults, fault)
    for rank, one in enumerate(faults):
        if one:
            raise Mismatch(f"rank {rank}: {one}")
    return ""


def _compare(
    setting: Setting, ours: Sequence[Gradients | None], theirs: Sequence[Gradients | None]
) -> None:
    for step, (own, wanted) in enumerate(zip(ours, theirs, strict=True)):
        if own is None or wanted is None:
            if own is not wanted:
                was = "left out" if own is None else "applied"
                raise Mismatch(f"step {step} was {was}, unlike that of simulated workers")
            continue
        for name, mean in wanted.items():
            difference(setting, own[name], mean, f"step {step}, {name!r}: ")
