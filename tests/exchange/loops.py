"""DDP loops of users, for test_attach.py: what a model may be like, and what a loop may do.

Every loop trains by SGD with momentum and weight decay. A job runs on each rank of a real world.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import io
import itertools
import pickle
import re
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.utils.checkpoint
from jobs import kept, raised, same
from samples import Broken
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel

import dgc_repro as D
from dgc_repro.compressor.interface import Compressor
from dgc_repro.compressor.nesting import momentum_of_matrices
from dgc_repro.exchange import door, junction, rendezvous
from dgc_repro.exchange.saved import keyed
from dgc_repro.nests import tensors_of

EF4 = D.ErrorFeedback(D.Uniform(4))
LADDER = D.ErrorFeedback(
    D.Ladder((D.Dense(), D.TopK(factor=2), D.TopK(factor=4), D.TopK(factor=8)))
)
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
    """Layers that every batch uses and two that some do: `side` as ``on`` says, `idle` never. ``width``: of a
    hidden layer, of which the gradient is large enough to travel by itself."""

    def __init__(self, width: int = 0) -> None:
        super().__init__()
        self.body, self.side, self.idle = (nn.Linear(6, 6) for _ in range(3))
        if width:
            sizes = ((6, width), (width, width), (width, 6))
            self.side = nn.Sequential(*(nn.Linear(*size) for size in sizes))
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
    "unused, wide": lambda: Sided(1030),
}


@dataclass
class Loop:
    """A loop. ``compressor``: None for plain DDP."""

    model: str
    compressor: Compressor | None
    overlap: bool = False
    unit: str = "layer"
    steps: int = 4
    micro_steps: int = 1  # all but the last under `no_sync`
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
    settings: dict[str, Any] = field(default_factory=dict)  # of `attach`
    sends_first: bool = False  # payloads before the signals are read, as on a GPU


def gravac(decide: str = "last") -> D.GraVAC:
    return D.GraVAC(
        theta_min=2, theta_max=8, eps=0.6, smoothing=1.0, window=2, omega=0.0, decide=decide
    )


def first_layer(net: Any) -> Any:
    return net.body if isinstance(net, Sided) else net.layers[0]


def built(loop: Loop) -> DistributedDataParallel:
    torch.manual_seed(0)
    net = MODELS[loop.model]()
    if loop.frozen:
        first_layer(net).requires_grad_(False)
    return DistributedDataParallel(
        net,
        bucket_cap_mb=1e-4,
        gradient_as_bucket_view=loop.view,
        find_unused_parameters=isinstance(net, Sided) or loop.freezes is not None,
        static_graph=loop.static,
    )


def play(loop: Loop) -> dict[str, Any]:
    """Every step's own gradients (without overlap), means and states, and what came of it."""
    rank, exchange = dist.get_rank(), None
    scaler = torch.amp.GradScaler(
        "cpu", init_scale=2.0**10, growth_interval=loop.grows_every, enabled=loop.scaled
    )
    model = built(loop)
    net: Any = model.module
    has_own = loop.compressor is not None and momentum_of_matrices(loop.compressor)
    momentum = 0.0 if has_own else 0.9
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=momentum, weight_decay=0.01)
    told: dict[str, Any] = {"message": "", "buckets": [], "own": [], "applied": []}
    if loop.compressor is not None:
        settings = loop.settings | ({"scaler": scaler} if loop.scaled else {})
        exchange = D.attach(
            model, loop.compressor, overlap=loop.overlap, unit=loop.unit, **settings
        )
        exchange.samples = 8.0
        watch(exchange, net, told)
    source = torch.Generator().manual_seed(rank)
    means, states, scales = [], [], []
    for step in range(loop.steps):
        optimizer.zero_grad(set_to_none=loop.set_to_none)
        if isinstance(net, Sided):  # by all ranks, by none, by one, by none
            net.on = step % 4 == 0 or (step % 4 == 2 and rank == 0)
        if loop.freezes is not None:
            first_layer(net).requires_grad_(not loop.freezes[0] <= step < loop.freezes[1])
        for micro in range(loop.micro_steps):
            x = torch.randn(8, 6, generator=source)
            if step == loop.leaves_out:
                continue
            if loop.overflows == (rank, step):
                x[0, 0] = torch.inf
            with model.no_sync() if micro < loop.micro_steps - 1 else torch.enable_grad():
                loss = scaler.scale(model(x).square().mean() / loop.micro_steps)
                try:
                    with sends_first(loop.sends_first):
                        loss.backward()
                except D.UserError as error:
                    if loop.overflows is None or step != loop.overflows[1]:
                        raise
                    told["message"] = str(error)
        if exchange is not None and step != loop.leaves_out:
            told["applied"].append(exchange.applied)
            states.append(kept(exchange.state_dict()["exchange"]["states"]))
        means.append(gradients(net))
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        if exchange is not None and loop.resume_at == step + 1:
            spoil_and_load(exchange, loop.form, loop.folder)
    told |= {"means": means, "states": states, "scales": scales}
    if exchange is not None:
        told["saved"] = copy.deepcopy(exchange.state_dict())
        exchange.detach()
    told["buffers"] = [buffer.clone() for buffer in net.buffers()]
    return told | {"parameters": {name: p.detach().clone() for name, p in net.named_parameters()}}


