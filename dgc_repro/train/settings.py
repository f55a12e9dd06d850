"""What a run is told: plain dataclasses that validate themselves."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from dgc_repro.policy.checks import check_flag, check_number, check_one_of, check_whole

PRECISIONS = ("fp32", "bf16")
ON_NONFINITE = ("raise", "skip")
RESHARD = ("refuse", "mean")
MEASURED, MODELLED = "measured", "modelled"


@dataclass(frozen=True)
class TrainSettings:
    """``batch_size``: images, or columns of text, a worker and micro-step; ``accumulate``:
    micro-steps a step. ``evaluation_batch_size``: images (a text is evaluated in
    ``dataset.evaluation_columns``).
    ``precision``: bf16 is autocast only, parameters and gradients stay float32. ``compile``: the
    model, in place. ``reshard``: what to do with residuals saved by another number of workers.
    ``profile``: trace a few steps by torch.profiler into the run folder. ``step_time``: what policies that
    look at time are told of a step: measured, or modelled (communication on the network that the run
    names); ``compute_ms``: then all of a step but its communication, null for what is measured."""

    epochs: int
    batch_size: int = 32
    accumulate: int = 1
    precision: str = "fp32"
    channels_last: bool = True
    compile: bool = False
    on_nonfinite: str = "raise"
    checkpoint_every_epochs: int = 1
    evaluation_batch_size: int = 250
    reshard: str = "refuse"
    resume_from: str | None = None
    profile: bool = False
    step_time: str = MEASURED
    compute_ms: float | None = None

    def __post_init__(self) -> None:
        for field in ("epochs", "batch_size", "accumulate", "checkpoint_every_epochs"):
            check_whole(field, getattr(self, field))
        check_whole("evaluation_batch_size", self.evaluation_batch_size)
        for field in ("channels_last", "compile", "profile"):
            check_flag(field, getattr(self, field))
        check_one_of("precision", self.precision, PRECISIONS)
        check_one_of("on_nonfinite", self.on_nonfinite, ON_NONFINITE)
        check_one_of("reshard", self.reshard, RESHARD)
        check_one_of("step_time", self.step_time, (MEASURED, MODELLED))
        if self.compute_ms is not None:
            check_number("compute_ms", self.compute_ms)
            if not self.compute_ms > 0 or self.step_time != MODELLED:
                raise ValueError(
                    f"compute_ms: milliseconds above 0, with train.step_time={MODELLED}, or null, got "
                    f"{self.compute_ms!r} with {self.step_time}"
                )
        if self.resume_from is not None and not (
            self.resume_from and type(self.resume_from) is str
        ):
            raise ValueError(f"resume_from: a run's folder, or null, got {self.resume_from!r}")

    @property
    def step_size(self) -> int:
        """Images, or columns of text, a worker learns from in one step."""
        return self.batch_size * self.accumulate


@dataclass(frozen=True)
class SGD:
    """torch.optim.SGD. ``reference_batch``: ``lr`` is for this many images, or columns of text, a step
    over all workers and scales linearly with the real number; None takes ``lr`` as it is.
    ``clip_norm``: the averaged gradient is scaled to this 2-norm, over all tensors, where it is longer
    (Pascanu, Mikolov, Bengio, 2013, arXiv:1211.5063, algorithm 1); None leaves it."""

    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4
    nesterov: bool = False
    reference_batch: int | None = 128
    clip_norm: float | None = None

    def __post_init__(self) -> None:
        for field in ("lr", "momentum", "weight_decay"):
            check_number(field, getattr(self, field))
        check_flag("nesterov", self.nesterov)
        if not self.lr > 0:
            raise ValueError(f"lr: above 0, got {self.lr}")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum: from 0 to below 1, got {self.momentum}")
        if self.weight_decay < 0:
            raise ValueError(f"weight_decay: from 0, got {self.weight_decay}")
        if self.nesterov and self.momentum == 0:
            raise ValueError("nesterov: needs optimizer.momentum above 0, got momentum 0")
        if self.reference_batch is not None:
            check_whole("reference_batch", self.reference_batch)
        if self.clip_norm is not None:
            check_number("clip_norm", self.clip_norm)
            if not self.clip_norm > 0:
                raise ValueError(f"clip_norm: above 0, or null for none, got {self.clip_norm}")

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
