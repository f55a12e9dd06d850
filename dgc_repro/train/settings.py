"""Settings of a run's training."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import nn

from dgc_repro.checked import Count, Positive, Rule, checked, one_of, within
from dgc_repro.exchange.step import ON_NONFINITE

PRECISIONS = ("fp32", "bf16")
RESHARD = ("refuse", "mean")
MEASURED, MODELLED = "measured", "modelled"


@checked
class TrainSettings:
    """``batch_size``: images, or columns of text, a worker and micro-step; ``accumulate``:
    micro-steps a step. ``evaluation_batch_size``: images (a text is evaluated in
    ``dataset.evaluation_columns``).
    ``precision``: bf16 is autocast only, parameters and gradients stay float32. ``compile``: the
    model, in place. ``reshard``: what to do with residuals saved by another number of workers.
    ``profile``: trace a few steps by torch.profiler into the run folder. ``step_time``: what policies that
    look at time are told of a step: measured, or modelled (communication on the network that the run
    names); ``compute_ms``: then all of a step but its communication, null for what is measured."""

    epochs: Count
    batch_size: Count = 32
    accumulate: Count = 1
    precision: Annotated[str, one_of(PRECISIONS)] = "fp32"
    channels_last: bool = True
    compile: bool = False
    on_nonfinite: Annotated[str, one_of(ON_NONFINITE)] = "raise"
    checkpoint_every_epochs: Count = 1
    evaluation_batch_size: Count = 250
    reshard: Annotated[str, one_of(RESHARD)] = "refuse"
    resume_from: Annotated[str, Rule("a run's folder", bool)] | None = None
    profile: bool = False
    step_time: Annotated[str, one_of((MEASURED, MODELLED))] = MEASURED
    compute_ms: Positive | None = None

    def __post_init__(self) -> None:
        if self.compute_ms is not None and self.step_time != MODELLED:
            raise ValueError(
                f"compute_ms: goes with train.step_time={MODELLED}, got {self.compute_ms!r} with "
                f"{self.step_time}"
            )

    @property
    def step_size(self) -> int:
        """Images, or columns of text, a worker learns from in one step."""
        return self.batch_size * self.accumulate


@checked
class SGD:
    """torch.optim.SGD. ``reference_batch``: ``lr`` is for this many images, or columns of text, a step
    over all workers and scales linearly with the real number; None takes ``lr`` as it is.
    ``clip_norm``: the averaged gradient is scaled to this 2-norm, over all tensors, where it is longer
    (Pascanu, Mikolov, Bengio, 2013, arXiv:1211.5063, algorithm 1); None leaves it."""

    lr: Positive = 0.1
    momentum: Annotated[float, within(0, below=1)] = 0.9
    weight_decay: Annotated[float, within(0)] = 5e-4
    nesterov: bool = False
    reference_batch: Count | None = 128
    clip_norm: Positive | None = None

    def __post_init__(self) -> None:
        if self.nesterov and self.momentum == 0:
            raise ValueError("nesterov: needs optimizer.momentum above 0, got momentum 0")

    def base_lr(self, global_batch: int) -> float:
        """The learning rate before the schedule."""
        return (
            self.lr
            if self.reference_batch is None
            else self.lr * global_batch / self.reference_batch
        )

    def build(self, module: nn.Module, global_batch: int) -> torch.optim.SGD:
        optimizer = torch.optim.SGD(
            module.parameters(),
            lr=self.base_lr(global_batch),
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            nesterov=self.nesterov,
        )
        if self.clip_norm is not None:
            longest, parameters = self.clip_norm, list(module.parameters())

            def clip(*_: object) -> None:
                nn.utils.clip_grad_norm_(parameters, longest)

            optimizer.register_step_pre_hook(clip)
        return optimizer
