"""DDP loops of users, for test_attach.py: what a model may be like, and what a loop may do.

Every loop trains by SGD with momentum and weight decay. A job runs on each rank of a real world.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import io
import itertools
import math
import pickle
import re
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.utils.checkpoint
from jobs import raised
from laws import same
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import (
    bf16_compress_hook,
    bf16_compress_wrapper,
    fp16_compress_hook,
    fp16_compress_wrapper,
)
from torch.nn.parallel import DistributedDataParallel

from dgc_repro.compressor.block_momentum import BlockMomentum
from dgc_repro.compressor.clip_local import ClipLocal
from dgc_repro.compressor.dense import Dense
from dgc_repro.compressor.dion import Dion
from dgc_repro.compressor.error_feedback import ErrorFeedback
from dgc_repro.compressor.fp16 import FP16
from dgc_repro.compressor.interface import Compressor, Context
from dgc_repro.compressor.ladder import Ladder
from dgc_repro.compressor.momentum_correction import MomentumCorrection
from dgc_repro.compressor.nesting import momentum_of_matrices
from dgc_repro.compressor.per_layer import PerLayer
from dgc_repro.compressor.topk import TopK
from dgc_repro.compressor.uniform import Uniform
from dgc_repro.errors import UserError
from dgc_repro.exchange import ddp, rendezvous, settle
from dgc_repro.exchange.attached import Attached, attach
from dgc_repro.exchange.comm_hook import HookState, comm_hook
from dgc_repro.exchange.reshard import keyed, states_of
from dgc_repro.payload import Wholes
from dgc_repro.payload.requests import Mean, Outcome
from dgc_repro.policy.accordion import Accordion
from dgc_repro.policy.fixed import Fixed
from dgc_repro.policy.gravac import GraVAC
from dgc_repro.policy.interface import EpochReport, Plan, State
from dgc_repro.policy.stepwise import Stepwise

EF4 = ErrorFeedback(Uniform(4))
OVERLAP = (False, True)


class Layers(nn.Module):
    """Linear layers of any types, one after another."""

    def __init__(self, *dtypes: torch.dtype) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6, dtype=dtype) for dtype in dtypes)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x.to(layer.weight.dtype)))
        return x.abs().float() if x.is_complex() else x.float()


class Tied(Layers):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__(torch.float32, torch.float32)
        self.layers[1].weight = self.layers[0].weight


class Convolution(nn.Module):
    """A convolution in channels-last memory format, and for real numbers a normalization and a layer."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        weight = torch.randn(4, 3, 2, 2, dtype=dtype).to(memory_format=torch.channels_last)
        self.weight = nn.Parameter(weight)
        self.end = nn.Identity()
        if not dtype.is_complex:
            self.end = nn.Sequential(nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(8, 3))

    def forward(self, x: Tensor) -> Tensor:
        images = x.view(-1, 1, 2, 3).expand(-1, 3, -1, -1).to(self.weight.dtype)
        found = self.end(nn.functional.conv2d(images, self.weight))
        return found.abs().float() if found.is_complex() else found  # type: ignore[no-any-return]


class Sided(nn.Module):
    """A layer that every batch uses and two that some do: `side` as ``on`` says, `idle` never."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.side, self.idle = (nn.Linear(6, 6) for _ in range(3))
        self.on = True

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x) + (self.side(x) if self.on else 0)  # type: ignore[no-any-return]


MODELS: Mapping[str, Callable[[], nn.Module]] = {
    "float32": lambda: Layers(torch.float32, torch.float32),
    "float64": lambda: Layers(torch.float64),
    "float16": lambda: Layers(torch.float16),
    "bfloat16": lambda: Layers(torch.bfloat16),
    "mixed": lambda: Layers(torch.float32, torch.float64, torch.bfloat16, torch.complex64),
    "complex64": lambda: Layers(torch.complex64, torch.complex64),
    "complex128": lambda: Layers(torch.complex128),
    "tied": Tied,
    "channels last": Convolution,
    "complex channels last": lambda: Convolution(torch.complex64),
    "unused": Sided,
}


@dataclass
class Loop:
    """A loop. ``compressor``: None for plain DDP."""

    model: str
    compressor: Compressor | None
    overlap: bool = False
    hook: bool = False  # as torch's communication hook
    early: bool = False  # the hook's state is made before DDP
    wrapper: Callable[[Any], Any] | None = None  # torch's, around the hook
    unit: str = "layer"
    steps: int = 4
    micro_steps: int = 1
    no_sync: bool = True  # on all micro-batches but the last
    view: bool = False
    static: bool = False  # a static graph
    set_to_none: bool = True
    frozen: bool = False  # the first layer, before DDP wraps the model
    freezes: tuple[int, int] | None = None  # the first layer, from one step to another
    scaled: bool = False
    grows_every: int = 2000  # steps, the scale
    overflows: tuple[int, int] | None = None  # rank, step; caught where the loss is not scaled
    leaves_out: int | None = None  # a step whose batch nobody looks at
    resume_at: int | None = None  # a step after which the exchange is saved, spoiled and loaded
    form: str = "own"  # of what is saved: or "by_rank", "gathered"
    folder: str = ""  # where
    pause_seconds: float = 0.0  # before the last bucket is ready
    settings: dict[str, Any] = field(default_factory=dict)  # of `attach`
    sends_first: bool = False  # payloads before the signals are read, as on a GPU


def joined(model: DistributedDataParallel, loop: Loop) -> Attached:
    """The model's exchange."""
    assert loop.compressor is not None
    if not loop.hook:
        ways: dict[str, Any] = {"overlap": loop.overlap, "unit": loop.unit}
        return attach(model, loop.compressor, **ways, **loop.settings)
    return registered(model, HookState(model, loop.compressor, **loop.settings), loop)


def registered(model: DistributedDataParallel, state: HookState, loop: Loop) -> HookState:
    model.register_comm_hook(state, loop.wrapper(comm_hook) if loop.wrapper else comm_hook)
    return state


def early(net: nn.Module, loop: Loop) -> tuple[DistributedDataParallel, HookState]:
    """A model whose hook's state is made before DDP wraps it."""
    assert loop.compressor is not None
    state = HookState(net, loop.compressor, **loop.settings)
    model = wrapped(net, loop)
    return model, registered(model, state, loop)


def first_layer(net: Any) -> Any:
    return net.body if isinstance(net, Sided) else net.layers[0]


def net_of(loop: Loop) -> nn.Module:
    torch.manual_seed(0)
    net = MODELS[loop.model]()
    if loop.frozen:
        first_layer(net).requires_grad_(False)
    return net


def built(loop: Loop) -> DistributedDataParallel:
    return wrapped(net_of(loop), loop)


def wrapped(net: nn.Module, loop: Loop) -> DistributedDataParallel:
    return DistributedDataParallel(
        net,
        bucket_cap_mb=1e-4,
        gradient_as_bucket_view=loop.view,
        find_unused_parameters=loop.model == "unused" or loop.freezes is not None,
        static_graph=loop.static,
    )


def play(loop: Loop) -> dict[str, Any]:
    """Every step's own gradients, means and states, and what came of it."""
    first = settle.SEND_FIRST | ({"cpu"} if loop.sends_first else frozenset())
    with patch.object(settle, "SEND_FIRST", first):
        return played_out(loop)


