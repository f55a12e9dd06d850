"""FSDP loops of users on four ranks, two nodes of two, for test_fsdp.py. A job runs on each rank."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from jobs import raised, same
from loops import LADDER, gravac, loaded, save, sgd, spoil_and_load, states_of_all, unmoved
from samples import Broken
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

import dgc_repro as D
from dgc_repro.compressor.interface import Compressor
from dgc_repro.compressor.nesting import worker_momentum
from dgc_repro.exchange import door, world

EF4 = D.ErrorFeedback(D.Uniform(4))
BF16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
WIDE = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)


@functools.cache
def nodes() -> DeviceMesh:
    """Ranks 0 and 1 in one node, 2 and 3 in the other."""
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=("node", "gpu"))


class Layers(nn.Module):
    """Odd sizes: parts are filled up, and the second rank of a node has none of the last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(6, 7), nn.Tanh())
        self.second = nn.Linear(7, 5)
        self.last = nn.Linear(5, 1)
        self.end, self.side = nn.Linear(1, 3), nn.Linear(6, 3)
        self.on = True  # a batch may leave `side` out, a part of the outer unit
        self.skips = False  # it may leave `first` out, a whole unit

    def forward(self, x: Tensor) -> Tensor:
        seven = nn.functional.pad(x, (0, 1)) if self.skips else self.first(x)
        found = self.end(self.last(torch.tanh(self.second(seven))))
        return found + self.side(x) if self.on else found  # type: ignore[no-any-return]


@dataclass
class Loop:
    """``how``: ``ddp``, ``hsdp`` (FSDP averages over the nodes itself), ``attached`` or ``detached``, with
    ``replicated`` of a model that has the whole mesh."""

    how: str = "attached"
    compressor: Compressor = EF4
    steps: int = 4
    replicated: bool = False
    micro_steps: int = 1
    reduces_each: bool = False  # micro-steps reduce inside the node
    factor: float | None = None  # of the user's own, in place of the number of ranks
    sums: bool = False  # FSDP asks for sums alone
    mixed: MixedPrecisionPolicy = field(default_factory=MixedPrecisionPolicy)
    frozen: bool = False
    resume_at: int | None = None  # a step after which the exchange is saved, spoiled and loaded
    form: str = "own"  # of what is saved: or "by_rank", "gathered"
    folder: str = ""  # where
    overflows: tuple[int, int] | None = None  # rank, step
    settings: dict[str, Any] = field(default_factory=dict)  # of `attach`


def built(loop: Loop = Loop(), mesh: DeviceMesh | None = None, **settings: Any) -> Any:  # noqa: B008
    torch.manual_seed(0)
    model = Layers()
    if loop.frozen:
        model.first[0].weight.requires_grad_(False)
    if loop.how == "ddp":
        return DistributedDataParallel(model)
    mesh = mesh or (nodes() if loop.how == "hsdp" or loop.replicated else nodes()["gpu"])
    settings = {"mesh": mesh, "mp_policy": loop.mixed} | settings
    fully_shard([model.second, model.last], **settings)
    fully_shard(model.first, **settings)
    fully_shard(model, **settings)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(loop.sums)
            if loop.factor is not None:
                module.set_gradient_divide_factor(loop.factor)
    return model


def attached(model: Any, compressor: Compressor = EF4, policy: Any = None, **settings: Any) -> Any:
    return D.attach(model, compressor, policy, **{"mesh": nodes(), "dim": "node"} | settings)


def replicated() -> tuple[Any, D.Attached]:
    """A model that has the whole mesh, and its exchange."""
    model = built(Loop(replicated=True))
    return model, D.attach(model, EF4)


def told_of(misuse: str) -> str:
    """What a rank is told of a mistake."""
    if misuse in REFUSED:
        return REFUSED[misuse][0]()
    make, act, _ = MISTAKEN[misuse]
    model, exchange = make()
    said = act(model, exchange)
    exchange.detach()
    return said


def with_exchange(compressor: Compressor = EF4, **settings: Any) -> tuple[Any, D.Attached]:
    """A model and its exchange."""
    model = built(Loop(**settings))
    return model, attached(model, compressor)