def sends_first(does: bool) -> Any:
    """Inside, where it ``does``, payloads travel before the ranks have agreed, as on a GPU."""
    return patch.object(junction, "SEND_FIRST", junction.SEND_FIRST | ({"cpu"} if does else set()))


def bytes_of_buffers(width: int) -> int:
    """Held beside the gradients to average them. ``width``: of a square layer."""
    layers = nn.Sequential(nn.Linear(6, width), nn.Linear(width, width))
    model = DistributedDataParallel(layers)
    exchange = D.attach(model, D.Dense())
    model(torch.ones(1, 6)).sum().backward()
    return sum(tensor.nbytes for tensor in exchange._exchange._buffers._scratch.values())


def continued_in_a_fresh_ddp(compressor: Compressor, width: int) -> list[dict[str, Tensor]]:
    """The weights after four steps: at a stretch, and with a model, DDP and exchange of their own for the
    last two."""

    def begun() -> tuple[DistributedDataParallel, torch.optim.Optimizer, D.Attached]:
        torch.manual_seed(0)
        layers = nn.Sequential(nn.Linear(6, width), nn.Linear(width, width), nn.Linear(width, 6))
        model = DistributedDataParallel(layers)
        return model, sgd(model), D.attach(model, compressor)

    found = []
    for stops in ((), (2,)):
        parts = begun()
        for step in range(4):
            if step in stops:
                saved = [copy.deepcopy(part.state_dict()) for part in parts]
                parts[2].detach()
                parts = begun()
                for part, state in zip(parts, saved, strict=True):
                    part.load_state_dict(state)
            model, optimizer, _ = parts
            source = torch.Generator().manual_seed(10 * step + dist.get_rank())
            optimizer.zero_grad()
            model(torch.randn(8, 6, generator=source)).square().mean().backward()
            optimizer.step()
        found.append(kept(model.module.state_dict()))
        parts[2].detach()
    return found


def spoil_and_load(exchange: D.Attached, form: str, folder: str) -> None:
    """Save an exchange to a file twice, lose its state, load the file."""
    file = io.BytesIO()
    for _ in range(2):
        if form == "own":
            file.seek(0)
            torch.save(exchange.state_dict(), file)
        else:
            save(exchange, form, folder)
    for tensor in tensors_of(exchange._exchange.states()):
        tensor.fill_(7)
    exchange._exchange.step = 99
    exchange._steps.progress.policy = exchange._policy.init()
    if form == "by_rank":
        dcp.load({"exchange": exchange.by_rank()}, checkpoint_id=folder)
    elif form == "gathered":
        exchange.load_state_dict(torch.load(f"{folder}/all.pt", weights_only=True))
    else:
        file.seek(0)
        exchange.load_state_dict(torch.load(file, weights_only=True))


def save(exchange: D.Attached, form: str, folder: str) -> None:
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


def watch(exchange: D.Attached, net: nn.Module, told: dict[str, Any]) -> None:
    """Note how many tensors each bucket holds, and the gradients of this rank when backward is over."""
    junction, open_step = exchange._junction, exchange._steps.open
    hand_over = junction.hand_over

    def counted(bucket: Any, future: Any) -> None:
        told["buckets"].append(len(bucket.parameters()))
        hand_over(bucket, future)

    def noted(index: int, names: Any = None) -> str | None:
        told["own"].append(gradients(net))
        return open_step(index, names)

    junction.hand_over, exchange._steps.open = counted, noted  # type: ignore[method-assign,assignment]


def gradients(net: nn.Module) -> dict[str, Tensor | None]:
    return {n: None if p.grad is None else p.grad.clone() for n, p in net.named_parameters()}