def played_out(loop: Loop) -> dict[str, Any]:
    """See `play`."""
    rank, exchange = dist.get_rank(), None
    scaler = torch.amp.GradScaler(
        "cpu", init_scale=2.0**10, growth_interval=loop.grows_every, enabled=loop.scaled
    )
    if loop.hook or loop.overlap:
        loop = replace(loop, settings={**loop.settings, "scaler": scaler})
    if loop.early:
        model, exchange = early(net_of(loop), loop)
    else:
        model = built(loop)
    net: Any = model.module
    has_own = loop.compressor is not None and momentum_of_matrices(loop.compressor)
    momentum = 0.0 if has_own else 0.9
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=momentum, weight_decay=0.01)
    told: dict[str, Any] = {"message": "", "buckets": [], "early": [], "applied": []}
    if loop.compressor is not None and not loop.early:
        exchange = joined(model, loop)
        watch_buckets(exchange, told)
    if loop.pause_seconds:
        net.layers[0].bias.register_hook(lambda _: time.sleep(loop.pause_seconds))
    source = torch.Generator().manual_seed(rank)
    own, means, states, scales = [], [], [], []
    for step in range(loop.steps):
        optimizer.zero_grad(set_to_none=loop.set_to_none)
        if loop.model == "unused":  # by all ranks, by none, by one, by none
            net.on = step % 4 == 0 or (step % 4 == 2 and rank == 0)
        if loop.freezes is not None:
            first_layer(net).requires_grad_(not loop.freezes[0] <= step < loop.freezes[1])
        for micro in range(loop.micro_steps):
            x = torch.randn(8, 6, generator=source)
            if step == loop.leaves_out:
                continue
            if loop.overflows == (rank, step):
                x[0, 0] = torch.inf
            holds = loop.no_sync and micro < loop.micro_steps - 1
            with model.no_sync() if holds else torch.enable_grad():
                loss = model(x).square().mean() / loop.micro_steps
                try:
                    scaler.scale(loss).backward()
                except UserError as error:  # of a hook
                    if loop.overflows is None or step != loop.overflows[1]:
                        raise
                    told["message"] = str(error)
        own.append(gradients(net))
        if exchange is not None and step != loop.leaves_out:
            try:
                if not isinstance(exchange, HookState):
                    told["applied"].append(exchange.step(scaler=scaler, samples=8))
            except UserError as error:
                if loop.overflows is None or step != loop.overflows[1]:
                    raise
                told["message"] = str(error)
            states.append(copy.deepcopy(exchange.state_dict()["exchange"]["tensors"]))
        means.append(gradients(net))
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        if exchange is not None and loop.resume_at == step + 1:
            spoil_and_load(exchange, loop.form, loop.folder)
    told |= {"own": own, "means": means, "states": states, "scales": scales}
    if exchange is not None:
        told["saved"] = copy.deepcopy(exchange.state_dict())
        exchange.detach()
    told["buffers"] = [buffer.clone() for buffer in net.buffers()]
    return told | {"parameters": {name: p.detach().clone() for name, p in net.named_parameters()}}


def spoil_and_load(exchange: Attached, form: str, folder: str) -> None:
    """Save an exchange to a file twice, lose its state, load the file."""
    file = io.BytesIO()
    for _ in range(2):
        if form == "own":
            torch.save(exchange.state_dict(), file)
        else:
            save(exchange, form, folder)
    exchange._exchange.states = [exchange._exchange._initial()]
    exchange._exchange.step = 99
    exchange._steps.progress.policy = exchange._policy.init()
    if form == "by_rank":
        dcp.load({"exchange": exchange.by_rank()}, checkpoint_id=folder)
    elif form == "gathered":
        exchange.load_state_dict(torch.load(f"{folder}/all.pt", weights_only=True))
    else:
        file.seek(0)
        exchange.load_state_dict(torch.load(file, weights_only=True))


def save(exchange: Attached, form: str, folder: str) -> None:
    """Save the states of all ranks: each its own, or rank 0 all."""
    if form == "by_rank":
        dcp.save({"exchange": exchange.by_rank()}, checkpoint_id=folder)
        return
    state = exchange.gathered().state_dict()
    if dist.get_rank() == 0:
        torch.save(state, f"{folder}/all.pt")
    dist.barrier()


def saved_by_these(folder: str) -> dict[str, Any]:
    """Save an exchange after a step in both forms."""
    model, exchange = attached(False)
    backward(model, dist.get_rank())
    exchange.step()
    for form in ("by_rank", "gathered"):
        save(exchange, form, folder)
    exchange.detach()
    return exchange.state_dict()


def loaded(folder: str, form: str) -> dict[str, Any]:
    """The states of all ranks, of either form."""
    if form == "gathered":
        return torch.load(f"{folder}/all.pt", weights_only=True)  # type: ignore[no-any-return]
    known = dcp.FileSystemReader(folder).read_metadata().state_dict_metadata
    found: dict[str, Any] = {key: None for key in known if key.startswith("exchange.")}
    dcp.load(found, checkpoint_id=folder)
    return {key.removeprefix("exchange."): value for key, value in found.items()}


def loaded_by_these(
    folder: str, form: str, reshard: str, compressor: Compressor = EF4
) -> tuple[str, dict[str, Any]]:
    """What another world is told that loads it, and its state then."""
    _, exchange = attached(False, compressor=compressor)
    state = loaded(folder, form)
    said = raised(lambda: exchange.gathered(reshard=reshard).load_state_dict(state))
    exchange.detach()
    return said, exchange.state_dict()


def early_hook_in_a_checkpoint(folder: str) -> list[Any]:
    """A hook's state that is saved in both forms before its first step, and loaded into new ones."""
    found = []
    for form in ("by_rank", "gathered"):
        _, bound = hooked_up()
        net = Layers(torch.float32, torch.float32)
        early = HookState(net, EF4)
        save(early, form, folder)
        if form == "by_rank":
            dcp.load({"exchange": early.by_rank()}, checkpoint_id=folder)
        else:
            early.load_state_dict(torch.load(f"{folder}/all.pt", weights_only=True))
        found.append(states_of(early.state_dict()))
        model, state = hooked_up()
        backward(model, dist.get_rank())
        save(state, form, folder)
        if form == "by_rank":
            dcp.load({"exchange": early.by_rank()}, checkpoint_id=folder)
        else:
            early.load_state_dict(torch.load(f"{folder}/all.pt", weights_only=True))
        wrapped = DistributedDataParallel(net)
        wrapped.register_comm_hook(early, comm_hook)
        wrapped(torch.ones(2, 6))  # binds
        found.append(same(early.state_dict()["exchange"], state.state_dict()["exchange"]))
        for one in (bound, early, state):
            one.close()
    return found


def watch_buckets(exchange: Attached, told: dict[str, Any]) -> None:
    """Note how many tensors each bucket holds, and which are received before the last has come."""
    joined = exchange._junction
    if not isinstance(joined, ddp.PerBucket):
        return
    send, receive_landed = joined._send, joined._receive_landed

    def counted(bucket: dist.GradBucket) -> None:
        told["buckets"].append(len(bucket.parameters()))
        send(bucket)

    def noted(part: int) -> bool:
        if done := receive_landed(part):
            told["early"].append(part)
        return done

    joined._send, joined._receive_landed = counted, noted  # type: ignore[method-assign]


def gradients(net: nn.Module) -> dict[str, Tensor | None]:
    return {n: None if p.grad is None else p.grad.clone() for n, p in net.named_parameters()}


def played_by_ranks(loops: list[Loop]) -> str:
    """What a rank is told whose loop may be another than the other ranks'."""
    return raised(lambda: play(loops[dist.get_rank()]))


@dataclass(frozen=True)
class Broken:
    """A compressor that fails in its exchange, on some step."""

    at: int

    def init(self, tensor: Tensor) -> dict[str, Any]:
        return {}

    def exchange(self, tensor: Tensor, state: dict[str, Any], context: Any) -> Any:
        if context.step == self.at:
            raise ZeroDivisionError("broken on purpose")
        return (yield from Dense().exchange(tensor, state, context))


class Hidden:
    """A compressor of which ranks can compare nothing but the class."""

    def __init__(self, inner: Compressor) -> None:
        self._inner = inner

    def init(self, tensor: Tensor) -> dict[str, Any]:
        return self._inner.init(tensor)

    def exchange(self, tensor: Tensor, state: dict[str, Any], context: Any) -> Any:
        return (yield from self._inner.exchange(tensor, state, context))


