"""LARS: layer-wise adaptive rate scaling (You, Gitman, Ginsburg, "Large batch training of convolutional
networks", 2017, arXiv:1708.03888, algorithm 1).

For each tensor w with gradient g, learning rate gamma, trust coefficient eta, weight decay beta, momentum m:

    lambda = eta ||w|| / (||g|| + beta ||w||)
    v      = m v + gamma lambda (g + beta w)
    w      = w - v

The velocity contains the learning rate. lambda is 1 where ||w|| or ||g|| is 0.

Departure, common in published code: tensors with at most one dimension (biases, scale and shift of
normalization) have lambda = 1 and no weight decay (``exempt_1d``). The paper does not exempt them. Their rate
is then ``lr`` itself: with a trust coefficient of 0.001 that is large, and a network without normalization
may need ``exempt_1d=false``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from dgc_repro.checked import Count, Positive, Rate, WeightDecay, checked, within
from dgc_repro.optimizer.sgd import Optimizer


@checked
class LARS(Optimizer):
    """``momentum``: m. ``trust_coefficient``: eta. ``exempt_1d``: plain momentum without weight decay for
    biases and normalization."""

    lr: Rate = 10.0
    weight_decay: WeightDecay = 5e-4
    reference_batch: Count | None = None
    momentum: Annotated[float, within(0, below=1)] = 0.9
    trust_coefficient: Positive = 1e-3
    exempt_1d: bool = True

    def of(self, parameters: Iterable[nn.Parameter], lr: float) -> LARSOptimizer:
        groups = adapted_and_exempt(parameters, self.weight_decay, self.exempt_1d)
        return LARSOptimizer(groups, lr, self.momentum, self.trust_coefficient)


class LARSOptimizer(torch.optim.Optimizer):
    """The optimizer of a loop. A group may set ``weight_decay`` and ``adapts`` (False: lambda is 1)."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        momentum: float = 0.9,
        trust_coefficient: float = 1e-3,
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": 0.0, "adapts": True}
        super().__init__(params, defaults | {"trust_coefficient": trust_coefficient})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group, weights, gradients in with_gradients(self):
            decay = group["weight_decay"]
            updates = torch._foreach_add(gradients, weights, alpha=decay)
            if group["adapts"]:
                w, g = norms(weights), norms(gradients)
                rates = group["trust_coefficient"] * w / (g + decay * w)
                torch._foreach_mul_(updates, trusted(rates, w, g))
            for weight in weights:
                if not self.state[weight]:
                    self.state[weight]["velocity"] = torch.zeros_like(weight)
            velocities = [self.state[weight]["velocity"] for weight in weights]
            torch._foreach_mul_(velocities, group["momentum"])
            torch._foreach_add_(velocities, updates, alpha=group["lr"])
            torch._foreach_sub_(weights, velocities)


def adapted_and_exempt(
    parameters: Iterable[nn.Parameter], weight_decay: float, exempt_1d: bool
) -> list[dict[str, Any]]:
    """The groups of a layer-wise optimizer: tensors with two dimensions or more, and the others."""
    groups: tuple[list[nn.Parameter], list[nn.Parameter]] = [], []
    for parameter in parameters:
        groups[exempt_1d and parameter.ndim <= 1].append(parameter)
    adapted, exempt = groups
    return [
        {"params": adapted, "weight_decay": weight_decay, "adapts": True},
        {"params": exempt, "weight_decay": 0.0, "adapts": False},
    ]


def with_gradients(
    optimizer: torch.optim.Optimizer,
) -> Iterator[tuple[dict[str, Any], list[Tensor], list[Tensor]]]:
    """Each group that has gradients: the group, its parameters with a gradient, and the gradients."""
    for group in optimizer.param_groups:
        weights = [p for p in group["params"] if p.grad is not None]
        if weights:
            yield group, weights, [p.grad for p in weights]


def norms(tensors: Sequence[Tensor]) -> Tensor:
    """The L2 norm of each tensor, shape [len(tensors)]."""
    return torch.stack(torch._foreach_norm(list(tensors)))


def trusted(ratios: Tensor, w: Tensor, u: Tensor) -> list[Tensor]:
    """The ratios, 1 where the norm of a weight ``w`` or of its update ``u`` is 0."""
    return list(torch.where((w > 0) & (u > 0), ratios, 1.0).unbind())