def play(loop: Loop) -> dict[str, Any]:
    """Every step's shards, means and states, and what came of it."""
    rank, model = dist.get_rank(), built(loop)
    momentum = 0.0 if worker_momentum(loop.compressor) else 0.9
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=momentum, weight_decay=0.01)
    exchange = None
    told: dict[str, Any] = {"message": "", "sent": 0}
    told |= {name: [] for name in ("applied", "states", "own", "means", "parts")}
    if loop.how in ("attached", "detached"):
        whole = {"mesh": None, "dim": None} if loop.replicated else {}
        exchange = attached(model, loop.compressor, **loop.settings, **whole)
        exchange.samples = 8.0
        watch(exchange, told)
        if loop.how == "detached":
            exchange.detach()
            exchange = None
    source = torch.Generator().manual_seed(rank)
    for step in range(loop.steps):
        optimizer.zero_grad()
        told["own"].append({})
        for micro in range(loop.micro_steps):
            x = torch.randn(8, 6, generator=source)
            if loop.overflows == (rank, step):
                x[0, 0] = torch.inf
            syncs = micro == loop.micro_steps - 1
            if loop.how == "ddp":
                model.require_backward_grad_sync = syncs
            elif loop.reduces_each:
                model.set_requires_all_reduce(syncs)
            else:
                model.set_requires_gradient_sync(syncs)
            loss = model(x).float().square().mean() / loop.micro_steps
            if loop.factor is not None and loop.how != "ddp":  # the mean over 4 ranks all the same
                loss = loss * loop.factor / dist.get_world_size()
            try:
                loss.backward()
            except D.UserError as error:
                told["message"] = str(error)
        if exchange is not None:
            told["applied"].append(exchange.applied)
            told["states"].append(states_of_all(exchange))
        told["means"].append(gradients(model))
        told["parts"].append(gradients(model, whole=False))
        optimizer.step()
        if exchange is not None and loop.resume_at == step + 1:
            spoil_and_load(exchange, loop.form, loop.folder)
    if "stops" in told:
        told.pop("stops").stop()
    if exchange is not None:
        told["ledger"] = exchange.ledger.state_dict()
        exchange.detach()
    return told


def watch(exchange: D.Attached, told: dict[str, Any]) -> None:
    """Note every part that FSDP hands over, and the bytes that are gathered or summed between nodes."""
    joined: Any = exchange._junction
    hand_over = joined.hand_over

    def noted(index: int, shard: Tensor) -> None:
        told["own"][-1] |= {n: g.clone() for n, g in joined._units[index].parts(shard).items()}
        hand_over(index, shard)

    def counted(send: Callable[..., Any]) -> Callable[..., Any]:
        def sends(flat: Tensor, *rest: Any, **named: Any) -> Any:
            if named.get("async_op"):
                told["sent"] += (rest[0] if send is dist.all_gather_into_tensor else flat).nbytes
            return send(flat, *rest, **named)

        return sends

    joined.hand_over = noted
    names = ("all_reduce", "all_gather_into_tensor")
    counting = types.SimpleNamespace(**vars(dist))
    vars(counting).update({name: counted(getattr(dist, name)) for name in names})
    told["stops"] = patch.object(world, "dist", counting)
    told["stops"].start()


def gradients(model: Any, whole: bool = True) -> dict[str, Tensor | None]:
    """By parameter: all of it, or this rank's part."""
    found = {}
    for name, parameter in getattr(model, "module", model).named_parameters():
        grad = parameter.grad
        if hasattr(grad, "full_tensor"):
            grad = grad.full_tensor() if whole else grad.to_local()
        found[name] = None if grad is None else grad.clone()
    return found


def norms_of_two_steps(how: str) -> Mapping[str, float]:
    """The norms that Accordion is told of the dense gradients' sum."""
    model = built(Loop(how))
    policy = D.Accordion("factor", [2, 4, 8])
    exchange = attached(model, D.Ladder((D.Dense(),) * 4), policy) if how == "attached" else None
    sums: dict[str, Any] = {}
    for seed in range(2):
        x = torch.randn(8, 6, generator=torch.Generator().manual_seed(2 * seed + dist.get_rank()))
        model(x).sum().backward()
        for name, gradient in gradients(model).items():
            sums[name] = sums.get(name, 0) + gradient
        model.zero_grad()
    if exchange is None:
        return {name: float(total.norm()) for name, total in sums.items()}
    exchange.end_epoch(D.EpochReport(1, 1.0, 1.0, 50.0, (0.1, 0.1)))
    norms: Mapping[str, float] = exchange.state_dict()["policy"]["norms"]
    exchange.detach()
    return norms