def attached_with_other_arguments(argument: str, way: str) -> str:
    """What ranks are told of which the last one gives another argument, and of a model's other shape."""
    is_last = dist.get_rank() == dist.get_world_size() - 1
    values: dict[str, tuple[Any, Any]] = {
        "seed": (3, 4),
        "compressor": (ErrorFeedback(TopK(0.1)), ErrorFeedback(TopK(0.2))),
        "policy": (Fixed("density", (0.5,), 0), Fixed("density", (0.5,), 1)),
        "unit": ("layer", "model"),
        "overlap": (False, True),
        "on_nonfinite": ("raise", "skip"),
        "check": (True, False),
        "scaler": (None, torch.amp.GradScaler("cpu")),
    }
    settings: dict[str, Any] = {"compressor": EF4, "check": True}
    if argument == "policy":
        settings["compressor"] = ErrorFeedback(Ladder((Dense(), TopK(0.5))))
    if argument != "model":
        settings[argument] = values[argument][is_last]
    model = built(Loop("float32", None))
    if argument == "model":
        model.module.layers[1].bias.requires_grad_(not is_last)
    compressor = settings.pop("compressor")
    if way == "hook":
        return raised(lambda: HookState(model, compressor, **settings))
    return raised(lambda: attach(model, compressor, **settings))


MISTAKES: Mapping[str, dict[str, Any]] = {
    "unit": {"unit": "tensor"},
    "overlap": {"overlap": "yes"},
    "on_nonfinite": {"on_nonfinite": "ignore"},
    "scaler": {"scaler": 2.0},
    "no object": {"compressor": TopK},
    "rungs": {"compressor": Ladder((Dense(), TopK(0.5)))},
    "no DDP": {"model": nn.Linear(2, 2)},
    "sharded": {"dim": "node"},
    "attached twice": {},
    "hook": {"compressor": TopK},
    "hook or attach": {},
}


def mistaken_on_one_rank(mistake: str) -> tuple[str, str]:
    """What ranks are told of which the last one makes a mistake, and what a sound call says afterwards."""
    is_last = dist.get_rank() == dist.get_world_size() - 1
    model = built(Loop("float32", None))
    given: dict[str, Any] = {"model": model, "compressor": EF4}
    given |= MISTAKES[mistake] if is_last else {}
    if mistake.startswith("hook") and (is_last or mistake == "hook"):
        said = raised(lambda: HookState(**given))
    elif mistake == "attached twice":
        other, first = built(Loop("float32", None)), attach(**given)
        said = raised(lambda: attach(**given if is_last else given | {"model": other}))
        first.detach()
    else:
        said = raised(lambda: attach(**given))
    return said, raised(lambda: attach(model, EF4).detach())


def without_attach() -> tuple[str, float, str, dict[str, Any]]:
    """Rank 1 trains and does not attach; later all do. What the others are told, after how many seconds,
    what the second call says, and the gradients then."""
    model = built(Loop("float32", None))
    said, begun = "nothing", time.monotonic()
    if dist.get_rank() != 1:
        said = raised(lambda: attach(model, EF4, timeout_seconds=0.5))
    took = time.monotonic() - begun
    backward(model, dist.get_rank())
    model.zero_grad()
    exchange = attach(model, EF4)
    backward(model, dist.get_rank())
    again = raised(exchange.step)
    exchange.detach()
    return said, took, again, gradients(model.module)


# What a loop may do wrong, or unusually: each is given `overlap`, and returns what it was told.


def backward(model: nn.Module, rank: int = 0) -> None:
    model(torch.ones(2, 6) * (1 + rank)).square().mean().backward()


def attached(
    overlap: bool, name: str = "float32", frozen: bool = False, **settings: Any
) -> tuple[Any, Attached]:
    model = built(Loop(name, EF4, frozen=frozen))
    return model, attach(model, settings.pop("compressor", EF4), overlap=overlap, **settings)


def sparse(overlap: bool) -> str:
    model = DistributedDataParallel(nn.Sequential(nn.Embedding(5, 6, sparse=True), nn.Linear(6, 6)))
    return raised(lambda: attach(model, EF4, overlap=overlap))


def no_ddp(overlap: bool) -> str:
    return raised(lambda: attach(nn.Linear(2, 2), EF4, overlap=overlap))  # type: ignore[arg-type]


def hooked(overlap: bool) -> str:
    model = built(Loop("float32", EF4))
    model.register_comm_hook(None, fp16_compress_hook)
    return raised(lambda: attach(model, EF4, overlap=overlap))


def unknown_unit(overlap: bool) -> str:
    return raised(lambda: attached(overlap, unit="tensor"))


def unit_of_model(overlap: bool) -> str:
    return raised(lambda: attached(overlap, unit="model"))


def unknown_overlap(overlap: bool) -> str:
    return raised(lambda: attached("per_bucket"))  # type: ignore[arg-type]


LADDER = ErrorFeedback(Ladder((Dense(), TopK(factor=2), TopK(factor=4), TopK(factor=8))))


def gravac(decide: str = "last", eps: float = 0.6) -> GraVAC:
    return GraVAC(
        theta_min=2, theta_max=8, eps=eps, smoothing=1.0, window=2, omega=0.0, decide=decide
    )


def metrics_by_step(overlap: bool) -> tuple[list[dict[str, float]], dict[str, float], int]:
    """What `metrics` returns before the first step and after each, where a policy chooses by gradient (but
    not with ``overlap``); the ledger's columns; how many collectives a call on rank 0 alone takes."""
    assert HookState(nn.Linear(2, 2), EF4).metrics() == {}
    policy = gravac("last" if overlap else "now")
    model, exchange = attached(overlap, compressor=LADDER, policy=policy)
    found = [exchange.metrics()]
    for _ in range(6):
        model.zero_grad()
        backward(model, dist.get_rank())
        exchange.step(samples=2)
        found.append(exchange.metrics())
    calls = sum(exchange.ledger.calls_by_collective().values())
    if dist.get_rank() == 0:
        exchange.metrics()
    calls -= sum(exchange.ledger.calls_by_collective().values())
    ledger = exchange.ledger.metrics()
    exchange.detach()
    return found, ledger, calls


def rungs_around_an_epoch(overlap: bool) -> list[float]:
    """``policy/rung`` after a step, after `end_epoch` has moved the policy, after a step, and detached."""
    ladder = ErrorFeedback(Ladder((Dense(), Uniform(bits=8), Uniform(bits=4))))
    policy = Stepwise(field="bits", values=[8, 4], accuracy_thresholds=[60.0])
    model, exchange = attached(overlap, compressor=ladder, policy=policy)
    found = []
    for step in range(2):
        backward(model, dist.get_rank())
        exchange.step()
        found.append(exchange.metrics()["policy/rung"])
        model.zero_grad()
        if step == 0:
            exchange.end_epoch(EpochReport(1, 1.0, 1.0, 61.0))
            found.append(exchange.metrics()["policy/rung"])
    exchange.detach()
    return [*found, exchange.metrics()["policy/rung"]]


def decides_now(overlap: bool) -> str:
    return raised(lambda: attached(overlap, compressor=LADDER, policy=gravac("now")))


def attached_twice(overlap: bool) -> str:
    model, first = attached(overlap)
    said = raised(lambda: attach(model, EF4, overlap=overlap))
    first.detach()
    return said


def backward_twice(overlap: bool) -> str:
    model, exchange = attached(overlap)
    backward(model)
    said = raised(lambda: backward(model))
    exchange.detach()
    return said


def damaged(kind: str) -> str:
    """What a loop is told that loads a state in which something is wrong. Nothing changes."""
    model, exchange = attached(False, compressor=LADDER, policy=gravac())
    backward(model)
    exchange.step(samples=2)
    state = copy.deepcopy(exchange.state_dict())
    before = copy.deepcopy(state)
    bad: Any = {
        "no rank": {k: v for k, v in state.items() if k != "rank"},
        "no residuals": {k: v for k, v in state.items() if k != "exchange"},
        "of a rank, no residuals": keyed(
            {rank: {"world_size": 2, "rank": rank} for rank in (0, 1)}
        ),
        "a number": {"rank0": 3, "rank1": 3},
        "nothing": None,
        "another policy": state | {"policy": {"epoch": 0}},
    }[kind]
    said = raised(lambda: exchange.load_state_dict(bad))
    assert same(exchange.state_dict()["exchange"], before["exchange"])
    assert exchange.state_dict()["ledger"] == before["ledger"]
    exchange.detach()
    return said


