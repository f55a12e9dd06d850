"""What goes wrong between an exchanged backward and the optimizer, named before it does harm.

- A second backward that DDP reduces, before gradients were zeroed or parameters have changed, would compress
  means again: accumulation belongs under ``no_sync``.
- A backward that DDP has not reduced (a second one through the same forward, or all of them under
  ``no_sync``) leaves every rank gradients of its own.
- Momentum that the workers apply must not be the optimizer's too.
- A GradScaler that the exchange does not know would put its scale into the residuals.
"""

from __future__ import annotations

import inspect
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from dgc_repro.compressor.nesting import momentum_of_matrices, worker_momentum
from dgc_repro.errors import UserError

MOMENTA = ("momentum", "betas", "beta1")
"""Settings of an optimizer's group that are a momentum; of ``betas`` the first is."""
F = TypeVar("F", bound=Callable[..., Any])
Parameters = Mapping[str, nn.Parameter]


def untraced(function: F) -> F:
    """The function, which `torch.compile` leaves as it is where it compiles what calls it."""
    disabled: F = torch.compiler.disable(function, reason="an exchange is never compiled")
    return disabled


class Repeated:
    """Whether a backward has added to the means that the last one has left."""

    def __init__(self, parameters: Parameters) -> None:
        self.seen = False  # a backward, since the last exchange
        self._parameters = parameters
        self._left: dict[str, tuple[weakref.ref[Tensor], int]] = {}  # means, with their versions
        self._added_to: set[str] = set()
        self._versions = 0  # of the parameters, when the means were left
        self.handles = [
            parameter.register_hook(partial(_before, weakref.ref(self), name))
            for name, parameter in parameters.items()
        ]

    def note(self, name: str) -> None:
        """A backward is about to add to a gradient: note whether that still holds a mean."""
        self.seen = True
        if name not in self._left:
            if name in self._added_to and not _holds(self._parameters[name].grad):
                self._added_to.discard(name)  # zeroed since
            return
        (left, version), gradient = self._left[name], self._parameters[name].grad
        # Unless it is as the exchange has left it, it may have been zeroed in place.
        is_left = gradient is not None and left() is gradient and gradient._version == version
        if is_left or _holds(gradient):
            self._added_to.add(name)
        del self._left[name]

    def problem(self) -> str:
        """Say that the gradients are means to which a backward has added; empty where they are not."""
        added, self._added_to = self._added_to, set()
        if not added or self._now() != self._versions:
            return ""
        # A parameter that this backward has not reached yet may have been zeroed.
        if not any(_holds(self._parameters[name].grad) for name in added):
            return ""
        return (
            "backward: it has added to the means that the last one left, which would be compressed again; "
            "accumulate under `with model.no_sync():`, or call optimizer.zero_grad() before it"
        )

    def exchanged(self) -> None:
        """The gradients are means now, or dropped."""
        present = {n: p.grad for n, p in self._parameters.items() if p.grad is not None}
        self._left = {name: (weakref.ref(g), g._version) for name, g in present.items()}
        self._added_to.clear()
        self._versions, self.seen = self._now(), False

    def _now(self) -> int:
        """A number that grows with every change of a parameter in place."""
        return sum(parameter._version for parameter in self._parameters.values())


def _holds(gradient: Tensor | None) -> bool:
    """Whether there is a gradient, and it is not zero."""
    return gradient is not None and bool(gradient.any())


@untraced
def _before(found: weakref.ref[Repeated], name: str, _: Tensor) -> None:
    if (here := found()) is not None:
        here.note(name)


class Optimizers:
    """Looks at every optimizer that is about to move the parameters of a model."""

    def __init__(
        self, parameters: Parameters, compressor: Any, scaler: GradScaler | None, repeated: Any
    ) -> None:
        self._ours = {id(parameter) for parameter in parameters.values()}
        said = worker_momentum(compressor)
        self._momentum = said.replace("wrapper.", "")  # where the workers apply it, or ""
        self._of_matrices = momentum_of_matrices(compressor)
        self._scaler, self._repeated = scaler, repeated
        found = weakref.ref(self)

        def before(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
            here = found()
            return None if here is None else here._before(optimizer, args, kwargs)

        self.handle: RemovableHandle = register_optimizer_step_pre_hook(before)
        weakref.finalize(self, self.handle.remove)

    def _before(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
        every = optimizer.param_groups
        groups = [g for g in every if any(id(p) in self._ours for p in g["params"])]
        if not groups:
            return None
        self._refuse_momentum(groups)
        if callable(closure := kwargs.get("closure")):
            return args, {**kwargs, "closure": self._checked(closure)}
        if len(args) > 1 and callable(args[1]):
            return (args[0], self._checked(args[1]), *args[2:]), kwargs
        return self._before_update()

    def _checked(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """The closure of an optimizer, which runs the backward itself."""

        def checked() -> Any:
            loss = closure()
            self._before_update()
            return loss

        return checked

    def _before_update(self) -> None:
        """Raise UserError where gradients that nothing has exchanged are about to be applied."""
        if self._repeated is not None and self._repeated.seen:
            raise UserError(
                "backward: one was not exchanged, so that every rank has gradients of its own (DDP reduces "
                "the first through a forward, and none under no_sync()); add the losses for one backward, "
                "and leave the last one of a step outside no_sync()"
            )
        scaler = _stepping_scaler()
        if scaler is not None and scaler is not self._scaler:
            fix = "give it to attach(scaler=scaler)"
            if self._repeated is None:
                fix = "use bfloat16, without one"
            raise UserError(
                "scaler: the loss was scaled by a GradScaler that the exchange was not given, so that "
                f"residuals are in units of its scale, which changes; {fix}"
            )

    def _refuse_momentum(self, groups: Sequence[Mapping[str, Any]]) -> None:
        """Raise UserError where groups of an optimizer would apply momentum that the workers have applied.
        A scheduler may change the momentum in any step."""
        for group in groups:
            is_vectors = all(parameter.dim() < 2 for parameter in group["params"])
            for key in MOMENTA:
                # The other tensors beside Dion's matrices may go through Adam.
                of_matrices = "" if is_vectors or key != "momentum" else self._of_matrices
                if not (said := self._momentum or of_matrices):
                    continue
                if _is_momentum(value := group.get(key)):
                    none = (0.0, *value[1:]) if isinstance(value, Sequence) else 0
                    raise UserError(
                        f"optimizer.{key}: {said}, got {value} here too; use {key}={none}"
                    )


class NotCopied:
    """A hook of a module that a copy of the module, or one from a file, does not have."""

    def __init__(self, hook: Callable[..., Any]) -> None:
        self._hook = hook

    @untraced
    def __call__(self, *arguments: Any) -> Any:
        return self._hook(*arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        return NotCopied, (_noop,)


def _noop(*_: Any) -> None:
    """Do nothing."""


def _stepping_scaler() -> GradScaler | None:
    """The GradScaler inside whose ``step`` this is called: torch tells an optimizer of it only if that is
    fused."""
    code = inspect.unwrap(GradScaler.step).__code__
    frame = sys._getframe()
    while (outer := frame.f_back) is not None:
        frame = outer
        if frame.f_code is code:
            scaler: GradScaler = frame.f_locals["self"]
            return scaler if scaler.is_enabled() else None
    return None


def _is_momentum(value: object) -> bool:
    """Whether a setting of an optimizer's group, or the first of several, is a momentum above 0."""
    first = value[0] if isinstance(value, Sequence) else value
    return isinstance(first, Tensor | float | int) and bool(first != 0)