APART: Mapping[str, tuple[dict[str, Any], str]] = {
    "seed": ({"seed": 4}, r"seed: it differs between ranks: 0 \(rank 0\), 4 \(rank 1\); give all"),
    "compressor": (
        {"compressor": D.ErrorFeedback(D.Uniform(8))},
        r"compressor: it differs .*bits=4.*\(rank 0\), .*bits=8.*\(rank 1\);",
    ),
    "policy": ({"policy": D.Fixed("density", (0.5,), 1)}, r"policy: it differs .*: Fixed\(.* \(rank 1\);"),
    "unit": ({"unit": "model"}, r"unit: it differs .*: 'layer' \(rank 0\), 'model' \(rank 1\);"),
    "overlap": ({"overlap": True}, r"overlap: it differs .*: False \(rank 0\), True \(rank 1\);"),
    "nonfinite": ({"on_nonfinite": "skip"}, r"on_nonfinite: it differs .* 'raise' .* 'skip' \(rank 1\);"),
    "scaler": ({"scaler": torch.amp.GradScaler("cpu")}, r"scaler: it differs .*: False .*, True \(rank 1\);"),
    "frozen": ({}, r"model: it differs .*: layers.1.bias \[6\] float32 \(rank 0\), none \(rank 1\);"),
    "no unit": ({"unit": "tensor"}, "unit: one of layer, model, got 'tensor'"),
    "no overlap": ({"overlap": "yes"}, "overlap: true or false, got 'yes'"),
    "no word": ({"on_nonfinite": "ignore"}, "on_nonfinite: one of raise, skip, got 'ignore'"),
    "no scaler": ({"scaler": 2.0}, "scaler: a torch.amp.GradScaler or None, got float"),
    "no object": ({"compressor": D.TopK}, "compressor: TopK is a class; give an object, such as ErrorFe"),
    "rungs": ({"compressor": D.Ladder((D.Dense(), EF4))}, "policy: plans 1 rungs .*, the ladder has 2;"),
    "no DDP": ({"model": nn.Linear(2, 2)}, "model: attach takes .* sharded, got Linear; wrap it first"),
    "sharded": ({"dim": "node"}, "model: with mesh, attach takes .*, got DistributedDataParallel"),
    "attached twice": ({}, r"model: a compressor is attached to it already; call detach\(\)"),
}  # fmt: skip
"""What the last rank gives to `attach` in the place of what all give, and what all ranks are told."""


def attached_apart(name: str) -> tuple[str, str]:
    """What this rank is told of the arguments of `APART`, and what a sound call says afterwards."""
    is_last = dist.get_rank() == dist.get_world_size() - 1
    model: Any = built(Loop("float32", None))
    given: dict[str, Any] = {"model": model, "compressor": EF4}
    if name == "policy":
        ladder = D.ErrorFeedback(D.Ladder((D.Dense(), D.TopK(0.5))))
        given |= {"compressor": ladder, "policy": D.Fixed("density", (0.5,), 0)}
    other = built(Loop("float32", None))
    first = D.attach(model, EF4) if name == "attached twice" else None
    if first and not is_last:
        given["model"] = other
    last_bias = model.module.layers[1].bias
    last_bias.requires_grad_(name != "frozen" or not is_last)
    said = raised(lambda: D.attach(**given | (APART[name][0] if is_last else {})))
    last_bias.requires_grad_(True)
    if first:
        first.detach()
    return said, raised(lambda: D.attach(model, EF4).detach())


def without_attach() -> tuple[str, str, float, str, dict[str, Any]]:
    """Rank 1 trains and does not attach; later all do. What the others are told, and before that on stderr,
    after how many seconds, what the second call says, and the gradients then."""
    model = built(Loop("float32", None))
    said, begun, before = "nothing", time.monotonic(), io.StringIO()
    if dist.get_rank() != 1:
        soon = patch.object(rendezvous, "SAY_SECONDS", 0.1)
        with (
            patch.object(door, "patience", lambda _: 0.5),
            soon,
            contextlib.redirect_stderr(before),
        ):
            said = raised(lambda: D.attach(model, EF4))
    took = time.monotonic() - begun
    backward(model, dist.get_rank())
    model.zero_grad()
    exchange = D.attach(model, EF4)
    again = raised(lambda: backward(model, dist.get_rank()))
    exchange.detach()
    return said, before.getvalue(), took, again, gradients(model.module)


# What a loop may do wrong: each returns what it was told.


def states_of_all(exchange: D.Attached) -> Any:
    """A copy of all states of this rank."""
    return kept(exchange.state_dict()["exchange"]["states"])


def backward(model: nn.Module, rank: int = 0) -> None:
    model(torch.ones(2, 6) * (1 + rank)).square().mean().backward()


def attached(
    overlap: bool, name: str = "float32", frozen: bool = False, **settings: Any
) -> tuple[Any, D.Attached]:
    model = built(Loop(name, EF4, frozen=frozen))
    return model, D.attach(model, settings.pop("compressor", EF4), overlap=overlap, **settings)