def two_backwards(model: nn.Module) -> None:
    """Through one forward."""
    loss = model(torch.ones(2, 6) * (1 + dist.get_rank())).square().mean()
    loss.backward(retain_graph=True)
    loss.backward()


def graph_twice(overlap: bool) -> str:
    model, exchange = attached(overlap)
    before = copy.deepcopy(exchange.state_dict()["exchange"]["tensors"])
    two_backwards(model)
    said = raised(exchange.step)
    if said != "nothing":
        assert same(exchange.state_dict()["exchange"]["tensors"], before)
        assert all(p.grad is None for p in model.parameters())
    model.zero_grad()
    backward(model)
    exchange.step()  # one backward is allowed
    exchange.detach()
    return said


def no_step(overlap: bool) -> str:
    model, exchange = attached(overlap)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    backward(model)
    said = raised(optimizer.step)
    exchange.step()
    optimizer.step()  # allowed now
    exchange.detach()
    return said


def no_step_without_sync(overlap: bool) -> str:
    """DDP calls no hook."""
    model, exchange = attached(overlap)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with model.no_sync():
        backward(model)
    said = raised(optimizer.step)
    exchange.detach()
    return said


def no_step_by_hand(overlap: bool) -> str:
    """Of a loop without an optimizer: the next forward."""
    model, exchange = attached(overlap)
    for _ in range(2):
        backward(model)
        exchange.step()
        update(model)
    backward(model)
    before = copy.deepcopy(exchange.state_dict()["exchange"])
    update(model)
    said = raised(lambda: backward(model))
    assert same(exchange.state_dict()["exchange"], before)
    exchange.detach()
    return said


def no_step_in_closure(overlap: bool) -> str:
    model, exchange = attached(overlap)
    before = copy.deepcopy(model.module)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    said = raised(lambda: optimizer.step(lambda: backward(model)))
    assert same(dict(before.named_parameters()), dict(model.module.named_parameters()))
    exchange.detach()
    return said


def doubled_momentum(overlap: bool | None) -> str:
    """The optimizer has momentum beside the workers'; ``overlap``: None for a hook. No parameter moves, and
    no closure runs. Returns what SGD is told."""
    found = {}
    for method in (MomentumCorrection(EF4), BlockMomentum(Uniform(4))):
        model, exchange = (
            hooked_up(method) if overlap is None else attached(overlap, compressor=method)
        )
        other = nn.Linear(2, 2)  # of no exchange
        (other(torch.ones(2)).sum()).backward()
        of_both = [{"params": other.parameters(), "betas": (0.9, 0.999)}, *no_momentum(model)]
        ours, theirs = list(model.parameters()), list(other.parameters())
        refused: dict[str, Any] = {
            "SGD": torch.optim.SGD(ours, lr=0.1, momentum=0.9),
            "AdamW": torch.optim.AdamW(ours, lr=0.1),
            "group": torch.optim.SGD([{"params": theirs}, {"params": ours, "momentum": 0.5}], 0.1),
        }
        allowed = [torch.optim.SGD(ours, lr=0.1), torch.optim.Adam(of_both, lr=0.1)]
        allowed.append(torch.optim.SGD(theirs, lr=0.1, momentum=0.9))
        backward(model)
        if overlap is not None:
            exchange.step()
        before = [p.detach().clone() for p in ours]
        ran: list[int] = []
        for name, optimizer in refused.items():
            found[name] = raised(optimizer.step)
            assert raised(lambda: optimizer.step(lambda: ran.append(1))) == found[name]  # noqa: B023
        assert same(before, [p.detach() for p in ours])
        assert not ran
        for optimizer in allowed:
            optimizer.step()
        assert not same(before, [p.detach() for p in ours])
        exchange.detach()
    assert found["AdamW"].endswith("got (0.9, 0.999) here too; use betas=(0.0, 0.999)")
    assert found["group"].endswith("got 0.5 here too; use momentum=0")
    return str(found["SGD"])


def momentum_of_dion(overlap: bool) -> str:
    """Dion's residual is its momentum; the optimizer has momentum too."""
    model, exchange = attached(
        overlap, compressor=PerLayer(ErrorFeedback(Dion()), dense=("*bias",))
    )
    backward(model)
    exchange.step()
    said = raised(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9).step)
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    exchange.detach()
    return said


def trained_alone(overlap: bool) -> str:
    """A head that is added after `attach` learns on each rank alone, and DDP is told to ignore it."""
    model, exchange = attached(overlap)
    net = model.module
    net.probe = nn.Linear(6, 1)
    net._ddp_params_and_buffers_to_ignore = ["probe.weight", "probe.bias"]
    backward(model)
    net.probe(torch.ones(6) * dist.get_rank()).sum().backward()
    exchange.step()
    kept = net.probe.weight.grad is not None
    exchange.detach()
    return f"kept={kept}"


def no_momentum(model: nn.Module) -> list[dict[str, Any]]:
    return [{"params": model.parameters(), "betas": (0.0, 0.999)}]


def hook_with_doubled_momentum() -> str:
    return doubled_momentum(None)


def step_twice_in_an_accumulation(overlap: bool) -> str:
    """Each backward adds to the means of the step before. A gradient may have been clipped in between."""
    said = ""
    for view, clips in itertools.product((False, True), repeat=2):
        model = built(Loop("float32", EF4, view=view))
        exchange = attach(model, EF4, overlap=overlap)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        backward(model)
        exchange.step()
        before = copy.deepcopy(exchange.state_dict()["exchange"]["tensors"])
        if clips:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        for _ in range(1 if overlap else 2):
            backward(model)
        said = raised(exchange.step)
        assert same(exchange.state_dict()["exchange"]["tensors"], before)
        assert all(p.grad is None for p in model.parameters())
        backward(model)  # the next one is sound
        exchange.step()
        optimizer.step()
        exchange.detach()
    return said


def step_twice(overlap: bool) -> str:
    model, exchange = attached(overlap)
    said = ""
    for clips in (False, True):
        model.zero_grad()
        backward(model, dist.get_rank())
        assert exchange.step() is True
        before = copy.deepcopy(exchange.state_dict()["exchange"]["tensors"])
        if clips:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        said = raised(exchange.step)
        assert same(exchange.state_dict()["exchange"]["tensors"], before)
    exchange.detach()
    return said


def step_after_zero_grad(overlap: bool) -> str:
    model, exchange = attached(overlap)
    backward(model)
    model.zero_grad()
    before = copy.deepcopy(exchange.state_dict()["exchange"]["tensors"])
    said = raised(exchange.step)
    assert same(exchange.state_dict()["exchange"]["tensors"], before)
    exchange.detach()
    return said


def update(model: nn.Module, rate: float = 0.1) -> None:
    """A step of SGD by hand."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter -= rate * parameter.grad
            parameter.grad = None


# What a loop may do: each takes two steps, or raises.


def evaluated_in_between(model: Any, exchange: Attached, optimizer: Any) -> None:
    for _ in range(2):
        backward(model)
        with torch.no_grad():
            model(torch.ones(2, 6))
        model.eval()
        model(torch.ones(2, 6))
        model.train()
        exchange.step()
        model(torch.ones(2, 6))  # as it was before the update
        optimizer.step()
        optimizer.zero_grad()


def accumulated(model: Any, exchange: Attached, optimizer: Any) -> None:
    for _ in range(2):
        with model.no_sync():
            backward(model)
            backward(model)
        two = model(torch.ones(2, 6)) + model(torch.zeros(2, 6))
        two.sum().backward()
        exchange.step()
        optimizer.step()
        optimizer.zero_grad()


def perturbed(model: Any, exchange: Attached, optimizer: Any) -> None:
    """Sharpness-aware minimization: the second gradient counts."""
    for _ in range(2):
        with model.no_sync():
            backward(model)
        update(model, -0.1)
        backward(model)
        exchange.step()
        optimizer.step()
        optimizer.zero_grad()


def with_closures(model: Any, exchange: Attached, optimizer: Any) -> None:
    def closure() -> Tensor:
        model.zero_grad()
        loss: Tensor = model(torch.ones(2, 6)).square().mean()
        loss.backward()
        exchange.step()
        return loss

    lbfgs = torch.optim.LBFGS(model.parameters(), max_iter=3)
    lbfgs.step(closure)
    optimizer.step(closure)


def last_backward_in_a_closure(model: Any, exchange: Attached, optimizer: Any) -> None:
    """Lightning's way to accumulate."""

    def closure() -> None:
        backward(model)
        exchange.step()

    for _ in range(2):
        optimizer.zero_grad()
        with model.no_sync():
            backward(model)
        optimizer.step(closure=closure)