def unit_left_out() -> tuple[dict[str, bool], dict[str, bool]]:
    """Of a step that leaves a unit out: which parameters have a gradient, and which residuals change."""
    model, exchange = with_exchange()
    residuals = []
    for model.skips in (False, True):
        model.zero_grad()
        backward(model)
        residuals.append(states_of_all(exchange)["residual"])
    before, after = residuals
    changes = {name: not same(before[name], after[name]) for name in after}
    return {name: g is not None for name, g in gradients(model).items()}, changes


def differences_from_ddp() -> list[str]:
    """What differs between HSDP on four nodes of one rank, with a divide factor of 1, and DDP."""
    mesh = init_device_mesh("cpu", (4, 1), mesh_dim_names=("node", "gpu"))
    models = built(Loop(replicated=True, factor=1.0, sums=True), mesh), built(Loop("ddp"))
    exchanges = [D.attach(model, D.ErrorFeedback(D.TopK(0.25))) for model in models]
    found = []
    for step in range(3):
        x = torch.randn(8, 6, generator=torch.Generator().manual_seed(10 * step + dist.get_rank()))
        for model, ranks in zip(models, (4, 1), strict=True):
            model.zero_grad()
            (model(x).square().mean() / ranks).backward()
        ours, theirs = map(gradients, models)
        found += [f"mean of {n}" for n in theirs if not torch.equal(ours[n], theirs[n])]  # type: ignore[arg-type]
        ours, theirs = (states_of_all(one)["residual"] for one in exchanges)
        found += [f"residual of {n}" for n in theirs if not same(ours[n], theirs[n])]
    return found


def factor_of_later() -> bool:
    """Whether gradients become those of a factor that is set once the compressor is attached."""
    found = []
    for early in (True, False):
        model = built(Loop(replicated=True, factor=2.0 if early else None))
        D.attach(model, D.Dense())
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(2.0)
        backward(model)
        found.append(gradients(model))
    return same(*found)


def saved_by_these(folder: str) -> None:
    """Save an exchange after a step in both forms."""
    model, exchange = with_exchange()
    backward(model)
    for form in ("by_rank", "gathered"):
        save(exchange, form, folder)


def loaded_by_these(folder: str, form: str, reshard: str) -> tuple[str, int]:
    """What a world of one node, and so of half the ranks, is told that loads it; its steps then."""
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("node", "gpu"))
    exchange = D.attach(fully_shard(Layers(), mesh=mesh), EF4)
    state = loaded(folder, form)
    said = raised(lambda: exchange.load_state_dict(state, reshard=reshard))
    step = exchange.state_dict()["exchange"]["step"]
    exchange.detach()
    return said, step


def broken() -> tuple[list[str], list[bool]]:
    """What a loop is told whose method fails in the second step; which steps leave gradients."""
    model, exchange = with_exchange(Broken(1))
    said, left = [], []
    for _ in range(3):
        model.zero_grad()
        said.append(raised(lambda: backward(model)))
        left.append(any(p.grad is not None for p in model.parameters()))
    assert exchange.applied
    return said, left


# What a loop may do wrong: each returns what it was told.


def backward(model: Any) -> None:
    model(torch.ones(2, 6) * (1 + dist.get_rank())).square().mean().backward()


def refused(model: Any = None, *arguments: Any, **settings: Any) -> str:
    return raised(lambda: attached(model or built(), *arguments, **settings))


def thawed(model: Any, _: Any) -> str:
    model.first.requires_grad_(True)
    return raised(lambda: backward(model))


def thawed_on_one_rank(model: Any, _: Any) -> str:
    """Rank 2 is told before its forward sends anything: it has nobody to send to here."""
    if dist.get_rank() != 2:
        return "UserError: model: first.0.weight was frozen when the compressor was attached"
    model.first[0].weight.requires_grad_(True)
    return raised(lambda: model(torch.ones(2, 6)))


def frozen_unit() -> tuple[Any, D.Attached]:
    """A whole unit is frozen when the compressor is attached."""
    model = built(Loop(frozen=True))
    model.first[0].bias.requires_grad_(False)
    return model, attached(model)


