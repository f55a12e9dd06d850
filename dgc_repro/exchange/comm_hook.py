"""A compressor as a communication hook of DistributedDataParallel, for training code that is built around
``model.register_comm_hook`` (docs/own-loop.md)::

    state = HookState(model, ErrorFeedback(TopK(density=0.01)))
    model.register_comm_hook(state, comm_hook)

This is `attach` with ``overlap=True``, whose `step` autograd calls at the end of each backward that DDP
reduces. When ``backward()`` returns, each ``param.grad`` is the mean over the workers and all residuals are
current. ``backward()`` raises what goes wrong.

A state that is made for a module which DDP has not wrapped yet binds to the DDP model in that model's first
forward with gradients. Until then it has no tensors and no process group.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.modules.module import register_module_module_registration_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from dgc_repro.compressor.interface import Compressor
from dgc_repro.errors import UserError, refuse_first_of
from dgc_repro.exchange.attached import (
    Attached,
    as_arguments,
    attempted,
    between_ranks,
    exchange_of,
    fit_loop,
    note_lost,
    ranks_of,
    refuse_no_object,
    suitable,
    uncompiled,
)
from dgc_repro.exchange.ddp import (
    Hook,
    fit_together,
    hand_over,
    junction_of,
    refuse_capture,
    refuse_missing_buckets,
)
from dgc_repro.exchange.guard import Guard, NotCopied
from dgc_repro.exchange.ledger import Ledger
from dgc_repro.exchange.process_group import ProcessGroupWire
from dgc_repro.exchange.rendezvous import agree, described, patience
from dgc_repro.exchange.reshard import keyed, states_of
from dgc_repro.exchange.signals import refuse_first
from dgc_repro.policy.fixed import Fixed
from dgc_repro.policy.interface import EpochReport, Policy, measures


class HookState(Attached):
    """The state of `comm_hook`, for ``model.register_comm_hook(state, comm_hook)``. Arguments are those of
    `attach`, but ``model`` may also be the module that DDP will wrap later.

    ``applied``: whether the last backward has left gradients to apply. With ``on_nonfinite="skip"`` it is
    False on all ranks after a gradient that is not finite on any. All gradients are None then, so that
    ``optimizer.step()`` changes nothing. With a ``scaler`` they are infinite, and ``scaler.step`` skips.

    Methods work that can compress one bucket of gradients after another; ``unit="model"``, `ClipLocal`, and
    policies that need the whole gradient or a step's samples are refused with UserError. Call `close` on all
    ranks at the end: afterwards the hook averages as plain DDP does.

    With a module that is wrapped later, what is wrong with the DDP model is raised in its first forward with
    gradients, on all ranks. When the module is wrapped again, the state goes over to the new DDP model,
    with residuals, and the older DDP model raises."""

    _is_called = False
    _hook: Hook
    _fix = (
        'lower the learning rate, clip, leave such steps out with HookState(on_nonfinite="skip"), or give '
        "HookState the scaler if the loss was scaled"
    )

    def __init__(
        self,
        model: nn.Module,
        compressor: Compressor,
        policy: Policy | None = None,
        *,
        seed: int = 0,
        on_nonfinite: str = "raise",
        check: bool = False,
        timeout_seconds: float | None = None,
        scaler: GradScaler | None = None,
    ) -> None:
        policy = policy or Fixed()
        name = type(policy).__name__
        model = uncompiled(model)

        def fit() -> None:
            refuse_no_object(compressor)
            fit_together(compressor, policy, "layer", True)
            fit_loop(policy, on_nonfinite, scaler)
            weighs = getattr(policy, "weighs_time", True) and measures(policy)
            refuse_first_of(
                {
                    f"policy: {name} weighs the samples of each step, which a hook is not given; use "
                    "attach(model, compressor, policy) and exchange.step(samples=...)": weighs,
                    "model: HookState takes a DistributedDataParallel model, or the module that DDP will "
                    f"wrap, got {type(model).__name__}": not isinstance(model, nn.Module),
                }
            )

        with as_arguments(hook=True):
            if isinstance(model, DistributedDataParallel):
                _, problem = attempted(fit)  # all ranks hear of it in `_bind`
            else:
                fit()
        self.applied = True
        self.ledger = Ledger()  # of no bytes, until the state is bound
        self._policy = policy
        self._scaler = scaler
        self._settings = (compressor, seed, on_nonfinite, check, timeout_seconds)
        self._model: weakref.ref[nn.Module] | None = (
            None  # the DDP model to which the state is bound
        )
        self._known: set[int] = set()  # its parameters
        self._past: weakref.WeakSet[nn.Module] = weakref.WeakSet()  # DDP models that had the state
        self._kept: dict[str, Any] = {}  # a saved state, for the next binding
        self._reshard = "refuse"  # of that state
        self._rate = 1.0
        self._detached = False
        self._hook = Hook(finish=self._finisher())
        if isinstance(model, DistributedDataParallel):
            self._bind(model, problem=problem)
        else:
            self._await(model)
        note_lost(compressor)

    @property
    def learning_rate(self) -> float:
        """See `Attached.learning_rate`."""
        return self._rate

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        self._rate = value
        if self._model is not None:
            self._exchange.learning_rate = value

    def step(self, **unused: Any) -> NoReturn:
        """Raises UserError: the hook itself finishes each step."""
        raise UserError("state.step: comm_hook calls it at the end of each backward; leave it out")

    def metrics(self) -> dict[str, float]:
        """See `Attached.metrics`. Empty before the first forward of a state that was made for a module."""
        return {} if self._model is None else super().metrics()

    def end_epoch(self, report: EpochReport) -> None:
        """See `Attached.end_epoch`. Raises UserError before the first step."""
        if self._model is None:
            raise UserError(
                "state.end_epoch: no step was taken yet; call it after an epoch's last step"
            )
        super().end_epoch(report)

    def detach(self) -> None:
        """See `Attached.detach`. A state that is not bound yet never will be."""
        if self._model is None:
            self._detached = True
        else:
            super().detach()

    close = detach

    def state_dict(self) -> dict[str, Any]:
        """See `Attached.state_dict`. Before the first forward: what was loaded, or an empty dict, from which
        a loop starts anew."""
        return self._kept if self._model is None else super().state_dict()

    def states(self, *, gather: bool) -> dict[str, Any]:
        """See `Attached.states`. Before the first forward: what was loaded."""
        if self._model is not None:
            return super().states(gather=gather)
        own = ProcessGroupWire(torch.device("cpu")).rank
        kept = states_of(self._kept) or {own: {}}
        if gather and 0 < len(kept) < max(one.get("world_size", 1) for one in kept.values()):
            raise UserError(
                "state.gathered: each rank has loaded its own state, and no step was taken yet; call it "
                "after the first"
            )
        return keyed(kept if gather else {own: kept.get(own, {})})

    def load_state_dict(self, state: dict[str, Any], *, reshard: str = "refuse") -> None:
        """See `Attached.load_state_dict`. Before the first forward a copy is kept, which is loaded then:
        where it does not fit, that forward raises UserError on all ranks."""
        if self._model is None:
            self._kept, self._reshard = copy.deepcopy(state), reshard
        elif states_of(state):
            super().load_state_dict(state, reshard=reshard)
        elif self._exchange.step:
            raise ValueError(
                "state: it was saved before the first step, and this loop has taken some; load it into a new "
                "HookState"
            )

    def _await(self, module: nn.Module) -> None:
        """Bind to each DDP model that wraps the module, in its first forward."""
        found, held = weakref.ref(self), weakref.ref(module)

        def before(model: nn.Module, _: object) -> None:
            state, module = found(), held()
            if state is not None and module is not None and torch.is_grad_enabled():
                state._meet(model, module)

        def watch(owner: nn.Module, name: str, wrapped: nn.Module) -> None:
            if name != "module" or not isinstance(owner, DistributedDataParallel):
                return
            if (module := held()) is not None and _parameters(module) & _parameters(wrapped):
                owner.register_forward_pre_hook(NotCopied(before), prepend=True)

        handle = register_module_module_registration_hook(watch)
        weakref.finalize(self, handle.remove)

    def _meet(self, model: nn.Module, module: nn.Module) -> None:
        """A forward with gradients of a DDP model with parameters of the module begins."""
        assert isinstance(model, DistributedDataParallel)
        current = None if self._model is None else self._model()
        if model is current:
            return
        refuse_capture()
        if self._detached:
            self._hook.group = model.process_group
            return
        if not _is_hook(self, model):
            if self._model is None:
                raise UserError(NO_HOOK)
            return
        if model in self._past:
            raise UserError(
                "state: its module was wrapped in DDP again, and the state went over to the newer model; "
                "train that one, or make a HookState for each"
            )
        if self._model is not None:
            kept = copy.deepcopy(self.state_dict())
            self._unbind()
            self._kept = kept
        self._bind(model, module)
        self._steps.keep(model)  # the guard looks from the next forward on

    def _bind(
        self, model: DistributedDataParallel, module: nn.Module | None = None, *, problem: str = ""
    ) -> None:
        """Take a DDP model. Raises UserError on all its ranks where the state and the model do not fit, or
        where one has a ``problem``."""
        compressor, seed, on_nonfinite, check, timeout_seconds = self._settings

        def fit() -> dict[str, nn.Parameter]:
            _, parameters = suitable(model)
            refuse_missing_buckets(model)
            for name, parameter in model.module.named_parameters():
                if module is not None and id(parameter) not in _parameters(module):
                    raise UserError(
                        f"state: {name} of the DDP model is no parameter of the module for which the state "
                        "was made; make it for the module that DDP wraps"
                    )
            return parameters

        found, more = attempted(fit)
        options = {
            "call": "HookState",
            "seed": seed,
            "compressor": compressor,
            "policy": self._policy,
            "on_nonfinite": on_nonfinite,
            "check": check,
            "scaler": self._scaler is not None,
        }
        facts = options if found is None else {**options, "model": described(found)}
        with as_arguments(hook=True):
            seconds = patience(timeout_seconds, model.process_group)
            here = agree(ranks_of(model), problem or more, facts, seconds)
            assert found is not None
            parameters = found
            exchange = exchange_of(
                model, parameters, compressor, seed, "layer", True, check, seconds
            )
        self._hook.group = model.process_group
        self._hook.junction = junction = junction_of(model, exchange, True, self._scaler)
        exchange.learning_rate = self._rate
        super().__init__(
            exchange,
            junction,
            self._policy,
            parameters,
            model,
            self._hook,
            on_nonfinite=on_nonfinite,
            guard=_HookGuard,
            scaler=self._scaler,
            rendezvous=here,
        )
        problem = ""
        try:
            if states_of(self._kept):
                super().load_state_dict(self._kept, reshard=self._reshard)
        except ValueError as error:
            problem = str(error)
        try:
            refuse_first(between_ranks(model).tell_all(problem, purpose=None))
        except UserError:
            self._unbind()
            raise
        self._kept = {}
        self._known = _parameters(model)
        self._past.add(model)

    def _unbind(self) -> None:
        """Let go of the DDP model, and wait for another."""
        super().detach()
        self._detached = False
        self._model = None
        self._known = set()

    def _finisher(self) -> Callable[[], None]:
        """What ends each backward that DDP reduces."""
        found = weakref.ref(self)

        def finish() -> None:
            if (state := found()) is not None:
                state.applied = False  # also where the step raises
                state.applied = Attached.step(state)

        return finish


NO_HOOK = (
    "state: it is not the model's hook; call model.register_comm_hook(state, comm_hook) on the model for "
    "which it was made"
)


def _is_hook(state: HookState, model: nn.Module) -> bool:
    """Whether the state was registered with a model."""
    return any(registered is state for _, registered in getattr(model, "_comm_hooks", ()))


def _parameters(module: nn.Module) -> set[int]:
    return {id(parameter) for parameter in module.parameters()}


class _HookGuard(Guard):
    """A step of the hook cannot be forgotten; the hook itself can."""

    _added = (
        "backward: it has added to the means that the last one left, which would be compressed again; call "
        "optimizer.zero_grad() before it, and accumulate under `with model.no_sync():`"
    )

    def before_update(self) -> None:
        if self._backward_seen:
            raise UserError(
                "backward: one was not exchanged, so that every rank has gradients of its own (DDP calls the "
                "hook for the first through a forward, with retain_graph=True, and outside no_sync()); add "
                "the losses for one backward, and leave the last one of a step outside no_sync()"
            )
        self.refuse_unknown_scaler("give it to HookState(scaler=scaler)")
        self._moved = True

    def before_forward(self, model: nn.Module) -> None:
        hooks = getattr(model, "_comm_hooks", ())
        if not any(isinstance(state, HookState) and state._guard is self for _, state in hooks):
            raise UserError(NO_HOOK)

    def _watch(self, model: nn.Module) -> list[RemovableHandle]:
        return [
            *self._watch_forward(model),
            *self._watch_backward(),
            self._watch_optimizers(),
        ]


# DDP compares a hook's annotations with classes, and postponed annotations are strings: hence none.
def comm_hook(state, bucket):  # type: ignore[no-untyped-def]
    """The hook for ``model.register_comm_hook(state, comm_hook)``; ``state``: a `HookState`. Returns the
    future of the bucket's mean. Raises UserError where the state was made for another model."""
    if not isinstance(state, HookState):
        raise UserError(
            f"state: comm_hook takes a HookState, got {type(state).__name__}; call "
            "model.register_comm_hook(HookState(model, compressor), comm_hook)"
        )
    if state._hook.group is None:
        raise UserError(
            "state: it was made for a module that DDP had wrapped already, or for another one; give "
            "HookState the DDP model, or make it before DDP wraps the module"
        )
    if state._known and id(bucket.parameters()[0]) not in state._known:
        raise UserError("state: it was made for another model; make one for each model")
    return hand_over(state._hook, bucket)  # type: ignore[no-untyped-call]