def left_out_by_hand(model: Any, exchange: Attached, optimizer: Any) -> None:
    """Nothing is applied, and gradients are zeroed."""
    for set_to_none in (True, False):
        backward(model)
        exchange.step()
        with model.no_sync():
            backward(model)
        optimizer.zero_grad(set_to_none=set_to_none)


def never_zeroed(model: Any, exchange: Attached, optimizer: Any) -> None:
    for _ in range(2):
        backward(model)
        exchange.step()
        optimizer.step()


def checkpointed(model: Any, exchange: Attached, optimizer: Any) -> None:
    for _ in range(2):
        x = torch.ones(2, 6)
        found = torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False)
        found.sum().backward()
        exchange.step()
        optimizer.step()
        optimizer.zero_grad()


def adversarial(model: Any, exchange: Attached, optimizer: Any) -> None:
    """A GAN: `model` judges, the gradients of the generator's turn are dropped."""
    generator = DistributedDataParallel(nn.Linear(6, 6))
    other = attach(generator, EF4, overlap=exchange._junction.overlaps)
    moves = torch.optim.SGD(generator.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        (model(torch.ones(2, 6)) - model(generator(torch.ones(2, 6)).detach())).sum().backward()
        exchange.step()
        optimizer.step()
        moves.zero_grad()
        with model.no_sync():
            model(generator(torch.ones(2, 6))).sum().backward()
        other.step()
        moves.step()
    other.detach()


def sum_of_backwards(model: Any, exchange: Attached, optimizer: Any) -> None:
    for _ in range(2):
        backward(model)
        backward(model)
        exchange.step()
        optimizer.step()
        optimizer.zero_grad()


def written_by_hand(model: Any, exchange: Attached, optimizer: Any) -> None:
    for _ in range(2):
        loss = model.module(torch.ones(2, 6)).sum()
        found = torch.autograd.grad(loss, list(model.parameters()))
        for parameter, gradient in zip(model.parameters(), found, strict=True):
            parameter.grad = gradient
        exchange.step()
        optimizer.step()


def one_rank_alone(model: Any, exchange: Attached, optimizer: Any) -> None:
    for _ in range(2):
        optimizer.zero_grad()
        if dist.get_rank() == 1:
            with model.no_sync():
                backward(model)
        exchange.step()
        optimizer.step()


def renormalized(model: Any, exchange: Attached, optimizer: Any) -> None:
    """A forward that writes its weight, between two backwards of a step."""
    table = DistributedDataParallel(nn.Embedding(4, 3, max_norm=0.5))
    other = attach(table, EF4)
    moves = torch.optim.SGD(table.parameters(), lr=0.1)
    for _ in range(2):
        moves.zero_grad()
        for _ in range(2):
            table(torch.arange(4)).sum().backward()
        other.step()
        moves.step()
    other.detach()


def freed_after_an_evaluation() -> bool:
    """Whether a model that nobody holds is freed, although its buffers are kept for steps to skip."""
    model = DistributedDataParallel(nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3)))
    exchange = attach(model, EF4, on_nonfinite="skip")
    model(torch.randn(4, 6)).sum().backward()
    exchange.step()
    model.eval()(torch.randn(4, 6))
    found = weakref.ref(model)
    del model, exchange
    gc.collect()
    return found() is None


def loop_of(name: str, overlap: bool) -> tuple[str, int, dict[str, Tensor]]:
    """What a loop is told, its steps, and its parameters."""
    model, exchange = attached(overlap)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    said = raised(lambda: globals()[name](model, exchange, optimizer))
    steps = exchange._exchange.step
    exchange.detach()
    return said, steps, {n: p.detach().clone() for n, p in model.module.named_parameters()}


def skipped_by_one_rank(overlap: bool) -> tuple[list[bool], bool, bool]:
    """What `step` returns, and whether the skipped step left a gradient or a change in a residual."""
    model, exchange = attached(overlap)
    applied = []
    for step in range(3):
        before = copy.deepcopy(exchange.state_dict()["exchange"]["tensors"])
        model.zero_grad()
        backward(model, dist.get_rank())
        applied.append(exchange.step(skip=step == 1 and dist.get_rank() == 1))
        if step == 1:
            left = any(p.grad is not None for p in model.parameters())
            changed = not same(exchange.state_dict()["exchange"]["tensors"], before)
    exchange.detach()
    return applied, left, changed


def dropped(overlap: bool) -> str:
    """A loop that does not keep what `attach` returns."""
    model = built(Loop("float32", EF4))
    attach(model, EF4, overlap=overlap)
    gc.collect()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    backward(model)
    return raised(optimizer.step)


