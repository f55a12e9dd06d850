"""Rows ``counts``: launches, copies and waits of the host in a step of each method.

With ``device="cpu"`` they are counted on fake CUDA tensors and compared with targets.
With ``"cuda"`` a step is taken on the GPU, and what torch.profiler and CUDA's sync debug mode see is compared
with what is counted on fake tensors for the same step.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from dgc_repro.bench.counting import event_waits, fake_workers, triton_counts
from dgc_repro.bench.launches import Loop, Shapes, count_exchange, methods, shapes_of
from dgc_repro.bench.methods import gradients_of
from dgc_repro.bench.tables import Row
from dgc_repro.compressor.blockfloat import BlockFloat
from dgc_repro.compressor.demo import DeMo
from dgc_repro.compressor.dense import Dense
from dgc_repro.compressor.dion import Dion
from dgc_repro.compressor.eden import EDEN
from dgc_repro.compressor.interface import nested
from dgc_repro.compressor.powersgd import PowerSGD
from dgc_repro.compressor.sparseloco import SparseLoCo
from dgc_repro.compressor.sparsifier import Selecting
from dgc_repro.kernel.batch import on_gpu
from dgc_repro.launch.overrides import composed
from dgc_repro.launch.settings import build_compressor, build_policy
from dgc_repro.selfcheck.rows import CUDA, Checks, Mismatch, Skip

MODEL, CLASSES, WORKERS = "resnet18", 10, 2
WARMUP = 4  # steps: the clock's first are others, and tables are uploaded
MORE = 1.1  # launches of the profiler to those counted, where an operation of torch takes several kernels
COPIES = ("Memcpy HtoD", "Memcpy DtoH")
Config = Mapping[str, Any]


def checks(device: str) -> Checks:
    """A case for each method of conf/compressor/."""
    if not on_gpu(()):
        raise Skip(
            "no Triton, or DGC_REPRO_COMPILE=0 switches it off: the targets are of its kernels"
        )
    base = [f"model={MODEL}", "scale=none", "policy=fixed", "train.epochs=1"]
    shapes = shapes_of(composed(base), CLASSES)
    given = gradients_of(shapes, 0) if device == CUDA else {}
    every = methods()
    for name, own in every.items():
        config = composed([*base, *own, "policy=fixed"])
        if device == CUDA:
            yield name, partial(seen_as_counted, config, given, torch.device(CUDA, 0))
        else:
            yield name, partial(within_targets, config, shapes)
    how = "seen by the profiler as counted" if device == CUDA else "counted: within the targets"
    return f"{len(every)} methods, launches and host waits {how}"


def counted(config: Config, shapes: Shapes) -> Row:
    """The step on fake tensors."""
    with fake_workers(WORKERS):
        found = count_exchange(config, shapes)
    if "launches" not in found:
        raise Skip(found["launches_verdict"])
    return found


def targets(config: Config) -> dict[str, float]:
    """The most launches and host waits of a method's step."""
    leaf = list(nested(build_compressor(config, build_policy(config))))[-1]
    launches: float = 80 if isinstance(leaf, Selecting) else 40
    # Dense has no target, and the others have no GPU kernels of their own.
    if isinstance(leaf, Dense | SparseLoCo | DeMo | Dion | EDEN | BlockFloat):
        launches = math.inf
    elif isinstance(leaf, PowerSGD):
        launches = 300
    # A step waits for its signals, and for the sizes of payloads where they differ between workers.
    return {"launches": launches, "syncs": 2 if getattr(leaf, "ragged", False) else 1}


def within_targets(config: Config, shapes: Shapes) -> str:
    """Raises Mismatch where a target is missed."""
    found, at_most = counted(config, shapes), targets(config)
    text = []
    for what, word in (("launches", "launches"), ("syncs", "waits")):
        shown = f" (at most {at_most[what]})" if math.isfinite(at_most[what]) else ""
        text.append(f"{found[what]} {word}{shown}")
        if found[what] > at_most[what]:
            raise Mismatch(text[-1])
    return ", ".join(text)