def sgd(model: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def weights(model: nn.Module) -> list[Tensor]:
    """Copies of the parameters, of FSDP this rank's parts."""
    return [getattr(p, "_local_tensor", p).detach().clone() for p in model.parameters()]


def unmoved(model: nn.Module, action: Callable[[], object]) -> str:
    """What an action is told that would move the parameters, and does not."""
    before = weights(model)
    said = raised(action)
    assert same(before, weights(model))
    return said


RAISES: Mapping[str, Callable[[bool], object]] = {
    "sparse": lambda overlap: D.attach(
        DistributedDataParallel(nn.EmbeddingBag(5, 6, sparse=True)), EF4, overlap=overlap
    ),
    "a_name": lambda overlap: attached(overlap, compressor="topk"),
    "hooked": lambda overlap: D.attach(hooked(), EF4, overlap=overlap),
    "unit_of_model": lambda overlap: attached(overlap, unit="model"),
    "decides_now": lambda overlap: attached(overlap, compressor=LADDER, policy=gravac("now")),
    "one_vector": lambda overlap: backward(attached(overlap, "unused", unit="model")[0]),
}
"""What raises at once."""
OF_THEIR_OWN = ("backward_twice", "grown", "thawed_before_attaching")
"""Loops that attach models of their own; the others below are given one."""
ATTACHED_AS: Mapping[str, dict[str, Any]] = {
    "doubled_momentum": {"compressor": D.BlockMomentum(D.Uniform(4))},
    "momentum_of_dion": {"compressor": D.PerLayer(D.ErrorFeedback(D.Dion()), dense=("*bias",))},
    "thawed_on_one_rank": {"name": "unused", "frozen": True},
    "samples_untold_by_one_rank": {"compressor": LADDER, "policy": gravac()},
    "rate_untold": {"compressor": LADDER, "policy": D.Accordion("factor", (2, 4, 8))},
    "rate_told": {"compressor": D.BlockMomentum(D.Uniform(4))},
}
"""What loops of these names are given, where it is not error feedback around 4 bits."""


def told_of(mistake: str, overlap: bool, sends: bool = False) -> str:
    """What is raised where a loop makes a mistake. ``sends``: see `sends_first`."""
    if mistake in RAISES:
        return raised(lambda: RAISES[mistake](overlap))
    loop: Callable[..., str] = globals()[mistake]
    with sends_first(sends):
        if mistake in OF_THEIR_OWN:
            return loop(overlap)
        model, exchange = attached(overlap, **ATTACHED_AS.get(mistake, {}))
        said = loop(model, exchange)
        exchange.detach()
        return said


def hooked() -> DistributedDataParallel:
    model = built(Loop("float32", EF4))
    model.register_comm_hook(None, fp16_compress_hook)
    return model


def metrics_by_step(overlap: bool) -> tuple[list[dict[str, float]], dict[str, float], int]:
    """What `metrics` returns before the first step and after each, where a policy chooses by gradient (but
    not with ``overlap``); the ledger's columns; how many collectives a call on rank 0 alone takes."""
    policy = gravac("last" if overlap else "now")
    model, exchange = attached(overlap, compressor=LADDER, policy=policy)
    found = [exchange.metrics()]
    for _ in range(6):
        model.zero_grad()
        exchange.samples = 2
        backward(model, dist.get_rank())
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
    ladder = D.ErrorFeedback(D.Ladder((D.Dense(), D.Uniform(bits=8), D.Uniform(bits=4))))
    policy = D.Stepwise(field="bits", values=[8, 4], accuracy_thresholds=[60.0])
    model, exchange = attached(overlap, compressor=ladder, policy=policy)
    found = []
    for step in range(2):
        backward(model, dist.get_rank())
        found.append(exchange.metrics()["policy/rung"])
        model.zero_grad()
        if step == 0:
            exchange.end_epoch(D.EpochReport(1, 1.0, 1.0, 61.0))
            found.append(exchange.metrics()["policy/rung"])
    exchange.detach()
    return [*found, exchange.metrics()["policy/rung"]]


def backward_twice(overlap: bool) -> str:
    """A backward that adds to the means of the one before, which may have been clipped in between. Nothing is
    sent (with overlap zeros, for which others may wait), no state changes, and the next step is sound."""
    said = ""
    for view, clips in itertools.product((False, True), repeat=2):
        model = built(Loop("float32", EF4, view=view))
        exchange = D.attach(model, EF4, overlap=overlap)
        optimizer = sgd(model)
        backward(model, dist.get_rank())
        before, sent = states_of_all(exchange), exchange.ledger.payload_bytes
        if clips:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        said = raised(lambda: backward(model))  # noqa: B023
        assert not exchange.applied
        assert same(states_of_all(exchange), before)
        assert overlap or exchange.ledger.payload_bytes == sent
        assert all(p.grad is None for p in model.parameters())
        model.zero_grad()
        backward(model, dist.get_rank())
        optimizer.step()
        assert exchange.applied
        exchange.detach()
    return said


def added_on_one_rank(model: Any, exchange: D.Attached) -> str:
    """Rank 1 does not zero its gradients."""
    backward(model)
    if dist.get_rank() != 1:
        model.zero_grad()
    said = raised(lambda: backward(model))
    assert all(p.grad is None for p in model.parameters())
    return said


def damaged(kind: str) -> str:
    """What a loop is told that loads a state in which something is wrong. Nothing changes."""
    model, exchange = attached(False, compressor=LADDER, policy=gravac())
    exchange.samples = 2
    backward(model)
    state = copy.deepcopy(exchange.state_dict())
    before = copy.deepcopy(state)
    bad: Any = {
        "no rank": {k: v for k, v in state.items() if k != "rank"},
        "no residuals": {k: v for k, v in state.items() if k != "exchange"},
        "of a rank, no residuals": keyed(
            {rank: {"world_size": 2, "rank": rank} for rank in (0, 1)}
        ),
        "a number": {"rank0": 3, "rank1": 3},
        "no world size": {k: v for k, v in state.items() if k != "world_size"},
        "nothing": None,
        "a list": [state],
        "another policy": state | {"policy": {"epoch": 0}},
        "another ledger": state | {"ledger": 3},
        "sums that are none": state | {"sums": 3},
    }[kind]
    said = raised(lambda: exchange.load_state_dict(bad))
    assert same(exchange.state_dict()["exchange"], before["exchange"])
    assert exchange.state_dict()["ledger"] == before["ledger"]
    exchange.detach()
    return said


def graph_twice(model: Any, exchange: D.Attached) -> str:
    """Two backwards through one forward. One backward is allowed."""
    optimizer = sgd(model)
    loss = model(torch.ones(2, 6) * (1 + dist.get_rank())).square().mean()
    loss.backward(retain_graph=True)
    loss.backward()
    said = unmoved(model, optimizer.step)
    optimizer.zero_grad()
    backward(model)
    optimizer.step()
    return said


def never_synced(model: Any, exchange: D.Attached) -> str:
    """DDP calls no hook. The optimizer has a closure or not, and nothing moves."""
    optimizer = sgd(model)

    def alone() -> None:
        with model.no_sync():
            backward(model)

    alone()
    said = unmoved(model, optimizer.step)
    assert unmoved(model, lambda: optimizer.step(alone)) == said
    return said


def calls_step(model: Any, exchange: D.Attached) -> str:
    """A loop of a version before December 2026."""
    backward(model)
    return raised(lambda: exchange.step(samples=3))


def doubled_momentum(model: Any, exchange: D.Attached) -> str:
    """The optimizer has momentum beside the workers'. No parameter moves, and no closure runs. Returns what
    SGD is told."""
    other = nn.Linear(2, 2)  # of no exchange
    other(torch.ones(2)).sum().backward()
    ours, theirs = list(model.parameters()), list(other.parameters())
    without = [{"params": theirs, "betas": (0.9, 0.999)}, {"params": ours, "betas": (0.0, 0.999)}]
    refused: dict[str, Any] = {
        "SGD": torch.optim.SGD(ours, lr=0.1, momentum=0.9),
        "AdamW": torch.optim.AdamW(ours, lr=0.1),
        "group": torch.optim.SGD([{"params": theirs}, {"params": ours, "momentum": 0.5}], 0.1),
    }
    allowed = [sgd(model), torch.optim.Adam(without, lr=0.1)]
    allowed.append(torch.optim.SGD(theirs, lr=0.1, momentum=0.9))
    backward(model)
    before, found = weights(model), {}
    ran: list[int] = []
    for name, optimizer in refused.items():
        found[name] = raised(optimizer.step)
        assert raised(lambda: optimizer.step(lambda: ran.append(1))) == found[name]  # noqa: B023
    assert same(before, weights(model))
    assert not ran
    for optimizer in allowed:
        optimizer.step()
    assert not same(before, weights(model))
    assert found["AdamW"].endswith("got (0.9, 0.999) here too; use betas=(0.0, 0.999)")
    assert found["group"].endswith("got 0.5 here too; use momentum=0")
    return str(found["SGD"])


def momentum_of_dion(model: Any, exchange: D.Attached) -> str:
    """Dion's residual is its momentum; the optimizer has momentum too."""
    backward(model)
    said = raised(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9).step)
    sgd(model).step()
    return said