def piece_of_a_page(code: str, folder: str) -> list[Tensor]:
    """Parameters after a piece of docs/own-loop.md, to which the page gives these names."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4)))
    before = [p.detach().clone() for p in model.parameters()]
    source = torch.Generator().manual_seed(dist.get_rank())
    names: dict[str, Any] = {
        "batches": [
            (torch.randn(8, 6, generator=source), torch.randint(4, (8,), generator=source))
            for _ in range(3)
        ],
        "loss_of": nn.functional.cross_entropy,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        "model": model,
        "ErrorFeedback": ErrorFeedback,
        "HookState": HookState,
        "comm_hook": comm_hook,
        "Uniform": Uniform,
        "attach": attach,
        "torch": torch,
        "contextlib": contextlib,
        "dist": dist,
        "folder": folder,
    }
    if not re.search(r"^(exchange|state) = ", code, re.M):
        names["exchange"] = attach(model, EF4)
    exec(code, names)
    exchange = names.get("exchange") or names["state"]
    assert exchange.ledger.payload_bytes > 0
    exchange.close()
    after = [p.detach().clone() for p in model.parameters()]
    assert not any(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    return after


# Communication hooks.


def hooked_up(compressor: Compressor = EF4, **settings: Any) -> tuple[Any, HookState]:
    model = built(Loop("float32", None))
    state = HookState(model, compressor, **settings)
    model.register_comm_hook(state, comm_hook)
    return model, state


def hook_of_none() -> str:
    model = built(Loop("float32", None))
    model.register_comm_hook(None, comm_hook)
    return raised(lambda: backward(model))


def hook_not_registered() -> str:
    model = built(Loop("float32", None))
    state = HookState(model, EF4)
    said = raised(lambda: backward(model))
    state.close()
    return said


def hook_of_another_model() -> str:
    state = HookState(built(Loop("float32", None)), EF4)
    model = built(Loop("float32", None))
    model.register_comm_hook(state, comm_hook)
    said = raised(lambda: backward(model))
    state.close()
    return said


def hook_with_a_step() -> str:
    model, state = hooked_up()
    backward(model)
    said = raised(state.step)
    state.close()
    return said


def hook_without_no_sync() -> str:
    """An accumulation by two backwards that DDP reduces."""
    model, state = hooked_up()
    backward(model)
    before = copy.deepcopy(state.state_dict()["exchange"]["tensors"])
    said = raised(lambda: backward(model))
    assert same(state.state_dict()["exchange"]["tensors"], before)
    state.close()
    return said


def hook_with_a_graph_twice() -> str:
    model, state = hooked_up()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = [p.detach().clone() for p in model.parameters()]
    two_backwards(model)
    said = raised(optimizer.step)
    assert same(before, [p.detach() for p in model.parameters()])
    optimizer.zero_grad()
    backward(model)
    optimizer.step()  # one backward is allowed
    state.close()
    return said


def hook_that_clips() -> str:
    return raised(lambda: hooked_up(ClipLocal(EF4)))


def hook_with_samples() -> str:
    return raised(lambda: hooked_up(LADDER, policy=gravac()))


def hook_with_a_late_plan() -> str:
    return raised(lambda: hooked_up(LADDER, policy=gravac("now")))


def hook_of_an_unknown_habit() -> str:
    return raised(lambda: hooked_up(on_nonfinite="ignore"))


# The same, with a state that is made before DDP.

HOOKED = Loop("float32", EF4, hook=True)


def trained(model: DistributedDataParallel, steps: range = range(4)) -> DistributedDataParallel:
    """By plain SGD, with other data on each rank and step."""
    for step in steps:
        model.zero_grad()
        source = torch.Generator().manual_seed(100 * step + dist.get_rank())
        x = torch.randn(8, 6, generator=source)
        model(x.to(next(model.parameters()).dtype)).square().mean().backward()
        update(model)
    return model


def told(model: DistributedDataParallel, state: HookState) -> dict[str, Any]:
    found = {n: p.detach().clone() for n, p in model.named_parameters()}
    saved = copy.deepcopy(state.state_dict())
    state.close()
    return {"parameters": found, "saved": saved}


def changed_before_ddp() -> tuple[dict[str, Any], dict[str, Any]]:
    """What comes of a state made after DDP, and of one made before the module was changed."""
    found = []
    for is_early in (False, True):
        net = net_of(HOOKED)
        state = HookState(net, EF4) if is_early else None
        net.double()
        first_layer(net).requires_grad_(False)
        model = wrapped(nn.Sequential(net), HOOKED)
        state = state or HookState(model, EF4)
        assert not is_early or state.state_dict() == {}
        state.learning_rate = 0.25
        registered(model, state, HOOKED)
        with torch.no_grad():
            model(torch.ones(2, 6))  # nothing is bound by an evaluation
        assert not is_early or state.state_dict() == {}
        trained(model)
        assert state._exchange.learning_rate == 0.25
        found.append(told(model, state))
    return found[0], found[1]


def resumed_before_ddp() -> tuple[dict[str, Any], dict[str, Any]]:
    """A loop of four steps, and one that is resumed after two, by a state that is not bound yet."""
    model, state = early(net_of(HOOKED), HOOKED)
    whole = told(trained(model), state)
    model, state = early(net_of(HOOKED), HOOKED)
    trained(model, range(2))
    saved = copy.deepcopy(state.state_dict())
    net = copy.deepcopy(model.module)
    state.close()
    state = HookState(net, EF4)
    state.load_state_dict({})
    state.load_state_dict(saved)
    assert same(state.state_dict(), saved)
    saved["exchange"]["tensors"].clear()  # the caller's own again
    model = wrapped(net, HOOKED)
    registered(model, state, HOOKED)
    trained(model, range(2, 4))
    assert raised(lambda: state.load_state_dict({})).startswith(
        "ValueError: state: it was saved before"
    )
    return whole, told(model, state)


def wrapped_again() -> tuple[dict[str, Any], dict[str, Any], str]:
    """A loop of four steps, and one whose module is wrapped anew after two, as by a second `fit`. What the
    older DDP model says."""
    model, state = early(net_of(HOOKED), HOOKED)
    whole = told(trained(model), state)
    older, state = early(net_of(HOOKED), HOOKED)
    trained(older, range(2))
    model = wrapped(older.module, HOOKED)
    registered(model, state, HOOKED)
    trained(model, range(2, 4))
    said = raised(lambda: backward(older))
    return whole, told(model, state), said


def closed_before_ddp() -> dict[str, Any]:
    plain = built(HOOKED)
    model, state = early(net_of(HOOKED), HOOKED)
    state.close()
    backward(plain, dist.get_rank())
    backward(model, dist.get_rank())
    return {"plain": gradients(plain.module), "closed": gradients(model.module)}


def refused_at_first(model: DistributedDataParallel, state: HookState) -> str:
    """What the first pass says. The state is as if it had never met the model."""
    said = raised(lambda: backward(model))
    assert state._model is None
    state.close()
    return said


def early_hook_of_nothing() -> str:
    return raised(lambda: HookState([], EF4))  # type: ignore[arg-type]


def early_hook_not_registered() -> str:
    net = net_of(HOOKED)
    state = HookState(net, EF4)
    return refused_at_first(wrapped(net, HOOKED), state)


def early_hook_of_a_copy() -> str:
    net = net_of(HOOKED)
    state = HookState(copy.deepcopy(net), EF4)
    model = wrapped(net, HOOKED)
    return refused_at_first(model, registered(model, state, HOOKED))


def early_hook_that_is_late() -> str:
    model = built(HOOKED)
    return refused_at_first(model, registered(model, HookState(model.module, EF4), HOOKED))


def early_hook_of_a_part() -> str:
    net = nn.Sequential()
    net.add_module("inner", net_of(HOOKED))
    state = HookState(net.inner, EF4)
    net.add_module("outer", nn.Linear(6, 6))
    model = wrapped(net, HOOKED)
    return refused_at_first(model, registered(model, state, HOOKED))


def early_hook_of_sparse_gradients() -> str:
    net = nn.Sequential(nn.Embedding(5, 6, sparse=True), nn.Linear(6, 6))
    return refused_at_first(*early(net, HOOKED))


def early_hook_without_all_buckets() -> str:
    model, state = early(net_of(HOOKED), HOOKED)
    model.skip_all_reduce_unused_params = True
    return refused_at_first(model, state)


def early_hook_with_another_ranks_state() -> str:
    model, state = early(net_of(HOOKED), HOOKED)
    trained(model)
    all_saved: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(all_saved, state.state_dict())
    state.close()
    model, state = early(net_of(HOOKED), HOOKED)
    state.load_state_dict(all_saved[0])
    return refused_at_first(model, state)


def early_hook_at_the_end_of_no_epoch() -> str:
    _, state = early(net_of(HOOKED), HOOKED)
    return raised(lambda: state.end_epoch(EpochReport(1, 1.0, 1.0, 50.0)))


def torchs_and_our_halves() -> dict[str, list[dict[str, Tensor | None]]]:
    """Gradients of some steps with torch's hook and with ours."""
    return side_by_side(fp16_compress_hook, *hooked_up(FP16()))


def torchs_and_our_bf16(is_early: bool) -> dict[str, list[dict[str, Tensor | None]]]:
    """The same in bfloat16, where a wrapper of torch's converts what our hook averages."""
    loop = Loop("float32", Dense(), hook=True, wrapper=bf16_compress_wrapper)
    if is_early:
        return side_by_side(bf16_compress_hook, *early(net_of(loop), loop))
    model = built(loop)
    return side_by_side(bf16_compress_hook, model, joined(model, loop))


def side_by_side(
    hook: Callable[..., Any], ours: Any, state: Attached
) -> dict[str, list[dict[str, Tensor | None]]]:
    theirs = built(Loop("float32", None))
    theirs.register_comm_hook(dist.group.WORLD, hook)
    found: dict[str, list[dict[str, Tensor | None]]] = {"theirs": [], "ours": []}
    for name, model in {"theirs": theirs, "ours": ours}.items():
        source = torch.Generator().manual_seed(dist.get_rank())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.randn(8, 6, generator=source)).square().mean().backward()
            found[name].append(gradients(model.module))
            optimizer.step()
    state.close()
    return found


def closed_hook() -> dict[str, Any]:
    """Gradients of plain DDP and of a model whose hook was closed."""
    rank, plain = dist.get_rank(), built(Loop("float32", None))
    model, state = hooked_up()
    backward(model, rank)
    state.close()
    model.zero_grad()
    backward(plain, rank)
    backward(model, rank)
    return {"plain": gradients(plain.module), "closed": gradients(model.module)}


def uneven(overlap: bool, batches: tuple[int, int] = (1, 1)) -> str:
    """In `model.join`, so many batches on rank 0 and on the others."""
    model, exchange = attached(overlap)

    def joined() -> None:
        with model.join():
            for _ in range(batches[dist.get_rank() > 0]):
                backward(model)
                exchange.step()

    said = raised(joined)
    exchange.detach()
    return said


