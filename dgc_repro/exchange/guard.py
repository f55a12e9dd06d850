"""A `step` that a loop of the user's own forgets, or calls twice, raises before more is lost.

The rule (docs/own-loop.md):

- Between two calls of `Attached.step` there is at least one backward, and the gradients are zeroed or the
  parameters change. A second call in one accumulation would compress means.
- Parameters change after `step` and before the next forward. An optimizer refuses to move parameters between
  a backward and `step`; where ``optimizer.step`` is given a closure, it looks when the closure has returned.
  Where code moves them by hand, the next forward raises: the version counters of the parameters have changed.
- With ``overlap=True`` and in a hook, no backward comes after the one that has sent its gradients: a second
  one through the same forward sends none.
- Where exchanges overlap backward (``overlap=True``, FSDP), no forward in training mode comes between the
  backward that has sent its gradients and `step`.

A backward under ``no_sync`` counts as one for optimizers and for `step`. Code may change parameters by hand
after it, as in sharpness-aware minimization. Forwards without gradients (``torch.no_grad``) are always
allowed.
"""

from __future__ import annotations

import inspect
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from dgc_repro.compressor.nesting import momentum_of_matrices, worker_momentum
from dgc_repro.errors import UserError
from dgc_repro.exchange.ddp import PerBucket, refuse_capture
from dgc_repro.exchange.fsdp import PerUnit
from dgc_repro.exchange.step import Stepper

MOMENTA = ("momentum", "betas", "beta1")
"""Settings of an optimizer's group that are a momentum; of ``betas`` the first is."""
F = TypeVar("F", bound=Callable[..., Any])


def untraced(function: F) -> F:
    """The function, which `torch.compile` leaves as it is where it compiles what calls it."""
    disabled: F = torch.compiler.disable(function, reason="an exchange is never compiled")
    return disabled