def trained_alone(model: Any, exchange: D.Attached, optimizer: Any) -> None:
    """A head that is added after `attach` learns on each rank alone, and DDP is told to ignore it."""
    net = model.module
    net.probe = nn.Linear(6, 1)
    net._ddp_params_and_buffers_to_ignore = ["probe.weight", "probe.bias"]
    net.probe(torch.ones(6) * dist.get_rank()).sum().backward()
    backward(model)
    assert net.probe.weight.grad is not None


def rate_told(model: Any, exchange: D.Attached, optimizer: Any) -> None:
    """The method sees the learning rate in a step."""
    exchange.learning_rate = 0.25
    backward(model)
    assert exchange.learning_rate == 0.25
    assert states_of_all(exchange)["learning_rate"]["layers.0.weight"] == 0.25


def update(model: nn.Module, rate: float = 0.1) -> None:
    """A step of SGD by hand."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter -= rate * parameter.grad
            parameter.grad = None


# What a loop may do: each takes two steps, or raises.


def evaluated_in_between(model: Any, exchange: D.Attached, optimizer: Any) -> None:
    for _ in range(2):
        backward(model)
        with torch.no_grad():
            model(torch.ones(2, 6))
        model.eval()
        model(torch.ones(2, 6))
        model.train()
        model(torch.ones(2, 6))  # as it was before the update
        optimizer.step()
        optimizer.zero_grad()


def accumulated(model: Any, exchange: D.Attached, optimizer: Any) -> None:
    for _ in range(2):
        with model.no_sync():
            backward(model)
            backward(model)
        two = model(torch.ones(2, 6)) + model(torch.zeros(2, 6))
        two.sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def perturbed(model: Any, exchange: D.Attached, optimizer: Any) -> None:
    """Sharpness-aware minimization: the second gradient counts."""
    for _ in range(2):
        with model.no_sync():
            backward(model)
        update(model, -0.1)
        backward(model)
        optimizer.step()
        optimizer.zero_grad()


def with_closures(model: Any, exchange: D.Attached, optimizer: Any) -> None:
    def closure() -> Tensor:
        model.zero_grad()
        loss: Tensor = model(torch.ones(2, 6)).square().mean()
        loss.backward()
        return loss

    lbfgs = torch.optim.LBFGS(model.parameters(), max_iter=3)
    lbfgs.step(closure)
    optimizer.step(closure)


def last_backward_in_a_closure(model: Any, exchange: D.Attached, optimizer: Any) -> None:
    """Lightning's way to accumulate."""

    def closure() -> None:
        backward(model)

    for _ in range(2):
        optimizer.zero_grad()
        with model.no_sync():
            backward(model)
        optimizer.step(closure=closure)