def really_uneven(overlap: bool) -> str:
    return uneven(overlap, (3, 5))


def batches_compared(overlap: bool) -> str:
    _, exchange = attached(overlap)
    exchange.compare_batches(3)
    exchange.compare_batches(None)
    said = raised(lambda: exchange.compare_batches(3 + dist.get_rank()))
    exchange.compare_batches(3)
    exchange.detach()
    return said


def out_of_batches(overlap: bool, leaves: bool) -> str:
    """Rank 0 has 2 batches and the others 3. What the others are told; rank 0 is told so where its own next
    collective fails. ``leaves``: rank 0 issues none."""
    model, exchange = attached(overlap, timeout_seconds=2)
    said = ""
    with patch.object(rendezvous, "ANSWER_SECONDS", 0.5 if leaves else 5.0):
        for _ in range(2 + (dist.get_rank() > 0)):
            model.zero_grad()
            backward(model)
            said = raised(exchange.step)
        if dist.get_rank() == 0 and not leaves:
            try:
                dist.barrier()
            except RuntimeError as error:
                said = str(exchange.explained(error))
    return said


def thawed(overlap: bool) -> str:
    model, exchange = attached(overlap, "unused", frozen=True)
    backward(model)
    exchange.step()
    model.zero_grad()
    model.module.body.requires_grad_(True)
    backward(model)
    said = raised(exchange.step)
    exchange.detach()
    return said


GROWS: Mapping[str, Callable[[Any], object]] = {
    "set": lambda net: setattr(net, "body", nn.Sequential(net.body, nn.Linear(6, 6))),
    "inserted": lambda net: net._modules.update(body=nn.Sequential(net.body, nn.Linear(6, 6))),
    "replaced": lambda net: setattr(net.body, "bias", nn.Parameter(torch.zeros(6))),
}


def grown(overlap: bool | None, ranks: tuple[int, ...] = (0, 1)) -> str:
    """Parameters that come on some ranks after `attach`. No residual changes, and all gradients are dropped.
    ``overlap``: None for a hook. An average of weights, which gets no gradient, is no part of training."""
    said = ""
    for grow in GROWS.values():
        model: Any = built(Loop("unused", None))
        hook = Loop("unused", EF4, overlap=bool(overlap), hook=overlap is None)
        exchange = joined(model, hook)
        step: Callable[[], Any] = (lambda: None) if overlap is None else exchange.step
        model.module.average = nn.Parameter(torch.zeros(3))
        backward(model)
        step()
        model.zero_grad()
        before = copy.deepcopy(exchange.state_dict()["exchange"]["tensors"])
        if dist.get_rank() in ranks:
            grow(model.module)
        if overlap is None:
            said = raised(lambda: backward(model))  # noqa: B023
        else:
            backward(model)
            said = raised(step)
        assert same(exchange.state_dict()["exchange"]["tensors"], before)
        assert all(p.grad is None for p in model.parameters())
        exchange.detach()
    return said


def grown_on_one_rank(overlap: bool) -> str:
    return grown(overlap, (1,))


def hook_of_a_grown_model() -> str:
    return grown(None)


def refused_by_all(model: Any, exchange: Attached, samples: float) -> str:
    """What `step` says. It leaves no gradient and no change in a residual, and a good step can follow."""
    before = copy.deepcopy(exchange.state_dict()["exchange"]["tensors"])
    model.zero_grad()
    backward(model)
    said = raised(lambda: exchange.step(samples=samples))
    assert same(exchange.state_dict()["exchange"]["tensors"], before)
    assert all(p.grad is None for p in model.parameters())
    return said


def thawed_on_one_rank(overlap: bool) -> str:
    model, exchange = attached(overlap, "unused", frozen=True)
    backward(model)
    exchange.step()
    model.module.body.requires_grad_(dist.get_rank() == 1)
    said = refused_by_all(model, exchange, math.nan)
    model.module.body.requires_grad_(False)
    backward(model)
    exchange.step()
    exchange.detach()
    return said


def thawed_before_attaching(overlap: bool) -> str:
    model: Any = built(Loop("unused", EF4, frozen=True))
    model.module.body.requires_grad_(True)
    exchange = attach(model, EF4, overlap=overlap)
    backward(model)
    said = raised(exchange.step)
    if said == "nothing":  # DDP does not send it, and the exchange does
        means: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(means, model.module.body.weight.grad)
        assert means[0].any()
        assert all(torch.equal(mean, means[0]) for mean in means)
    exchange.detach()
    return said


def one_vector(overlap: bool) -> str:
    model, exchange = attached(overlap, "unused", unit="model")
    backward(model)
    return raised(exchange.step)


ONE_APART = ErrorFeedback(Ladder((Dense(), TopK(0.5))))


class OneApart(Fixed):
    """All tensors go dense, but for the first one, which is compressed in every other step."""

    def plan(self, state: State, step: int) -> Plan:
        return Plan(0, {"layers.0.weight": step % 2})


