"""`attach`: a compressor for a training loop of the user's own, with DistributedDataParallel
(docs/own-loop.md) or `fully_shard` (docs/fsdp.md).

One line, and nothing else in the loop: when ``backward()`` returns, each ``param.grad`` is the mean over all
workers, and all states are current. Accumulation is ``model.no_sync()``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

import torch.distributed as dist
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.parallel import DistributedDataParallel

from dgc_repro.compressor.interface import Compressor
from dgc_repro.errors import UserError
from dgc_repro.exchange.attached import Attached
from dgc_repro.exchange.exchange import Exchange
from dgc_repro.exchange.fit import (
    as_arguments,
    fit_loop,
    fit_together,
    fit_units,
    note_lost,
    refuse_no_object,
    refuse_no_policy,
    suitable,
    uncompiled,
)
from dgc_repro.exchange.fsdp import PerUnit, ShardedModel, UnitHooks, is_sharded
from dgc_repro.exchange.hook import hook_of
from dgc_repro.exchange.junction import AfterBackward, PerBucket
from dgc_repro.exchange.rendezvous import (
    Rendezvous,
    agree,
    described,
    patience,
)
from dgc_repro.exchange.world import World
from dgc_repro.policy.fixed import Fixed
from dgc_repro.policy.interface import Policy

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import FSDPModule

T = TypeVar("T")


def attach(
    model: DistributedDataParallel | FSDPModule,
    compressor: Compressor,
    policy: Policy | None = None,
    *,
    mesh: DeviceMesh | None = None,
    dim: str | None = None,
    seed: int = 0,
    unit: str = "layer",
    overlap: bool = False,
    on_nonfinite: str = "raise",
    scaler: GradScaler | None = None,
) -> Attached:
    """Give any DDP training loop a compressor (docs/own-loop.md), or one with `fully_shard` (docs/fsdp.md).

    ``mesh``, ``dim``: of an FSDP model that is sharded over one dimension. A mesh of two, of which the model
    has the inner one; gradients are exchanged, compressed, on the outer one, named ``dim``. A model that has
    both (HSDP) needs neither.
    ``compressor``: any compressor, wrappers included; ``policy``: plans rungs of a `Ladder` (default
    `Fixed`). ``seed`` must be the same on all ranks. ``unit``: "layer" for each tensor by itself, "model" for
    all in one vector. ``overlap``: exchange each of DDP's buckets while backward goes on. ``on_nonfinite``:
    where a gradient of any rank is not finite: ``"raise"``, or ``"skip"`` the step. ``scaler``: of a loss
    that is scaled (not with FSDP). Residuals are in unscaled units.

    Raises UserError (a ValueError) on all ranks where, on any rank, the parts do not fit together or the
    model has gradients that cannot be exchanged, where the arguments differ between ranks, and where a rank
    does not call this in time (the timeout of the model's process group, at least 600 s).
    """
    policy = policy or Fixed()
    options = {
        "call": "attach",
        "seed": seed,
        "compressor": compressor,
        "policy": policy,
        "unit": unit,
        "overlap": overlap,
        "on_nonfinite": on_nonfinite,
        "scaler": scaler is not None,
    }
    model = uncompiled(model)

    def fit() -> _Whole | _Sharded:
        refuse_no_object(compressor)
        refuse_no_policy(policy)
        if not isinstance(seed, int) or isinstance(seed, bool):
            raise UserError(f"seed: a whole number, got {seed!r}")
        sharded = mesh is not None or dim is not None or is_sharded(model)
        (fit_units if sharded else fit_together)(compressor, policy, unit, overlap)
        fit_loop(policy, on_nonfinite, scaler, sharded=sharded)
        if sharded:
            return _Sharded(ShardedModel(model, mesh, dim), compressor, seed)
        return _Whole(*suitable(model), compressor, seed, unit, overlap, scaler)

    with as_arguments():
        found, problem = attempted(fit)
        facts = options if found is None else {**options, "model": described(found.parameters)}
        ranks = known_ranks(model, mesh) if found is None else found.ranks
        seconds = patience(getattr(model, "process_group", dist.group.WORLD))
        here = agree(ranks, problem, facts, seconds)
        note_lost(compressor)
        assert found is not None
        return found.attached(policy, on_nonfinite, here)


def attempted(fit: Callable[[], T]) -> tuple[T | None, str]:
    """Return what an action returns and an empty text, or None and what the UserError says that it raises:
    all ranks have to hear of it. Without a process group it is raised."""
    try:
        return fit(), ""
    except UserError as error:
        if not dist.is_initialized():
            raise
        return None, str(error)


def known_ranks(model: object, mesh: object) -> list[int] | None:
    """Return the ranks that train this model, to which no compressor can be attached; None where nothing
    says which ranks those are."""
    if isinstance(model, DistributedDataParallel):
        return sorted(dist.get_process_group_ranks(model.process_group))
    parameters = model.parameters() if isinstance(model, nn.Module) else iter(())
    whole = mesh or getattr(next(parameters, None), "device_mesh", None)
    if getattr(whole, "ndim", 0) != 2:  # a mesh of one dimension may be a part of the whole
        return None
    ranks: list[int] = sorted(whole.mesh.flatten().tolist())  # type: ignore[union-attr]
    return ranks if dist.get_rank() in ranks else None


class _Whole:
    """A DDP model that suits, its parameters that learn, and its exchange. Raises UserError."""

    def __init__(
        self,
        model: DistributedDataParallel,
        parameters: dict[str, nn.Parameter],
        compressor: Compressor,
        seed: int,
        unit: str,
        overlap: bool,
        scaler: GradScaler | None,
    ) -> None:
        self.parameters, self._model, self._unit = parameters, model, unit
        self._overlap, self._scaler, self._compressor = overlap, scaler, compressor
        self._hook = hook_of(model, overlap)
        self.ranks = sorted(dist.get_process_group_ranks(model.process_group))
        device = next(iter(parameters.values())).device
        world = World(group=model.process_group, device=device)
        self._exchange = Exchange(compressor, parameters, world, seed=seed, unit=unit)

    def attached(self, policy: Policy, on_nonfinite: str, here: Rendezvous) -> Attached:
        """Attach the compressor, on all ranks of the model together."""
        model, exchange = self._model, self._exchange
        if self._overlap:
            leaves_some = bool(model.find_unused_parameters or model.static_graph)
            scaler = self._scaler
            junction: AfterBackward | PerBucket = PerBucket(
                exchange, self.parameters, leaves_some=leaves_some, scaler=scaler
            )
        else:
            junction = AfterBackward(exchange, self.parameters)
        self._hook.junction = junction
        return Attached(
            exchange,
            junction,
            policy,
            self.parameters,
            model,
            self._hook,
            self._compressor,
            on_nonfinite=on_nonfinite,
            scaler=self._scaler,
            rendezvous=here,
            unit=self._unit,
        )


class _Sharded:
    """A model of `fully_shard` that suits, and its exchange. Raises UserError; parts of tensors, and what is
    wrong with them, differ from rank to rank."""

    def __init__(self, sharded: ShardedModel, compressor: Compressor, seed: int) -> None:
        self._sharded, self._compressor = sharded, compressor
        self.parameters: Mapping[str, nn.Parameter] = sharded.parameters
        self.ranks = sorted(sharded.mesh.mesh.flatten().tolist())
        self._hooks = sharded.hooks()
        nodes = World(group=sharded.group, device=sharded.device)
        # Each part of a tensor has random numbers of its own.
        seed = seed * sharded.shards + sharded.shard
        self._exchange = Exchange(compressor, sharded.parts, nodes, seed=seed)

    def attached(self, policy: Policy, on_nonfinite: str, here: Rendezvous) -> Attached:
        """Attach the compressor, on all ranks of the mesh together."""
        sharded, exchange, nodes = self._sharded, self._exchange, self._exchange.world
        everybody = World(
            group=sharded.everybody(),
            device=sharded.device,
            ledger=nodes.ledger,
            clock=nodes.clock,
        )
        hooks = self._hooks or UnitHooks(sharded.units, sharded.group)
        junction = PerUnit(exchange, sharded.parameters, everybody, sharded.units, hooks.kept)
        hooks.junction = junction
        return Attached(
            exchange,
            junction,
            policy,
            sharded.parameters,
            sharded.model,
            hooks,
            self._compressor,
            everybody=everybody,
            on_nonfinite=on_nonfinite,
            rendezvous=here,
        )