def left_out_by_hand(model: Any, exchange: D.Attached, optimizer: Any) -> None:
    """Nothing is applied, and gradients are zeroed."""
    for set_to_none in (True, False, True):
        backward(model)
        with model.no_sync():
            backward(model)
        optimizer.zero_grad(set_to_none=set_to_none)


def never_zeroed(model: Any, exchange: D.Attached, optimizer: Any) -> None:
    for _ in range(2):
        backward(model)
        optimizer.step()


def checkpointed(model: Any, exchange: D.Attached, optimizer: Any) -> None:
    for reentrant in (False, True):
        x = torch.ones(2, 6, requires_grad=True)
        found = torch.utils.checkpoint.checkpoint(model, x, use_reentrant=reentrant)
        found.sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def adversarial(model: Any, exchange: D.Attached, optimizer: Any) -> None:
    """A GAN: `model` judges, the gradients of the generator's turn are dropped."""
    generator = DistributedDataParallel(nn.Linear(6, 6))
    other = D.attach(generator, EF4, overlap=exchange._junction.overlaps)
    moves = sgd(generator)
    for _ in range(2):
        optimizer.zero_grad()
        (model(torch.ones(2, 6)) - model(generator(torch.ones(2, 6)).detach())).sum().backward()
        optimizer.step()
        moves.zero_grad()
        with model.no_sync():
            model(generator(torch.ones(2, 6))).sum().backward()
        moves.step()
    other.detach()


def renormalized(model: Any, exchange: D.Attached, optimizer: Any) -> None:
    """A forward that writes its weight, between two backwards of a step."""
    table = DistributedDataParallel(nn.Embedding(4, 3, max_norm=0.5))
    other = D.attach(table, EF4)
    moves = sgd(table)
    for _ in range(2):
        moves.zero_grad()
        with table.no_sync():
            table(torch.arange(4)).sum().backward()
        table(torch.arange(4)).sum().backward()
        moves.step()
    other.detach()


def freed_after_an_evaluation() -> bool:
    """Whether a model that nobody holds is freed, although its buffers are kept for steps to skip."""
    model = DistributedDataParallel(nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3)))
    D.attach(model, EF4, on_nonfinite="skip")
    model(torch.randn(4, 6)).sum().backward()
    model.eval()(torch.randn(4, 6))
    found = weakref.ref(model)
    del model
    gc.collect()
    return found() is None


def loop_of(name: str, overlap: bool) -> tuple[str, int, dict[str, Tensor]]:
    """What a loop is told, its steps, and its parameters."""
    model, exchange = attached(overlap, **ATTACHED_AS.get(name, {}))
    said = raised(lambda: globals()[name](model, exchange, sgd(model)))
    steps = exchange._exchange.step
    exchange.detach()
    return said, steps, {n: p.detach().clone() for n, p in model.module.named_parameters()}


def dropped(overlap: bool) -> bool:
    """Whether a loop that does not keep what `attach` returns trains as one that does."""
    found = []
    for keeps in (True, False):
        model = built(Loop("float32", EF4))
        exchange = D.attach(model, EF4, overlap=overlap)
        if not keeps:
            del exchange
            gc.collect()
        optimizer = sgd(model)
        for _ in range(3):
            optimizer.zero_grad()
            backward(model, dist.get_rank())
            optimizer.step()
        found.append(weights(model))
    return same(*found)