def added_to(view: bool) -> list[dict[str, Tensor | None]]:
    """The gradients after each step, where each backward adds to the means of the step before, and DDP moves
    no gradient into its buckets."""
    model = built(Loop("float32", None, view=view))
    exchange = attach(model, ONE_APART, OneApart("density", (0.5,)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    found = []
    for _ in range(6):
        with model.no_sync():
            backward(model, dist.get_rank())
        exchange.step()
        found.append(gradients(model.module))
        optimizer.step()
    exchange.detach()
    return found


def storages_of_a_dense_step(view: bool) -> int:
    """In how many storages the gradients lie after a step."""
    model = built(Loop("float32", None, view=view))
    exchange = attach(model, Dense())
    backward(model)
    exchange.step()
    found = {p.grad.untyped_storage().data_ptr() for p in model.parameters()}
    exchange.detach()
    return len(found)


class Turned:
    """A user's method for one tensor, which averages a matrix by columns."""

    def init(self, tensor: Tensor) -> dict[str, Any]:
        return {}

    def exchange(self, tensor: Tensor, state: dict[str, Any], context: Context) -> Any:
        mean = yield Mean(tensor.mT.contiguous() if tensor.dim() == 2 else tensor.clone())
        return Outcome(mean.mT if tensor.dim() == 2 else mean, Wholes.of(tensor), state)


class Narrow(Turned):
    """One whose means are of another shape, which a copy would broadcast."""

    def exchange(self, tensor: Tensor, state: dict[str, Any], context: Context) -> Any:
        mean = yield Mean(tensor.clone())
        return Outcome(mean.reshape(-1)[:1], Wholes.of(tensor), state)


def narrow_means(overlap: bool) -> str:
    """What backward and `step` say of `Narrow`. No state changes."""
    model, exchange = attached(overlap, compressor=Narrow())
    backward(model)
    said = raised(exchange.step)
    assert exchange.state_dict()["exchange"]["step"] == 0
    exchange.detach()
    return said


def means_by_columns(view: bool) -> dict[str, Tensor | None]:
    """The gradients after a step of `Turned`."""
    model = built(Loop("float32", None, view=view))
    exchange = attach(model, Turned())
    backward(model, dist.get_rank())
    exchange.step()
    found = gradients(model.module)
    exchange.detach()
    return found


def used_after_detaching(overlap: bool) -> str:
    model, exchange = attached(overlap)
    exchange.detach()
    exchange.close()
    backward(model)
    return raised(exchange.step)


def scaled(overlap: bool) -> str:
    """By a scaler that only `step` is given."""
    model, exchange = attached(overlap)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(model(torch.ones(2, 6)).mean()).backward()
    said = raised(lambda: exchange.step(scaler=scaler))
    exchange.detach()
    return said


def scaled_by_an_unknown(overlap: bool | None) -> str:
    """A loop does not give its scaler to the exchange; ``overlap``: None for a hook. What `scaler.step`
    says, and whether it has moved a parameter."""
    model, exchange = hooked_up() if overlap is None else attached(overlap)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    disabled = torch.amp.GradScaler("cpu", enabled=False)
    other = nn.Linear(2, 2)  # of no exchange
    moves = torch.optim.SGD(other.parameters(), lr=0.1)
    for _ in range(2):
        disabled.scale(model(torch.ones(2, 6)).mean()).backward()
        scaler.scale(other(torch.ones(2, 2)).mean()).backward()
        if overlap is not None:
            exchange.step()
        disabled.step(optimizer)
        scaler.step(moves)
        scaler.update()
    before = [p.detach().clone() for p in model.parameters()]
    scaler.scale(model(torch.ones(2, 6)).mean()).backward()
    if overlap is not None:
        exchange.step()
    said = raised(lambda: scaler.step(optimizer))
    assert same(before, [p.detach() for p in model.parameters()])
    exchange.detach()
    return said


def hook_of_an_unknown_scaler() -> str:
    return scaled_by_an_unknown(None)


def hook_of_no_scaler() -> str:
    return raised(lambda: hooked_up(scaler=2.0**16))


def hook_of_halves_scaled() -> str:
    scaler = torch.amp.GradScaler("cpu")
    loop = replace(HOOKED, wrapper=fp16_compress_wrapper, settings={"scaler": scaler})
    model, state = early(net_of(loop), loop)
    said = raised(lambda: scaler.scale(model(torch.ones(2, 6)).mean()).backward())
    state.close()
    return said


def unscaled_first(overlap: bool) -> str:
    model, exchange = attached(overlap)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(model(torch.ones(2, 6)).mean()).backward()
    scaler.unscale_(torch.optim.SGD(model.parameters(), lr=0.1))
    return raised(lambda: exchange.step(scaler=scaler))


def samples_untold(overlap: bool) -> str:
    model, exchange = attached(overlap, compressor=LADDER, policy=gravac())
    backward(model)
    said = raised(exchange.step)
    backward(model)
    exchange.step(samples=2)
    exchange.detach()
    return said


def samples_untold_by_one_rank(overlap: bool) -> str:
    model, exchange = attached(overlap, compressor=LADDER, policy=gravac())
    backward(model)
    exchange.step(samples=2)
    said = refused_by_all(model, exchange, 0 if dist.get_rank() == 1 else 2)
    backward(model)
    exchange.step(samples=2)
    exchange.detach()
    return said


def rate_untold(overlap: bool) -> str:
    policy = Accordion("factor", (2, 4, 8))
    model, exchange = attached(overlap, compressor=LADDER, policy=policy)
    backward(model)
    exchange.step()
    said = raised(lambda: exchange.end_epoch(EpochReport(1, 1.0, 1.0, 50.0)))
    exchange.detach()
    return said


def accordion(
    overlap: bool, norm: str, scaler: torch.amp.GradScaler | None = None
) -> tuple[int, dict[str, Any]]:
    """Rung 2 tensors after two epochs of like gradients, whose norms nobody has given."""
    ladder = ErrorFeedback(Ladder((Dense(), TopK(factor=2), TopK(factor=4))))
    policy = Accordion("factor", (2, 4), norm=norm)
    model, exchange = attached(overlap, compressor=ladder, policy=policy, scaler=scaler)
    for epoch in (1, 2):
        for _ in range(2):
            model.zero_grad()
            loss = model(torch.ones(2, 6) * (1 + dist.get_rank())).square().mean()
            (scaler.scale(loss) if scaler else loss).backward()
            exchange.step()
        report = EpochReport(epoch, 1.0, 1.0, 50.0, learning_rate=(0.1, 0.1))
        exchange.end_epoch(report)
    exchange.detach()
    state = exchange.state_dict()["policy"]
    return len(state["high"]), state["norms"]


def scaled_accordion() -> list[tuple[Any, Any]]:
    """What `accordion` finds without a scaler and with one, after and during backward."""
    ways = [(overlap, "mean") for overlap in OVERLAP]
    return [
        (accordion(*way), accordion(*way, torch.amp.GradScaler("cpu", init_scale=2.0**10)))
        for way in ways
    ]


def copies(way: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Gradients of copies of a model with a compressor: where its ranks have gradients of their own, as of a
    plain DDP model, and those of a copy to which a compressor is attached."""
    rank = dist.get_rank()
    plain, model = built(Loop("float32", None)), built(Loop("float32", None))
    exchange = joined(model, Loop("float32", EF4, overlap=way == "overlap", hook=way == "hook"))
    backward(model, rank)
    if way != "hook":
        exchange.step()
    model.zero_grad()
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    averaged = torch.optim.swa_utils.AveragedModel(model)
    found: dict[str, Any] = {
        "copied": copy.deepcopy(model),
        "pickled": pickle.loads(pickle.dumps(model)),
        "saved": torch.load(file, weights_only=False),
        "averaged": averaged.module,
    }
    backward(plain, rank)
    told = {"plain": gradients(plain.module)}
    for name, other in found.items():
        for _ in range(2):
            other.zero_grad()
            backward(other, rank)
        told[name] = gradients(other.module)
    again, before = {}, copy.deepcopy(exchange.state_dict())
    for name, other in {"original": model, "copy": found["copied"]}.items():
        other.zero_grad()
        used = exchange
        if name == "copy":
            used = attach(other, EF4, overlap=way == "overlap")
            used.load_state_dict(before)
        backward(other, rank)
        if not isinstance(used, HookState):
            used.step()
        again[name] = gradients(other.module)
        used.detach()
    return told, again


def compiled(part: str, way: str, backend: str) -> tuple[list[Tensor], list[Tensor]]:
    """Parameters after some steps of a model and of a compiled one. ``part``: what is compiled, ``module`` or
    ``model``; ``way``: as of `copies`."""
    found = []
    compressor = (
        EF4 if backend == "eager" else ErrorFeedback(Uniform(16))
    )  # no code of 4 bits flips
    for compiles in ("", part):
        torch.manual_seed(0)
        net: Any = Layers(torch.float32, torch.float32)
        net = torch.compile(net, backend=backend) if compiles == "module" else net
        ddp: Any = DistributedDataParallel(net)
        model = torch.compile(ddp, backend=backend) if compiles == "model" else ddp
        if way == "hook":
            exchange: Attached = HookState(model, compressor)
            model.register_comm_hook(exchange, comm_hook)
        else:
            exchange = attach(model, compressor, overlap=way == "overlap")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            backward(model, dist.get_rank())
            if way != "hook":
                exchange.step()
            optimizer.step()
        if way != "hook":
            backward(model)
            assert raised(optimizer.step).startswith("UserError: exchange.step: it was not called")
        exchange.detach()
        found.append([p.detach().clone() for p in model.parameters()])
    return found[0], found[1]


def no_object(overlap: bool) -> str:
    said = raised(lambda: attached(overlap, compressor="topk"))
    assert said.startswith("UserError: compressor: topk is a name; give an object, such as")
    return raised(lambda: attached(overlap, compressor=TopK))


def detached(overlap: bool) -> dict[str, Any]:
    """Gradients of plain DDP, of a model that was let go of with a backward under way, and of one that
    is attached anew."""
    rank, plain = dist.get_rank(), built(Loop("float32", None))
    model, exchange = attached(overlap)
    backward(plain, rank)
    backward(model, rank)
    exchange.detach()
    dropped = gradients(model.module)
    backward(model, rank)
    found = {"plain": gradients(plain.module), "detached": gradients(model.module)}
    again = attach(model, Dense(), overlap=overlap)
    model.zero_grad()
    backward(model, rank)
    again.step()
    found["again"] = gradients(model.module)
    again.detach()
    return {**found, "dropped": all(g is None for g in dropped.values())}


def within_a_group(overlap: bool) -> dict[str, Any]:
    """Gradients of a model whose group is one rank: its own."""
    groups = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
    torch.manual_seed(0)
    group = groups[dist.get_rank()]
    model = DistributedDataParallel(Layers(torch.float32), process_group=group)
    backward(model, dist.get_rank())
    own = gradients(model.module)
    exchange = attach(model, Dense(), overlap=overlap)
    model.zero_grad()
    backward(model, dist.get_rank())
    exchange.step()
    found = {"own": own, "mean": gradients(model.module)}
    exchange.detach()
    return found
