"""SGD, and what all optimizers share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import torch
from torch import nn

from dgc_repro.checked import Count, Positive, Rate, WeightDecay, checked, within


@checked
class Optimizer:
    """What all optimizers share. ``lr``: the learning rate. ``weight_decay``: of all tensors.
    ``reference_batch``: ``lr`` is for this many images, or columns of text, a
    step over all workers (with local steps: of one worker) and scales linearly with the real number; None
    takes ``lr`` as it is.
    ``clip_norm``: the averaged gradient is scaled to this 2-norm, over all tensors, where it is longer
    (Pascanu, Mikolov, Bengio, 2013, arXiv:1211.5063, algorithm 1); None leaves it."""

    lr: Rate = 0.1
    weight_decay: WeightDecay = 5e-4
    reference_batch: Count | None = 128
    clip_norm: Positive | None = None

    def base_lr(self, global_batch: int) -> float:
        """The learning rate before the schedule."""
        return (
            self.lr
            if self.reference_batch is None
            else self.lr * global_batch / self.reference_batch
        )

    def of(self, parameters: Iterable[nn.Parameter], lr: float) -> torch.optim.Optimizer:
        """The optimizer of these parameters."""
        raise NotImplementedError

    def _groups(self, module: nn.Module) -> Iterable[Any]:
        """The parameters, or groups of them, as torch's optimizers take them."""
        return module.parameters()

    def build(self, module: nn.Module, global_batch: int) -> torch.optim.Optimizer:
        """The optimizer of a module; it clips before it steps."""
        optimizer = self.of(self._groups(module), self.base_lr(global_batch))
        if self.clip_norm is not None:
            longest, parameters = self.clip_norm, list(module.parameters())

            def clip(*_: object) -> None:
                nn.utils.clip_grad_norm_(parameters, longest)

            optimizer.register_step_pre_hook(clip)
        return optimizer


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Set the learning rate of the next step; a group may have a multiple of it (``lr_factor``)."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group.get("lr_factor", 1.0)


@checked
class SGD(Optimizer):
    """torch.optim.SGD. ``momentum``: of the averaged gradient; 0 where a wrapper applies it on the workers.
    ``nesterov``: Nesterov's momentum; it changes nothing at momentum 0. ``norm_bias_factor``: biases of
    batch norm learn at so many times the rate, and their weight decay is divided by it (hlb-CIFAR10's
    decoupled rates)."""

    momentum: Annotated[float, within(0, below=1)] = 0.9
    nesterov: bool = False
    norm_bias_factor: Positive = 1.0

    def _groups(self, module: nn.Module) -> Iterable[Any]:
        factor = self.norm_bias_factor
        norms = [layer for layer in module.modules() if isinstance(layer, nn.BatchNorm2d)]
        biases = [layer.bias for layer in norms if layer.affine]
        if factor == 1 or not biases:
            return module.parameters()
        known = {id(bias) for bias in biases}
        others = [p for p in module.parameters() if id(p) not in known]
        apart = {"params": biases, "lr_factor": factor, "weight_decay": self.weight_decay / factor}
        return [{"params": others}, apart]

    def of(self, parameters: Iterable[Any], lr: float) -> torch.optim.SGD:
        return torch.optim.SGD(
            parameters,
            lr=lr,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            nesterov=self.nesterov and self.momentum > 0,
        )