def broken(overlap: bool, late: bool) -> tuple[list[str], bool, list[int]]:
    """What a loop is told in each step whose method fails in the second, by backward and by the optimizer;
    whether the gradients of the last step are the averages of all ranks; the bytes of each step."""
    method = D.PerLayer(
        D.ErrorFeedback(Broken(1, late)), dense=("*.bias",)
    )  # one group has asked already
    model, exchange = attached(overlap, compressor=method)
    plain = built(Loop("float32", None))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    said, sent = [], []
    for step in range(4):
        optimizer.zero_grad()
        before, states = exchange.ledger.payload_bytes, states_of_all(exchange)
        said.append(raised(lambda: backward(model, dist.get_rank())))
        assert step != 1 or all(p.grad is None for p in model.parameters())
        said.append(raised(optimizer.step))
        sent.append(exchange.ledger.payload_bytes - before)
        assert step != 1 or not overlap or same(states, states_of_all(exchange))
    backward(plain, dist.get_rank())
    exchange.detach()
    return said, same(gradients(model.module), gradients(plain.module)), sent


def piece_of_a_page(code: str, folder: str) -> list[Tensor]:
    """Parameters after a piece of docs/own-loop.md, to which the page gives these names."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4)))
    before = weights(model)
    source = torch.Generator().manual_seed(dist.get_rank())
    names: dict[str, Any] = {
        "batches": [
            (torch.randn(8, 6, generator=source), torch.randint(4, (8,), generator=source))
            for _ in range(3)
        ],
        "loss_of": nn.functional.cross_entropy,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        "model": model,
        "folder": folder,
    }
    names |= {name: globals()[name] for name in ("torch", "contextlib", "dist")}
    names |= {name: getattr(D, name) for name in ("ErrorFeedback", "Uniform", "attach")}
    if not re.search(r"^exchange = ", code, re.M):
        names["exchange"] = D.attach(model, EF4)
    exec(code, names)
    exchange = names["exchange"]
    assert exchange.ledger.payload_bytes > 0
    exchange.close()
    after = weights(model)
    assert not any(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    return after


def torchs_and_our_halves() -> dict[str, list[dict[str, Tensor | None]]]:
    """Gradients of some steps with torch's hook and with ours."""
    theirs, (ours, exchange) = built(Loop("float32", None)), attached(True, compressor=D.FP16())
    theirs.register_comm_hook(dist.group.WORLD, fp16_compress_hook)
    found: dict[str, list[dict[str, Tensor | None]]] = {"theirs": [], "ours": []}
    for name, model in {"theirs": theirs, "ours": ours}.items():
        source = torch.Generator().manual_seed(dist.get_rank())
        optimizer = sgd(model)
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.randn(8, 6, generator=source)).square().mean().backward()
            found[name].append(gradients(model.module))
            optimizer.step()
    exchange.detach()
    return found


def uneven(model: Any, exchange: D.Attached) -> str:
    """In `model.join`: on rank 0 three batches, on the others five."""

    def joined() -> None:
        with model.join():
            for _ in range(5 if dist.get_rank() else 3):
                backward(model)

    return raised(joined)


def batches_compared(model: Any, exchange: D.Attached) -> str:
    exchange.compare_batches(3)
    exchange.compare_batches(None)
    loader = raised(lambda: exchange.compare_batches([1, 2]))  # type: ignore[arg-type]
    assert loader.endswith("batches: a whole number or None, got list; give its len()"), loader
    said = raised(lambda: exchange.compare_batches(3 + dist.get_rank()))
    exchange.compare_batches(3)
    return said


def out_of_batches(overlap: bool, leaves: bool) -> str:
    """Rank 0 has 2 batches and the others 3. What the others are told; rank 0 is told so where its own next
    collective fails. ``leaves``: rank 0 issues none."""
    model, exchange = attached(overlap)
    said = ""
    with patch.object(rendezvous, "ANSWER_SECONDS", 0.5 if leaves else 5.0):
        for _ in range(2 + (dist.get_rank() > 0)):
            model.zero_grad()
            said = raised(lambda: backward(model))
        if dist.get_rank() == 0 and not leaves:
            try:
                dist.barrier()
            except RuntimeError as error:
                said = str(exchange.explained(error))
    return said


GROWS: Mapping[str, Callable[[Any], object]] = {
    "set": lambda net: setattr(net, "body", nn.Sequential(net.body, nn.Linear(6, 6))),
    "inserted": lambda net: net._modules.update(body=nn.Sequential(net.body, nn.Linear(6, 6))),
    "replaced": lambda net: setattr(net.body, "bias", nn.Parameter(torch.zeros(6))),
}


def grown(overlap: bool) -> str:
    """Parameters that come on rank 1 after `attach`. No residual changes, and all gradients are dropped.
    An average of weights, which gets no gradient, is no part of training."""
    said = ""
    for grow in GROWS.values():
        model: Any = built(Loop("unused", None))
        exchange = D.attach(model, EF4, overlap=overlap)
        model.module.average = nn.Parameter(torch.zeros(3))
        backward(model)
        if dist.get_rank() == 1:
            grow(model.module)
        said = refused_by_all(model, exchange)
        exchange.detach()
    return said


