"""A compressor as a communication hook of DistributedDataParallel, for training code that is built around
``model.register_comm_hook`` (docs/own-loop.md)::

    state = HookState(model, ErrorFeedback(TopK(density=0.01)))
    model.register_comm_hook(state, comm_hook)

This is `attach` with ``overlap=True``, whose `step` autograd calls at the end of each backward that DDP
reduces. When ``backward()`` returns, each ``param.grad`` is the mean over the workers and all residuals are
current. ``backward()`` raises what goes wrong.
"""

from __future__ import annotations

import weakref
from typing import Any, NoReturn

from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from dgc_repro.compressor.interface import Compressor
from dgc_repro.errors import UserError, refuse_first_of
from dgc_repro.exchange.attached import (
    Attached,
    as_arguments,
    exchange_of,
    fit_loop,
    suitable,
)
from dgc_repro.exchange.ddp import (
    Hook,
    fit_together,
    hand_over,
    junction_of,
    refuse_missing_buckets,
)
from dgc_repro.exchange.guard import Guard
from dgc_repro.policy.fixed import Fixed
from dgc_repro.policy.interface import Policy, measures


class HookState(Attached):
    """The state of `comm_hook`, for ``model.register_comm_hook(state, comm_hook)``. Arguments are those of
    `attach`.

    ``applied``: whether the last backward has left gradients to apply. With ``on_nonfinite="skip"`` it is
    False on all ranks after a gradient that is not finite on any. All gradients are None then, so that
    ``optimizer.step()`` changes nothing.

    Methods work that can compress one bucket of gradients after another; ``unit="model"``, `ClipLocal`, and
    policies that need the whole gradient or a step's samples are refused with UserError. Call `close` on all
    ranks at the end: afterwards the hook averages as plain DDP does."""

    _fix = (
        'lower the learning rate, clip, or leave such steps out with HookState(on_nonfinite="skip")'
    )

    def __init__(
        self,
        model: DistributedDataParallel,
        compressor: Compressor,
        policy: Policy | None = None,
        *,
        seed: int = 0,
        on_nonfinite: str = "raise",
        check: bool = False,
        timeout_seconds: float = 600.0,
    ) -> None:
        policy = policy or Fixed()
        name = type(policy).__name__
        with as_arguments(hook=True):
            fit_together(compressor, policy, "layer", True)
            fit_loop(policy, on_nonfinite)
            weighs = getattr(policy, "weighs_time", True) and measures(policy)
            refuse_first_of(
                {
                    f"policy: {name} weighs the samples of each step, which a hook is not given; use "
                    "attach(model, compressor, policy) and exchange.step(samples=...)": weighs
                }
            )
            model, parameters = suitable(model)
            refuse_missing_buckets(model)
            exchange = exchange_of(
                model, parameters, compressor, seed, "layer", True, check, timeout_seconds
            )
        junction = junction_of(model, exchange, True)
        found = weakref.ref(self)

        def finish() -> None:
            if (state := found()) is not None:
                state.applied = False  # also where the step raises
                state.applied = Attached.step(state)

        hook = Hook(model.process_group, junction, finish)
        self.applied = True
        super().__init__(
            exchange,
            junction,
            policy,
            parameters,
            model,
            hook,
            on_nonfinite=on_nonfinite,
            guard=_HookGuard,
        )
        self._known = {id(parameter) for parameter in model.parameters()}

    def step(self, **unused: Any) -> NoReturn:
        """Raises UserError: the hook itself finishes each step."""
        raise UserError("state.step: comm_hook calls it at the end of each backward; leave it out")


class _HookGuard(Guard):
    """A step of the hook cannot be forgotten; the hook itself can."""

    def before_forward(self, model: nn.Module) -> None:
        hooks = getattr(model, "_comm_hooks", ())
        if not any(isinstance(state, HookState) and state._guard is self for _, state in hooks):
            raise UserError(
                "state: it is not the model's hook; call model.register_comm_hook(state, comm_hook) on "
                "the model for which it was made"
            )

    def _watch(self, model: nn.Module) -> list[RemovableHandle]:
        return self._watch_forward(model)


# DDP compares a hook's annotations with classes, and postponed annotations are strings: hence none.
def comm_hook(state, bucket):  # type: ignore[no-untyped-def]
    """The hook for ``model.register_comm_hook(state, comm_hook)``; ``state``: a `HookState`. Returns the
    future of the bucket's mean. Raises UserError where the state was made for another model."""
    if not isinstance(state, HookState):
        raise UserError(
            f"state: comm_hook takes a HookState, got {type(state).__name__}; call "
            "model.register_comm_hook(HookState(model, compressor), comm_hook)"
        )
    if id(bucket.parameters()[0]) not in state._known:
        raise UserError("state: it was made for another model; make one for each model")
    return hand_over(state._hook, bucket)  # type: ignore[no-untyped-call]
