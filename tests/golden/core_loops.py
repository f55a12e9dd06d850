"""The training loops of tests/golden/core.py: every rank's weights after each step, as one hash."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import tempfile
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import dgc_repro as D

TIMEOUT = datetime.timedelta(seconds=120)
POISONED = 1  # the rank whose input is not finite


class Net(nn.Module):
    """Convolutions, batch norm, and what a case asks for: other types, a part that is used now and then."""

    def __init__(self, kind: str = "float32", *, sided: bool = False) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16)
        self.conv2, self.fc = nn.Conv2d(16, 8, 3), nn.Linear(8 * 16, 40)
        self.head = nn.Linear(40, 10)
        self.side = nn.Linear(40, 40) if sided else None
        self.uses_side = True
        phase = torch.randn(40, 3, dtype=torch.complex64)
        self.phase = nn.Parameter(phase) if kind == "complex" else None
        if kind == "mixed":
            self.fc.to(torch.float64)
            self.head.to(torch.bfloat16)
        elif kind != "complex":
            self.to(getattr(torch, kind))

    def forward(self, x: Tensor) -> Tensor:
        x = x.to(self.conv.weight.dtype)
        x = F.adaptive_avg_pool2d(self.conv2(torch.relu(self.norm(self.conv(x)))), 4)
        x = torch.relu(self.fc(x.flatten(1).to(self.fc.weight.dtype)))
        if self.side is not None and self.uses_side:
            x = x + self.side(x)
        if self.phase is not None:
            x = x * self.phase.prod(1).real
        return self.head(x.to(self.head.weight.dtype)).float()


@dataclass
class Case:
    """One loop. ``nan``: the step in which the input of a rank is not finite. ``used``: whether a rank uses
    the side of the network in a step. ``epochs``: steps of an epoch, of which the policy is told."""

    compressor: Callable[[], Any]
    policy: Callable[[], Any] = lambda: None
    steps: int = 6
    kind: str = "float32"
    ddp: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    channels_last: bool = False
    scaled: bool = False
    accumulate: int = 1
    nan: int | None = None
    used: Callable[[int, int], bool] | None = None
    set_to_none: bool = True
    epochs: int = 0
    hybrid: bool = False  # FSDP: HSDP
    reduce_dtype: torch.dtype | None = None


def _fed(method: Any) -> Callable[[], Any]:
    return lambda: D.ErrorFeedback(method)


def _ladder(*rungs: Any) -> Callable[[], Any]:
    return lambda: D.ErrorFeedback(D.Ladder((D.Dense(), *rungs)))


def _gravac(**more: Any) -> Callable[[], Any]:
    settings = {"theta_min": 4, "theta_max": 64, "scaling": "geometric", "ratio": 4, "window": 99}
    return lambda: D.GraVAC(**settings, workers=2, **more)


_TOP = _fed(D.TopK(0.05))
_ROUNDED = _fed(D.Uniform(8, rounding="stochastic"))
_FACTORS = [D.TopK(factor=factor) for factor in (4.0, 16.0, 64.0)]
_OVERLAP = {"overlap": True}
_UNUSED = {"find_unused_parameters": True}


def _on_rank_0(step: int, rank: int) -> bool:
    return step % 2 == 0 or rank == 0


def _in_even_steps(step: int, rank: int) -> bool:
    return step % 2 == 0


def _accordion() -> Any:
    return D.Accordion("density", (0.2, 0.02), eta=0.3)


def _stepwise() -> Any:
    return D.Stepwise("bits", (8, 4, 2), accuracy_thresholds=(30, 60))


def _dgc(**more: Any) -> Any:
    return D.MomentumCorrection(D.ErrorFeedback(D.DGCSampled(0.05)), **more)


WHOLE: dict[str, Case] = {
    "views": Case(_TOP),
    "no views": Case(_TOP, ddp={"gradient_as_bucket_view": False}),
    "clip, momentum, ragged": Case(lambda: D.ClipLocal(_dgc(), threshold=0.1), nan=3),
    "zero_grad in place": Case(_TOP, set_to_none=False),
    "nan": Case(_ROUNDED, nan=3),
    "accumulate": Case(_TOP, accumulate=3),
    "scaler": Case(_TOP, scaled=True, nan=3, steps=8),
    "bfloat16": Case(_TOP, kind="bfloat16"),
    "float64": Case(_TOP, kind="float64"),
    "mixed types, vectors dense": Case(
        lambda: D.PerLayer(D.ErrorFeedback(D.TopK(0.05))), kind="mixed"
    ),
    "complex": Case(_TOP, kind="complex", nan=2),
    "channels last": Case(_ROUNDED, channels_last=True),
    "unused on rank 1": Case(_TOP, ddp=_UNUSED, used=_on_rank_0),
    "unused on all": Case(_TOP, ddp=_UNUSED, used=_in_even_steps),
    "unused on all, in place": Case(_TOP, ddp=_UNUSED, used=_in_even_steps, set_to_none=False),
    "static graph": Case(_TOP, ddp={"static_graph": True}),
    "static graph, never used": Case(
        _TOP, ddp={"static_graph": True}, used=lambda step, rank: False
    ),
    "unit=model": Case(_TOP, options={"unit": "model"}),
    "sharded uniform": Case(_fed(D.Sharded(D.Uniform(8)))),
    "sharded topk": Case(_fed(D.Sharded(D.TopK(0.05)))),
    "powersgd": Case(_fed(D.PowerSGD(rank=2)), nan=3),
    "overlap": Case(_TOP, options=_OVERLAP),
    "overlap, no views": Case(_TOP, options=_OVERLAP, ddp={"gradient_as_bucket_view": False}),
    "overlap, nan": Case(_ROUNDED, options=_OVERLAP, nan=3),
    "overlap, momentum, ragged": Case(_dgc, options=_OVERLAP, nan=3),
    "overlap, powersgd": Case(_fed(D.PowerSGD(rank=2)), options=_OVERLAP, nan=3),
    "overlap, scaler": Case(_TOP, options=_OVERLAP, scaled=True, nan=3, steps=8),
    "overlap, bfloat16": Case(_TOP, options=_OVERLAP, kind="bfloat16"),
    "overlap, complex": Case(_TOP, options=_OVERLAP, kind="complex", nan=2),
    "overlap, channels last": Case(_ROUNDED, options=_OVERLAP, channels_last=True),
    "overlap, accumulate": Case(_TOP, options=_OVERLAP, accumulate=3),
    "overlap, unused on rank 1": Case(_TOP, options=_OVERLAP, ddp=_UNUSED, used=_on_rank_0),
    "overlap, unused on all": Case(_TOP, options=_OVERLAP, ddp=_UNUSED, used=_in_even_steps),
    "overlap, static graph": Case(_TOP, options=_OVERLAP, ddp={"static_graph": True}),
    "overlap, sharded topk": Case(_fed(D.Sharded(D.TopK(0.05))), options=_OVERLAP),
    "gravac": Case(_ladder(*_FACTORS), _gravac(eps=0.5), steps=8),
    "gravac, decide=last": Case(_ladder(*_FACTORS), _gravac(eps=0.3, decide="last"), steps=8),
    "overlap, gravac, decide=last": Case(
        _ladder(*_FACTORS), _gravac(eps=0.3, decide="last"), steps=8, options=_OVERLAP
    ),
    "accordion": Case(_ladder(D.TopK(0.2), D.TopK(0.02)), _accordion, steps=10, epochs=2),
    "stepwise": Case(_ladder(*map(D.Uniform, (8, 4, 2))), _stepwise, steps=10, epochs=2),
    "overlap, accordion": Case(
        _ladder(D.TopK(0.2), D.TopK(0.02)), _accordion, steps=10, epochs=2, options=_OVERLAP
    ),
}
SHARDED: dict[str, Case] = {
    "fsdp": Case(_TOP, nan=2, steps=5),
    "fsdp, bfloat16": Case(_TOP, steps=5, reduce_dtype=torch.bfloat16),
    "hsdp, uniform": Case(_ROUNDED, nan=2, steps=5, hybrid=True),
    "hsdp, powersgd": Case(_fed(D.PowerSGD(rank=2)), nan=2, steps=5, hybrid=True),
}


def told(policy: Any, exchange: Any, case: Case, step: int) -> None:
    """Tell a policy of an epoch that has ended."""
    if case.epochs and step % case.epochs == case.epochs - 1:
        epoch = 1 + step // case.epochs
        exchange.end_epoch(D.EpochReport(epoch, 1.0 / (step + 1), 1.0, 10.0 * step, (0.05, 0.05)))


def whole_loop(rank: int, case: Case) -> list[Any]:
    """A loop with DDP on this rank: its hash, and what was sent."""
    from core import digest, sent

    torch.manual_seed(0)
    net = Net(case.kind, sided=case.used is not None)
    if case.channels_last:
        net = net.to(memory_format=torch.channels_last)
    ddp = {"bucket_cap_mb": 0.02, "gradient_as_bucket_view": True, **case.ddp}
    model = DistributedDataParallel(net, **ddp)
    scaler = (
        torch.amp.GradScaler("cpu", init_scale=2.0**14, growth_interval=3) if case.scaled else None
    )
    policy = case.policy()
    exchange = D.attach(
        model, case.compressor(), policy, seed=3, on_nonfinite="skip", scaler=scaler, **case.options
    )
    exchange.samples = 1.0
    momentum = 0.0 if "Momentum" in repr(case.compressor()) else 0.9
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=momentum)
    source = torch.Generator().manual_seed(7 + rank)
    seen: list[Tensor | str] = []
    for step in range(case.steps):
        batches = [
            (torch.randn(4, 3, 12, 12, generator=source), torch.randint(10, (4,), generator=source))
            for _ in range(case.accumulate)
        ]
        if case.used is not None:
            net.uses_side = case.used(step, rank)
        optimizer.zero_grad(set_to_none=case.set_to_none)
        for number, (x, y) in enumerate(batches):
            if case.channels_last:
                x = x.to(memory_format=torch.channels_last)
            if case.nan == step and rank == POISONED and number == 0:
                x[0, 0, 0, 0] = torch.inf if case.scaled else torch.nan
            holds = number < case.accumulate - 1
            with model.no_sync() if holds else contextlib.nullcontext():
                loss = F.cross_entropy(model(x), y) / case.accumulate
                (loss if scaler is None else scaler.scale(loss)).backward()
        happened = exchange.applied
        if scaler is not None:
            scaler.step(optimizer)
            scaler.update()
        elif happened:
            optimizer.step()
        told(policy, exchange, case, step)
        seen += [f"{happened}", *(p.detach().clone() for p in net.parameters())]
        seen.append(f"{scaler.get_scale() if scaler else 1}")
    found = [digest(seen), *sent(exchange.ledger)]
    exchange.detach()
    return found


def sharded_loop(rank: int, case: Case, mesh: Any) -> list[Any]:
    """A loop with `fully_shard` on this rank."""
    from core import digest, sent
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(12, 33), nn.ReLU(), nn.Linear(33, 40), nn.ReLU(), nn.Linear(40, 7)
    )
    given: dict[str, Any] = {"mesh": mesh if case.hybrid else mesh["gpu"]}
    if case.reduce_dtype is not None:
        given["mp_policy"] = MixedPrecisionPolicy(reduce_dtype=case.reduce_dtype)
    for part in (model[0], model[2], model):
        fully_shard(part, **given)
    where = {} if case.hybrid else {"mesh": mesh, "dim": "node"}
    exchange = D.attach(model, case.compressor(), seed=3, on_nonfinite="skip", **where)  # type: ignore[arg-type]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    source = torch.Generator().manual_seed(7 + rank)
    seen: list[Tensor | str] = []
    for step in range(case.steps):
        x, y = torch.randn(4, 12, generator=source), torch.randint(7, (4,), generator=source)
        if case.nan == step and rank == POISONED:
            x[0, 0] = torch.nan
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        happened = exchange.applied
        if happened:
            optimizer.step()
        seen += [f"{happened}", *(p.to_local().detach().clone() for p in model.parameters())]  # type: ignore[attr-defined]
    found = [digest(seen), *sent(exchange.ledger)]
    exchange.detach()
    return found


def _work(rank: int, folder: str, kind: str, names: list[str]) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    ranks = 4 if kind == "sharded" else 2
    dist.init_process_group(
        "gloo", f"file://{folder}/store", rank=rank, world_size=ranks, timeout=TIMEOUT
    )
    found = {}
    if kind == "sharded":
        mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("node", "gpu"))
        found = {name: sharded_loop(rank, SHARDED[name], mesh) for name in names}
    else:
        found = {name: whole_loop(rank, WHOLE[name]) for name in names}
    told: list[Any] = [None] * ranks
    dist.all_gather_object(told, found)
    if rank == 0:
        joined = {
            name: ["".join(one[name][0][: 16 // ranks] for one in told), *told[0][name][1:]]
            for name in names
        }
        Path(folder, "found").write_text(json.dumps(joined), encoding="utf-8")
    dist.barrier()
    os._exit(0)  # gloo's threads may abort a process that ends before its peer


def played(cases: Mapping[str, Case]) -> dict[str, Any]:
    """Play loops in processes of their own: of each one hash over all ranks, and what was sent."""
    kind = "sharded" if cases is SHARDED else "whole"
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_work, (folder, kind, [*cases]), nprocs=4 if kind == "sharded" else 2)  # type: ignore[no-untyped-call]
        found: dict[str, Any] = json.loads(Path(folder, "found").read_text(encoding="utf-8"))
    return found