@dataclass
class Seen:
    """A step: Triton kernels, other kernels and copies on the device, copies to it, copies to the host, and
    where the host waited."""

    triton: int = 0
    launches: int = 0
    to_device: int = 0
    to_host: int = 0
    waits: list[str] = field(default_factory=list)


def seen_as_counted(config: Config, given: Mapping[str, Tensor], device: torch.device) -> str:
    """Raises Mismatch where a step on the GPU launches more kernels, or waits more often, than counted."""
    expected = counted(config, {name: one.shape for name, one in given.items()})
    seen = observed(config, given, device)
    text = (
        f"{seen.launches} launches ({expected['launches']} counted), {seen.triton} of Triton "
        f"({expected['triton']}), {len(seen.waits)} waits ({expected['syncs']}), {seen.to_device} copies to "
        f"the GPU, {seen.to_host} back"
    )
    if len(seen.waits) > expected["syncs"]:
        raise Mismatch(f"{text}; it waits at {', '.join(seen.waits)}")
    has_target = math.isfinite(targets(config)["launches"])
    too_many = has_target and seen.launches > MORE * expected["launches"]
    if seen.triton != expected["triton"] or too_many:
        raise Mismatch(text)
    return text


def observed(config: Config, given: Mapping[str, Tensor], device: torch.device) -> Seen:
    """Take steps, the last worker of torch's `fake` process group sending the same, and look at two of
    them."""
    gradients = {name: one.to(device) for name, one in given.items()}
    parameters = {name: nn.Parameter(torch.zeros_like(one)) for name, one in gradients.items()}
    seen = Seen()
    with fake_workers(WORKERS):
        loop = Loop(config, parameters, device)

        def prepare() -> None:
            for name, parameter in parameters.items():
                parameter.grad = gradients[name].clone()
            synchronize(device)

        def step() -> None:
            if not loop.step():
                raise Mismatch("the step was left out")

        for _ in range(WARMUP):
            prepare()
            step()
        prepare()
        with host_waits(device) as seen.waits:
            step()
        prepare()
        before, *_ = triton_counts()
        loop.world.ledger.clear()
        names = on_device(device, step)
        seen.triton = triton_counts()[0] - before
        calls = loop.world.ledger.calls_by_collective()
    # The `fake` group copies what is gathered once for each worker.
    copied = WORKERS * sum(count for kind, count in calls.items() if "gather" in kind)
    seen.to_device, seen.to_host = (sum(n.startswith(copy) for n in names) for copy in COPIES)
    seen.launches = len(names) - seen.to_device - seen.to_host - copied
    return seen


def on_device(device: torch.device, step: Callable[[], None]) -> list[str]:
    """The names of what the profiler sees on the device in a step. On the CPU the step is taken, unseen."""
    if device.type != CUDA:
        step()
        return []
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        step()
        synchronize(device)
    events: Any = profiler.events()
    names = [
        event.name
        for event in events
        if event.device_type.name == "CUDA" and not getattr(event, "is_user_annotation", False)
    ]
    if not names:
        raise Skip("torch.profiler sees no kernel: CUPTI is missing or not permitted here")
    return names


@contextmanager
def host_waits(device: torch.device) -> Iterator[list[str]]:
    """Inside, each wait of the host for the device joins the list, with its line: those that CUDA's sync
    debug mode reports, and waits for events, streams and the device."""
    found: list[str] = []
    with event_waits() as events, warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        if device.type == CUDA:
            torch.cuda.set_sync_debug_mode("warn")  # "error" would end at the wait that must be
        try:
            yield found
        finally:
            if device.type == CUDA:
                torch.cuda.set_sync_debug_mode("default")
    synchronizing = [one for one in said if "synchronizing CUDA operation" in str(one.message)]
    found += [f"{one.filename}:{one.lineno}" for one in synchronizing]
    found += [f"synchronize of {name}" for name in events]


def synchronize(device: torch.device) -> None:
    """Wait for the device."""
    if device.type == CUDA:
        torch.cuda.synchronize(device)