class Guard:
    """Looks at the forwards and backwards of a model, and at all optimizers.

    The model keeps the guard alive, so that the guard works where a loop drops what `attach` returns."""

    _added = (
        "exchange.step: backward has added to the means of the last step; call it once an accumulation, "
        "after the last backward, and optimizer.zero_grad() before the next one"
    )

    def __init__(self, model: nn.Module | None, steps: Stepper) -> None:
        self._model = None if model is None else weakref.ref(model)
        self._steps = steps
        self.forward_seen = False  # since the last step, with gradients
        self._backward_seen = False  # since the last step, under no_sync too
        self._versions = 0  # of the parameters, in the last forward with gradients
        # The means that the last step has left, with their versions; those to which a backward has added.
        self._left: dict[str, tuple[weakref.ref[Tensor], int]] = {}
        self._added_to: set[str] = set()
        self._is_late = False  # a backward came after the buckets of this step
        self._stepped = 0  # the versions of the parameters in the last step
        self._moved = False  # whether they have changed since
        self._scaler: GradScaler | None = None  # of the last step
        said = worker_momentum(steps.exchange.compressor)
        self._momentum = said.replace("wrapper.", "")  # where the workers apply it, or ""
        self._of_matrices = momentum_of_matrices(steps.exchange.compressor)
        self._handles = [] if model is None else self._watch(model)

    def before_forward(self, model: nn.Module) -> None:
        """Raise UserError where a step should have followed an earlier backward; nothing has changed yet."""
        junction, parameters = self._steps.junction, self._steps.parameters.values()
        if isinstance(junction, PerUnit):
            junction.refuse_thawed()
        if isinstance(junction, PerBucket | PerUnit):
            if junction.pending and model.training:
                junction.refuse_another()
            return
        versions = _versions(parameters)
        if self.pending and versions != self._versions:
            raise UserError(
                "exchange.step: parameters have changed since backward, and it was not called in between, so "
                "that ranks may have other parameters now; start again, and call it after the last backward "
                "of a step (a backward that is no part of one goes under `with model.no_sync():`)"
            )

    def after_forward(self) -> None:
        """Remember the parameters as the forward has left them."""
        self._versions = _versions(self._steps.parameters.values())
        self._moved = self._moved or self._versions != self._stepped

    def before_update(self) -> None:
        """Raise UserError where an optimizer is about to apply gradients that no step has exchanged."""
        if self.pending or self._backward_seen:
            raise UserError(
                "exchange.step: it was not called between backward and optimizer.step(), so that every "
                "rank has gradients of its own; call it after the last backward of a step"
            )
        fix = "give it to attach(scaler=scaler)"
        if isinstance(self._steps.junction, PerUnit):
            fix = "use bfloat16, without one"
        elif not self._steps.junction.overlaps:
            fix += ", or call exchange.step(scaler=scaler) each step"
        self.refuse_unknown_scaler(fix)
        self._moved = True

    def refuse_unknown_scaler(self, fix: str) -> None:
        """Raise UserError where a GradScaler steps the optimizer, and the last step was not given it."""
        scaler = _stepping_scaler()
        if scaler is not None and scaler is not self._scaler:
            raise UserError(
                "scaler: the loss was scaled by a GradScaler that the exchange was not given, so that "
                f"residuals are in units of its scale, which changes; {fix}"
            )

    def refuse_momentum(self, groups: Sequence[Mapping[str, Any]]) -> None:
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

    @property
    def pending(self) -> bool:
        """Whether DDP or FSDP has reduced gradients since the last step."""
        return bool(getattr(self._steps.junction, "pending", False))

    def repeats(self) -> str:
        """Why a step would compress means: empty where it would not. (A step without a backward is refused
        by a junction that overlaps backward.)"""
        present = {n: p.grad for n, p in self._steps.parameters.items() if p.grad is not None}
        if self._is_late:
            return (
                "overlap=true: a backward came after the one whose gradients were sent (DDP sends those of "
                "the first through a forward, with retain_graph=True); add the losses for one backward, or "
                "use overlap=false"
            )
        if self._backward_seen:
            if self._moved or self._added_to.isdisjoint(present):
                return ""
            return self._added
        left = self._left
        if (
            self._steps.junction.overlaps
            or self.pending
            or not present
            or not all(n in left and left[n][0]() is g for n, g in present.items())
        ):
            return ""
        return (
            "exchange.step: it was called twice after one backward, and the gradients are means "
            "already; call it once, between the last backward of a step and optimizer.step()"
        )

    def after_step(self, scaler: GradScaler | None) -> None:
        """The gradients are means now, or dropped. ``scaler``: by which they were unscaled."""
        self._scaler = scaler
        self.forward_seen = self._backward_seen = self._is_late = self._moved = False
        self._stepped = _versions(self._steps.parameters.values())
        present = {n: p.grad for n, p in self._steps.parameters.items() if p.grad is not None}
        self._left = {name: (weakref.ref(grad), grad._version) for name, grad in present.items()}
        self._added_to.clear()

    def remove(self) -> None:
        """Remove all hooks."""
        for handle in self._handles:
            handle.remove()

    def _watch(self, model: nn.Module) -> list[RemovableHandle]:
        handles = [*self._watch_forward(model), self._watch_optimizers()]
        if isinstance(model, DistributedDataParallel):
            handles += self._watch_backward()
        return handles

    def _watch_forward(self, model: nn.Module) -> list[RemovableHandle]:
        def before(module: nn.Module, _: object) -> None:
            if self._model is None or self._model() is not module:
                return
            if torch.is_grad_enabled():
                refuse_capture()
                self.before_forward(module)
                self.forward_seen = True
                self._steps.keep(module)

        def after(module: nn.Module, *_: object) -> None:
            if self._model is not None and self._model() is module and torch.is_grad_enabled():
                self.after_forward()  # a forward may write weights, such as nn.Embedding(max_norm=...)

        handle = model.register_forward_hook(NotCopied(after))
        return [model.register_forward_pre_hook(NotCopied(before), prepend=True), handle]

    def _watch_backward(self) -> list[RemovableHandle]:
        found = weakref.ref(self)

        @untraced
        def before(name: str, _: Tensor) -> None:
            """A backward is about to add to a gradient: note whether that still holds a mean."""
            here = found()
            if here is None or here._moved or name not in here._left:
                return
            (left, version), gradient = here._left[name], here._steps.parameters[name].grad
            # Unless it is as `step` has left it, it may have been zeroed in place.
            if gradient is not None and (
                (left() is gradient and gradient._version == version) or gradient.any()
            ):
                here._added_to.add(name)
            else:
                here._added_to.discard(name)
                del here._left[name]

        @untraced
        def after(_: Tensor) -> None:
            if (here := found()) is not None:
                here._backward_seen = True
                here._is_late |= getattr(here._steps.junction, "has_all", False)

        handles = []
        for name, parameter in self._steps.parameters.items():
            handles.append(parameter.register_hook(partial(before, name)))
            handles.append(parameter.register_post_accumulate_grad_hook(after))
        return handles

    def _watch_optimizers(self) -> RemovableHandle:
        """Have every optimizer refuse to move parameters whose gradients no step has exchanged."""
        found = weakref.ref(self)
        ours = {id(parameter) for parameter in self._steps.parameters.values()}

        def before(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
            here, every = found(), optimizer.param_groups
            groups = [group for group in every if any(id(p) in ours for p in group["params"])]
            if here is None or not groups:
                return None
            here.refuse_momentum(groups)
            if callable(closure := kwargs.get("closure")):
                return args, {**kwargs, "closure": here._checked(closure)}
            if len(args) > 1 and callable(args[1]):
                return (args[0], here._checked(args[1]), *args[2:]), kwargs
            return here.before_update()

        handle = register_optimizer_step_pre_hook(before)
        weakref.finalize(self, handle.remove)
        return handle

    def _checked(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """The closure of an optimizer, which may run the last backward and `step`."""

        def checked() -> Any:
            loss = closure()
            self.before_update()
            return loss

        return checked


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


def _versions(parameters: Iterable[Tensor]) -> int:
    """A number that grows with every change in place."""
    return sum(parameter._version for parameter in parameters)