def grown(model: Any, exchange: D.Attached, ranks: tuple[int, ...] = (0, 1, 2, 3)) -> str:
    """A layer that comes on some ranks after `attach`. A root that stays gathered has other objects."""
    model.set_reshard_after_backward(False)
    for _ in range(2):
        backward(model)
        model.zero_grad()
    before = states_of_all(exchange)
    if dist.get_rank() in ranks:
        model.side = nn.Sequential(model.side, nn.Linear(3, 3))
    said = raised(lambda: backward(model))
    assert same(states_of_all(exchange), before)
    assert all(p.grad is None for p in model.parameters())
    return said


def doubled_momentum(model: Any, _: Any) -> str:
    optimizer = torch.optim.AdamW(model.parameters())
    backward(model)
    return unmoved(model, optimizer.step)


def unused(model: Any, _: Any) -> str:
    model.on = False
    return raised(lambda: backward(model))


def left_out() -> str:
    """As above, by one rank only, with torch's remedy."""
    model, _ = with_exchange()
    model.on = dist.get_rank() == 1
    model.set_reduce_scatter_unused_params(True)
    return raised(lambda: backward(model))


def unknown_scaler(model: Any, _: Any) -> str:
    optimizer = sgd(model)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(model(torch.ones(2, 6)).sum()).backward()
    return unmoved(model, lambda: scaler.step(optimizer))


def attached_twice(model: Any, exchange: D.Attached) -> str:
    said = refused(model)
    exchange.detach()
    attached(model).detach()  # allowed now
    return said


def hooked() -> str:
    model = built()
    model.first.set_all_reduce_hook(lambda shard: None)
    return refused(model)


def ignored() -> str:
    model = Layers()
    left = {model.last.weight}
    return refused(fully_shard(model, mesh=nodes()["gpu"], ignored_params=left))


def two_meshes() -> str:
    model = Layers()
    fully_shard(model.first, mesh=nodes()["gpu"])
    fully_shard(model, mesh=nodes())
    return raised(lambda: D.attach(model, EF4))


def unknown_torch() -> str:
    model = built(Loop(replicated=True))
    state = model._get_fsdp_state()
    for group in getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group]:
        del group.mesh_info
    return raised(lambda: D.attach(model, EF4))


def replicate_of_torch() -> str:
    from torch.distributed._composable.replicate_with_fsdp import replicate

    mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("node",))
    return raised(lambda: D.attach(replicate(Layers(), mesh=mesh), EF4))


def left_behind(model: Any, _: Any) -> str:
    """A unit has a gradient in the first micro-step and none in the last."""
    model.set_requires_all_reduce(False)
    backward(model)
    model.set_requires_all_reduce(True)
    model.skips = True
    return raised(lambda: backward(model))


def other_ranks_state(_: Any, exchange: D.Attached) -> str:
    saved = exchange.state_dict() | {"rank": 9}
    return raised(lambda: exchange.load_state_dict(saved))


def on_no_device() -> str:
    with torch.device("meta"):
        model = Layers()
    return refused(fully_shard(model, mesh=nodes()["gpu"]))


def by_one_rank(**settings: Any) -> str:
    """Rank 2 alone gives `attach` these arguments. It is in another node and has the same shard as rank 0."""
    return refused(**(settings if dist.get_rank() == 2 else {}))


def without_mesh() -> str:
    """Rank 2 alone gives no mesh. It does not know which ranks wait for it, and says what is wrong by
    itself; the others name it."""
    said = by_one_rank(mesh=None, dim=None)
    assert said.endswith("(rank 2)") == (dist.get_rank() != 2), said
    return said if dist.get_rank() != 2 else f"{said} (rank 2)"


def without_attach() -> str:
    """Rank 2 does not call `attach`."""
    if dist.get_rank() == 2:
        return "UserError: attach: rank 2 did not call attach within 0.5 s; call it"
    with patch.object(door, "patience", lambda _: 0.5):
        return refused()


