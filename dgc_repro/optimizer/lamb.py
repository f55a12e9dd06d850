"""LAMB: layer-wise adaptive moments (You et al., "Large batch optimization for deep learning: training
BERT in 76 minutes", 2019, arXiv:1904.00962, algorithm 2).

For each tensor w with gradient g in step t, learning rate eta, weight decay lambda:

    m = beta1 m + (1 - beta1) g          v = beta2 v + (1 - beta2) g^2
    r = m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps)
    w = w - eta ||w|| / ||r + lambda w|| (r + lambda w)

phi of the paper is the identity. The ratio is 1 where one of its norms is 0.

Departure, as in LARS (``exempt_1d``): tensors with at most one dimension have a ratio of 1 and no weight
decay; for them LAMB is Adam.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from dgc_repro.checked import Count, Positive, Rate, WeightDecay, checked, within
from dgc_repro.optimizer.lars import adapted_and_exempt, norms, trusted, with_gradients
from dgc_repro.optimizer.sgd import Optimizer

Decay = Annotated[float, within(0, below=1)]


@checked
class LAMB(Optimizer):
    """``beta1``, ``beta2``, ``eps``: of the moments. ``exempt_1d``: plain Adam without weight decay for
    biases and normalization."""

    lr: Rate = 0.01
    weight_decay: WeightDecay = 0.01
    reference_batch: Count | None = None
    beta1: Decay = 0.9
    beta2: Decay = 0.999
    eps: Positive = 1e-6
    exempt_1d: bool = True

    def of(self, parameters: Iterable[nn.Parameter], lr: float) -> LAMBOptimizer:
        groups = adapted_and_exempt(parameters, self.weight_decay, self.exempt_1d)
        return LAMBOptimizer(groups, lr, (self.beta1, self.beta2), self.eps)


class LAMBOptimizer(torch.optim.Optimizer):
    """The optimizer of a loop. A group may set ``weight_decay`` and ``adapts`` (False: the ratio is 1).
    ``freeze_steps``: steps that change v; None: all."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        *,
        freeze_steps: int | None = None,
    ) -> None:
        self.freeze_steps = math.inf if freeze_steps is None else freeze_steps
        defaults = {"lr": lr, "weight_decay": 0.0, "adapts": True}
        super().__init__(params, defaults | {"betas": betas, "eps": eps})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group, weights, gradients in with_gradients(self):
            self.update(group, weights, gradients)

    def update(self, group: dict[str, Any], weights: list[Tensor], gradients: list[Tensor]) -> None:
        """Move the weights of one group."""
        beta1, beta2 = group["betas"]
        states = [self.state[p] for p in weights]
        for state, weight in zip(states, weights, strict=True):
            if not state:
                state["step"] = 0
                state["mean"], state["square"] = (torch.zeros_like(weight) for _ in range(2))
            state["step"] += 1
        means, squares = ([state[name] for state in states] for name in ("mean", "square"))
        torch._foreach_lerp_(means, gradients, 1 - beta1)
        counts = [min(s["step"], self.freeze_steps) for s in states]
        moving = [i for i, s in enumerate(states) if s["step"] == counts[i]]
        if moving:
            v, g = ([every[i] for i in moving] for every in (squares, gradients))
            torch._foreach_mul_(v, beta2)
            torch._foreach_addcmul_(v, g, g, 1 - beta2)
        for state in states:
            if state["step"] == self.freeze_steps + 1:  # no variance is known: never an update
                state["square"].masked_fill_(state["square"] == 0, math.inf)

        roots = torch._foreach_div(squares, [1 - beta2**count for count in counts])
        torch._foreach_sqrt_(roots)
        torch._foreach_add_(roots, group["eps"])
        updates = torch._foreach_div(means, [1 - beta1 ** s["step"] for s in states])
        torch._foreach_div_(updates, roots)
        torch._foreach_add_(updates, weights, alpha=group["weight_decay"])
        if group["adapts"]:
            w, u = norms(weights), norms(updates)
            torch._foreach_mul_(updates, trusted(w / u, w, u))
        torch._foreach_add_(weights, updates, alpha=-group["lr"])
