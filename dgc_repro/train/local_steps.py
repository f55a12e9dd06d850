"""DiLoCo: workers train apart for some steps, then exchange how far their weights have moved.

Paper: Douillard, Feng, Rusu, Chhaparia, Donchev, Kuncoro, Ranzato, Szlam, Shen, "DiLoCo: Distributed
Low-Communication Training of Language Models", 2023 (arXiv:2311.08105), algorithm 1. A round of H steps
(``train.local_steps``), theta the shared weights, w_i those of worker i of N:

    w_i = theta                                       at the beginning of the round
    w_i = InnerOpt(w_i, g_i)                          H times, g_i of the worker's own batch (``optimizer``)
    Delta = 1/N sum_i (theta - w_i)                   outer gradients, exchanged as gradients are
    theta = OuterOpt(theta, Delta)                    SGD with Nesterov momentum (``train.outer_*``)

Each worker keeps the state of its InnerOpt (momentum) from round to round. With ``outer_lr`` 1 and
``outer_momentum`` 0, theta is the mean of the w_i: local SGD (Stich, "Local SGD converges fast and
communicates little", 2018, arXiv:1805.09767, algorithm 1).
Differs: the end of an epoch ends a round too, so that evaluation, policies and checkpoints see theta. The
last round of an epoch may have fewer than H steps. All workers draw from one shuffled data set; the paper
gives each worker a shard of its own. Compared by reading with PrimeIntellect-ai/diloco_simple: the same
algorithm, AdamW within a round, workers keep its moments.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import torch
from torch import Tensor, nn

from dgc_repro.optimizer.sgd import set_learning_rate
from dgc_repro.train.settings import TrainSettings
from dgc_repro.train.task import Carried


def outer_optimizer(
    parameters: Iterable[nn.Parameter], settings: TrainSettings
) -> torch.optim.Optimizer:
    """What moves theta by the mean outer gradient in ``param.grad``."""
    return torch.optim.SGD(
        parameters,
        lr=settings.outer_lr,
        momentum=settings.outer_momentum,
        nesterov=settings.outer_momentum > 0,
    )


class LocalSteps:
    """The weights and inner optimizers of the workers hosted here.

    The module holds theta between rounds. During a round it holds the weights of the worker whose turn it is
    or was last; theta and the weights of the others are kept here. So nothing is copied from step to step
    where a process hosts one worker. ``taken``: steps of the current round, or of the last one that ended.
    ``under_way``: whether outer gradients have been opened, and their mean has not moved theta yet."""

    under_way = False

    def __init__(
        self, parameters: Iterable[nn.Parameter], inner: Sequence[torch.optim.Optimizer]
    ) -> None:
        """``parameters``: those of the module that learn; ``inner``: an optimizer of them for each worker."""
        self.inner = list(inner)
        self._parameters: list[Tensor] = list(parameters)
        self._shared: list[Tensor] = []  # theta, during a round
        self._own: dict[int, list[Tensor]] = {}  # by worker, of those whose turn it is not
        self._here: int | None = None  # whose weights the module holds; None: theta
        self.carried: list[list[Carried]] = []  # `Progress.carried` before the round
        self._clear()

    def _clear(self) -> None:
        """Begin the sums of a round."""
        self.taken = 0
        self.skipped = 0  # steps left out, of all workers hosted here
        # Sums of loss, correct answers and answers, on the device. By worker: so the sum over workers has the
        # same bits whether they live in one process or in several.
        device = self._parameters[0].device
        self.answers = [torch.zeros(3, dtype=torch.float64, device=device) for _ in self.inner]
        self.bad: list[str | None] = [None for _ in self.inner]  # a gradient that was not finite

    @property
    def begins_round(self) -> bool:
        """Whether the next step is the first of a round."""
        return self._here is None

    @torch.no_grad()
    def begin_turn(self, worker: int) -> None:
        """Put a worker's weights into the module; theta where it has none of its own."""
        before = self._here
        if worker == before:
            return
        if before is None:
            self._shared = self._copy()
            self._clear()
        else:
            self._own[before] = self._copy()
        if before is not None or worker in self._own:
            torch._foreach_copy_(self._parameters, self._own.pop(worker, self._shared))
        self._here = worker

    def sends(self, step: int, ends: bool) -> bool:
        """Whether outer gradients are opened after ``step`` steps of the run. ``ends``: the round does."""
        return ends

    @property
    def sent_names(self) -> Collection[str] | None:
        """The parameters whose outer gradients are sent; None for all."""
        return None

    def step(self, worker: int, learning_rate: float) -> None:
        """Move the weights in the module, this worker's, by the gradients in ``param.grad``."""
        set_learning_rate(self.inner[worker], learning_rate)
        self.inner[worker].step()

    @torch.no_grad()
    def leave_outer_gradient(self) -> None:
        """Put theta - w of the worker in the module into ``param.grad``."""
        moved = torch._foreach_sub(self._shared, self._parameters)
        for parameter, gradient in zip(self._parameters, moved, strict=True):
            parameter.grad = gradient

    @torch.no_grad()
    def end_round(self) -> None:
        """Put theta into the module; the weights of all workers are dropped."""
        torch._foreach_copy_(self._parameters, self._shared)
        self._shared, self._here = [], None
        self._own.clear()

    def merge(self) -> None:
        """The outer optimizer has moved theta, which is in the module."""

    def drop(self) -> None:
        """The round is dropped, and workers begin again at theta, without a state of their optimizer."""
        for inner in self.inner:
            inner.state.clear()

    def _copy(self) -> list[Tensor]:
        return [parameter.detach().clone() for parameter in self._parameters]