def refused_by_all(model: Any, exchange: D.Attached) -> str:
    """What backward says. It leaves no gradient and no change in a residual, and a good step can follow."""
    before = states_of_all(exchange)
    model.zero_grad()
    said = raised(lambda: backward(model))
    assert not exchange.applied
    assert same(states_of_all(exchange), before)
    assert all(p.grad is None for p in model.parameters())
    return said


def failed_together() -> tuple[str, list[str]]:
    """What a rank says of a failed collective where all ranks are in one step."""
    _, exchange = attached(False)
    found = exchange.explained(RuntimeError("cut off"))
    exchange.detach()
    return str(found), found.__notes__


def thawed_on_one_rank(model: Any, exchange: D.Attached) -> str:
    backward(model)
    model.module.body.requires_grad_(dist.get_rank() == 1)
    said = refused_by_all(model, exchange)
    model.module.body.requires_grad_(False)
    backward(model)
    return said


def thawed_before_attaching(overlap: bool) -> str:
    """DDP does not send it, and the exchange does."""
    model: Any = built(Loop("unused", EF4, frozen=True))
    model.module.body.requires_grad_(True)
    exchange = D.attach(model, EF4, overlap=overlap)
    said = raised(lambda: backward(model))
    if said == "nothing":
        means: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(means, model.module.body.weight.grad)
        assert means[0].any()
        assert all(torch.equal(mean, means[0]) for mean in means)
    exchange.detach()
    return said


def scaled_by_an_unknown(model: Any, exchange: D.Attached) -> str:
    """A loop does not give its scaler to the exchange. What `scaler.step` says; no parameter moves."""
    scaler, disabled = (torch.amp.GradScaler("cpu", enabled=is_on) for is_on in (True, False))
    other = nn.Linear(2, 2)  # of no exchange
    optimizer, moves = sgd(model), sgd(other)
    for _ in range(2):
        optimizer.zero_grad()
        disabled.scale(model(torch.ones(2, 6)).mean()).backward()
        scaler.scale(other(torch.ones(2, 2)).mean()).backward()
        disabled.step(optimizer)
        scaler.step(moves)
        scaler.update()
    optimizer.zero_grad()
    scaler.scale(model(torch.ones(2, 6)).mean()).backward()
    return unmoved(model, lambda: scaler.step(optimizer))


def samples_untold_by_one_rank(model: Any, exchange: D.Attached) -> str:
    exchange.samples = 2
    backward(model)
    exchange.samples = 0 if dist.get_rank() == 1 else 2
    said = refused_by_all(model, exchange)
    exchange.samples = 2
    backward(model)
    return said


def rate_untold(model: Any, exchange: D.Attached) -> str:
    backward(model)
    return raised(lambda: exchange.end_epoch(D.EpochReport(1, 1.0, 1.0, 50.0)))


def accordion(overlap: bool, norm: str, scaled: bool) -> tuple[int, dict[str, Any]]:
    """Rung 2 tensors after two epochs of like gradients, whose norms nobody has given."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, enabled=scaled)
    ladder = D.ErrorFeedback(D.Ladder((D.Dense(), D.TopK(factor=2), D.TopK(factor=4))))
    policy = D.Accordion("factor", (2, 4), norm=norm)
    model, exchange = attached(overlap, compressor=ladder, policy=policy, scaler=scaler)
    for epoch in (1, 2):
        for _ in range(2):
            model.zero_grad()
            scaler.scale(model(torch.ones(2, 6) * (1 + dist.get_rank())).square().mean()).backward()
        exchange.end_epoch(D.EpochReport(epoch, 1.0, 1.0, 50.0, learning_rate=(0.1, 0.1)))
    exchange.detach()
    state = exchange.state_dict()["policy"]
    return len(state["high"]), state["norms"]


def copies(overlap: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """Gradients that are to be those of a plain DDP model: of copies of a model with a compressor, of that
    model detached, and attached anew without compression. Those of the model and of a copy to which a
    compressor is attached."""
    rank = dist.get_rank()
    plain, model = built(Loop("float32", None)), built(Loop("float32", None))
    exchange = D.attach(model, EF4, overlap=overlap)
    backward(model, rank)
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
            used = D.attach(other, EF4, overlap=overlap)
            used.load_state_dict(before)
        backward(other, rank)
        again[name] = gradients(other.module)
        used.detach()
        used.close()
    for name in ("detached", "attached anew"):
        model.zero_grad()
        backward(model, rank)
        told[name] = gradients(model.module)
        if name == "detached":
            exchange = D.attach(model, D.Dense(), overlap=overlap)
    exchange.detach()
    return told, again
