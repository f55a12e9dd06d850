"""A `step` that a loop of the user's own forgets, or calls twice, raises before more is lost.

The rule (docs/own-loop.md):

- Between two calls of `Attached.step` there is at least one backward. A second call would compress means.
- Parameters change after `step` and before the next forward. An optimizer refuses to move parameters between
  a backward and `step`. Where code moves them by hand, or in a closure of the optimizer, the next forward
  raises: the version counters of the parameters have changed.
- Where exchanges overlap backward (``overlap=True``, FSDP), no forward in training mode comes between the
  backward that has sent its gradients and `step`.

A backward under ``no_sync`` counts as one for optimizers and for `step`. Code may change parameters by hand
after it, as in sharpness-aware minimization. Forwards without gradients (``torch.no_grad``) are always
allowed.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from dgc_repro.errors import UserError
from dgc_repro.exchange.ddp import PerBucket
from dgc_repro.exchange.fsdp import PerUnit
from dgc_repro.exchange.step import Stepper


class Guard:
    """Looks at the forwards and backwards of a model, and at all optimizers.

    The model keeps the guard alive, so that the guard works where a loop drops what `attach` returns."""

    def __init__(self, model: nn.Module | None, steps: Stepper) -> None:
        self._model = None if model is None else weakref.ref(model)
        self._steps = steps
        self._backward_seen = False  # since the last step, under no_sync too
        self._versions = 0  # of the parameters, in the last forward with gradients
        self._left: dict[str, weakref.ref[Tensor]] = {}  # the gradients that the last step has left
        self._handles = [] if model is None else self._watch(model)

    def before_forward(self, model: nn.Module) -> None:
        """Raise UserError where a step should have followed an earlier backward; nothing has changed yet."""
        junction, parameters = self._steps.junction, self._steps.parameters.values()
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

    @property
    def pending(self) -> bool:
        """Whether DDP or FSDP has reduced gradients since the last step."""
        return bool(getattr(self._steps.junction, "pending", False))

    def repeats(self) -> bool:
        """Whether the gradients that are here are those that the last step has left. (Where exchanges overlap
        backward, their junction refuses a second step.)"""
        if self._steps.junction.overlaps or self.pending or self._backward_seen:
            return False
        here = self._steps.parameters.items()
        present = {name: p.grad for name, p in here if p.grad is not None}
        left = self._left
        return bool(present) and all(n in left and left[n]() is g for n, g in present.items())

    def after_step(self) -> None:
        """The gradients are means now, or dropped."""
        self._backward_seen = False
        here = self._steps.parameters.items()
        self._left = {name: weakref.ref(p.grad) for name, p in here if p.grad is not None}

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
                return  # a copy of the model has the hook too
            if torch.is_grad_enabled():
                self.before_forward(module)
                self._steps.keep(module)

        def after(module: nn.Module, *_: object) -> None:
            if self._model is not None and self._model() is module and torch.is_grad_enabled():
                self.after_forward()  # a forward may write weights, such as nn.Embedding(max_norm=...)

        handle = model.register_forward_hook(after)
        return [model.register_forward_pre_hook(before, prepend=True), handle]

    def _watch_backward(self) -> list[RemovableHandle]:
        found = weakref.ref(self)

        def mark(_: Tensor) -> None:
            if (here := found()) is not None:
                here._backward_seen = True

        parameters = self._steps.parameters.values()
        return [parameter.register_post_accumulate_grad_hook(mark) for parameter in parameters]

    def _watch_optimizers(self) -> RemovableHandle:
        """Have every optimizer refuse to move parameters whose gradients no step has exchanged."""
        found = weakref.ref(self)
        ours = {id(parameter) for parameter in self._steps.parameters.values()}

        def refuse(optimizer: torch.optim.Optimizer, *_: object) -> None:
            here = found()
            if here is None or not (here.pending or here._backward_seen):
                return
            if any(id(p) in ours for group in optimizer.param_groups for p in group["params"]):
                raise UserError(
                    "exchange.step: it was not called between backward and optimizer.step(), so that every "
                    "rank has gradients of its own; call it after the last backward of a step"
                )

        handle = register_optimizer_step_pre_hook(refuse)
        weakref.finalize(self, handle.remove)
        return handle


def _versions(parameters: Iterable[Tensor]) -> int:
    """A number that grows with every change in place."""
    return sum(parameter._version for parameter in parameters)