REFUSED: Mapping[str, tuple[Callable[[], str], str]] = {
    "another mesh": (
        lambda: refused(built(Loop(replicated=True)),
                        mesh=init_device_mesh("cpu", (4, 1), mesh_dim_names=("node", "gpu"))),
        r"mesh, dim: fully_shard has got the mesh \[\[0, 1\], \[2, 3\]\], .*leave both out"),
    "another dimension": (lambda: refused(built(Loop(replicated=True)), dim="gpu"),
                          "mesh, dim: .*leave both out; got dim='gpu'$"),
    "two meshes": (two_meshes, r"model: first\.0\.weight .* 1 dimensions, .* of 2; give all"),
    "unknown torch": (unknown_torch, "model: torch .* in an unknown form .*docs/fsdp.md"),
    "replicate": (replicate_of_torch, r"model: replicate\(\) averages over all ranks itself"),
    "inner dimension": (lambda: refused(dim="gpu"), r"mesh, dim: .* got .*dim='gpu'$"),
    "flat mesh": (lambda: refused(mesh=nodes()["gpu"]), r"mesh, dim: .* got .*\('gpu',\)"),
    "ddp": (lambda: refused(built(Loop("ddp"))),
            "model: with mesh, .* sharded, got DistributedDataParallel$"),
    "other mesh": (lambda: refused(built(mesh=nodes()["node"])),
                   r"mesh: first\.0\.weight is sharded over ranks \[[01], [23]\], "),
    "float16": (lambda: refused(fully_shard(Layers().half(), mesh=nodes()["gpu"])),
                r"model: FSDP reduces the gradient of first\.0\.weight in float16; give"),
    "meta": (on_no_device, "model: .* is on meta and the mesh on cpu; attach after"),
    "unit of one rank": (lambda: by_one_rank(unit="model"),
                         r"unit: FSDP hands over one unit .*; leave unit out \(rank 2\)$"),
    "another seed": (lambda: by_one_rank(seed=1),
                     r"seed: it differs between ranks: 0 \(rank 0, 1, 3\), 1 \(rank 2\)"),
    "no mesh on one rank": (without_mesh, r"mesh, dim: .*got .*dim=None \(rank 2\)$"),
    "not attached on one rank": (without_attach,
                                 r"attach: rank 2 did not call attach within 0\.5 s; call it"),
    "overlap": (lambda: refused(overlap=True), "overlap: FSDP's gradients are always"),
    "decides now": (lambda: refused(None, LADDER, gravac("now")),
                    'policy: GraVAC decides .* take a policy with decide="last"$'),
    "clip": (lambda: refused(None, D.ClipLocal(D.Uniform(4))), "compressor: clip_local needs"),
    # For parts of 3 x 6, which ranks 1 and 3 have.
    "too small": (lambda: refused(None, D.ErrorFeedback(D.PowerSGD(2))),
                  r"rank: 2 is above every matrix of the model; .* \(rank 1, 3\)$"),
    "hooked": (hooked, "model: it has an all-reduce hook already"),
    "ignored": (ignored, "model: last.weight is in no unit of fully_shard"),
}  # fmt: skip
"""What `attach` is given, and what it says."""
FROZEN = r"model: first\.0\.weight was frozen when"
Made = tuple[Any, D.Attached]
MISTAKEN: Mapping[str, tuple[Callable[[], Made], Callable[[Any, D.Attached], str], str]] = {
    "left behind": (replicated, left_behind, "model: the last backward .* left out the unit 'first', "),
    "thawed": (lambda: with_exchange(frozen=True), thawed, FROZEN),
    "thawed on one rank": (lambda: with_exchange(frozen=True), thawed_on_one_rank, FROZEN),
    "thawed unit": (frozen_unit, thawed, r"model: first\.0\.\w+ was frozen when"),
    "grown": (with_exchange, grown, r"model: side\.1\.bias was added .*, or detach, shard it with fully"),
    "grown on one rank": (with_exchange, lambda *given: grown(*given, (2,)),
                          r"model: side\.1\.bias .*\(rank 2\)$"),
    "doubled momentum": (
        lambda: with_exchange(D.MomentumCorrection(D.TopK(0.25), momentum=0.5)), doubled_momentum,
        r"optimizer\.betas: momentum_correction applies momentum on the workers \(momentum_correction"
        r"\.momentum=0\.5\), got \(0\.9, 0\.999\) here too; use betas=\(0\.0, 0\.999\)$"),
    "unused": (with_exchange, unused, "model: some parameters of the unit '' have no gradient"),
    "scaler": (with_exchange, unknown_scaler, "scaler: the loss was scaled .*; use bfloat16, without one$"),
    "attached twice": (with_exchange, attached_twice, "model: a compressor is attached to it already"),
    "other rank's": (with_exchange, other_ranks_state, "rank: the state was saved by rank 9"),
}  # fmt: skip
"""A model with an exchange, what a loop does with them, and what it is told."""
MISUSES = {name: case[-1] for name, case in (REFUSED | MISTAKEN).items()}
