"""Everything one training run consists of, in one place and without behaviour.

`Run` holds the parts a step uses; `Progress` holds what changes and is checkpointed.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from dgc_repro.dataset.images import Splits
from dgc_repro.dataset.text import Text
from dgc_repro.exchange.exchange import Exchange
from dgc_repro.exchange.junction import AfterBackward, Junction, Parameters
from dgc_repro.exchange.steps import PolicyProgress, Steps
from dgc_repro.model.low_rank import LowRank
from dgc_repro.optimizer.sam import SAM
from dgc_repro.train.local_steps import LocalSteps
from dgc_repro.train.loss_scale import LossScale
from dgc_repro.train.meter import Meter, NoMeter
from dgc_repro.train.randomness import Workers
from dgc_repro.train.schedule import Schedule
from dgc_repro.train.settings import TrainSettings
from dgc_repro.train.stopping import Stopping
from dgc_repro.train.task import Carried, Task


@dataclass
class Tally:
    """Sums over the answers of an epoch's training, over all workers."""

    loss: float = 0.0
    correct: float = 0.0
    count: float = 0.0
    skipped_steps: float = 0  # steps of the run; one that k of N workers leave out counts k/N
    modelled_before: float = 0.0  # seconds of modelled communication before this epoch
    top5_percent: ClassVar[None] = None  # not counted in training

    def add(self, loss: float, correct: float, count: float) -> None:
        self.loss += loss
        self.correct += correct
        self.count += count

    @property
    def mean_loss(self) -> float:
        return self.loss / self.count if self.count else math.nan

    @property
    def accuracy_percent(self) -> float:
        return 100.0 * self.correct / self.count if self.count else math.nan


@dataclass
class Progress(PolicyProgress):
    """Where a run is: ``step`` and ``epoch`` count what is finished, from 0. ``carried``: what each
    worker hosted here carries into the next step, by micro-batch (see ``task``). ``loss_scales``: of each
    worker hosted here, in fp16; else empty."""

    step: int = 0
    epoch: int = 0
    tally: Tally = field(default_factory=Tally)
    epoch_start: list[Tensor] = field(default_factory=list)  # parameters, for weights/change_norm
    last_record: dict[str, Any] = field(default_factory=dict)
    carried: list[list[Carried]] = field(default_factory=list)
    loss_scales: list[LossScale] = field(default_factory=list)
    modelled_seconds: float = 0.0  # of all steps, on the network that the run names
    reached: dict[str, Any] = field(default_factory=dict)  # where the target was, empty until then
    is_low_rank: bool = False  # the model has been factorized
    cpu_seconds_before: float = 0.0  # of the processes that made the steps before the checkpoint


@dataclass(kw_only=True)
class Trained:
    """A model, and the parts of a run that depend on its parameters. ``forward`` is the DDP model, or the
    module itself where workers are simulated; ``module`` is what is evaluated and saved. ``optimizer`` takes
    the mean in ``param.grad``. ``uncompressed``: where SAM's second gradient is exchanged, where the first is
    compressed. ``local``: the workers' own weights and optimizers, with ``train.local_steps``."""

    module: nn.Module
    forward: Any
    parameters: Parameters
    exchange: Exchange
    junction: Junction
    optimizer: torch.optim.Optimizer
    uncompressed: AfterBackward | None = None
    local: LocalSteps | None = None


@dataclass(kw_only=True)
class Run(Steps):
    """The parts of a run; see `Trained` for those that depend on the model. ``trained``: builds these for
    another model, on all ranks together. ``low_rank``: when the model is factorized (Pufferfish)."""

    settings: TrainSettings
    module: nn.Module
    forward: Any
    optimizer: torch.optim.Optimizer
    base_lr: float
    schedule: Schedule
    task: Task
    workers: Workers
    progress: Progress
    steps_per_epoch: int
    trained: Callable[[nn.Module], Trained]
    sam: SAM | None = None
    uncompressed: AfterBackward | None = None
    local: LocalSteps | None = None
    low_rank: LowRank | None = None
    stopping: Stopping = field(default_factory=Stopping)
    meter: Meter = field(default_factory=NoMeter)
    notes: list[str] = field(default_factory=list)  # what a person should know of how it was built
    stop_requested: bool = False
    cpu_seconds_at_start: float = 0.0  # of this process, which may have trained other runs
    unusable: set[str] = field(default_factory=set)  # checkpoints of this run that are damaged

    def __post_init__(self) -> None:
        super().__post_init__()
        self.on_nonfinite = self.settings.on_nonfinite
        self.carry_nothing()

    def carry_nothing(self) -> None:
        """What every epoch begins with."""
        self.progress.carried = [[()] * self.settings.accumulate for _ in self.workers.ranks]

    @property
    def may_skip(self) -> bool:
        """Whether a step may be left out; in fp16 one that overflows is."""
        return super().may_skip or bool(self.progress.loss_scales)

    @property
    def num_steps(self) -> int:
        """Steps of the whole run."""
        return self.settings.num_steps(self.steps_per_epoch)

    @property
    def num_epochs(self) -> int:
        """Epochs of the whole run; the last may be cut short (``train.steps_share``)."""
        return math.ceil(self.num_steps / self.steps_per_epoch)

    @property
    def ends_early(self) -> bool:
        """Whether the target was reached and ends the run."""
        return self.stopping.stop and bool(self.progress.reached)

    @property
    def is_finished(self) -> bool:
        """Whether the epochs that are finished are the whole run."""
        return self.progress.epoch >= self.num_epochs or self.ends_early

    def lr_factor(self, epoch: float) -> float:
        """The schedule's factor after so many epochs. Where the run has a share of the steps of its epochs,
        the schedule runs through in these."""
        whole = self.settings.epochs
        stretch = whole * self.steps_per_epoch / self.num_steps
        return self.schedule.factor(epoch * stretch, whole)

    @property
    def is_due(self) -> bool:
        """Whether the model is to be factorized before the next step."""
        first = None if self.low_rank is None else self.low_rank.from_epoch
        return first is not None and self.progress.epoch >= first and not self.progress.is_low_rank

    def ends_round(self, step: int) -> bool:
        """Whether an exchange follows ``step`` steps of the run, the last of this epoch: every
        ``train.local_steps`` steps of the epoch, and at its end. The module then holds the shared weights.
        With ``train.fragments`` a round ends ``train.delay_steps`` after a fragment was sent."""
        settings, done = self.settings, step - self.progress.epoch * self.steps_per_epoch
        if done == self.steps_per_epoch or step == self.num_steps:
            return True
        if settings.fragments > 1:
            return step % settings.steps_between_fragments == settings.delay_steps
        return done % settings.local_steps == 0

    @property
    def current_lr(self) -> float:
        """The learning rate of the last step: with local steps, of the workers' own."""
        optimizer = self.optimizer if self.local is None else self.local.inner[0]
        return float(optimizer.param_groups[0]["lr"])

    @property
    def cpu_seconds(self) -> float:
        """User and system time of this process and its children since the run began here, and of the
        processes that it continues."""
        return self.progress.cpu_seconds_before + sum(os.times()[:4]) - self.cpu_seconds_at_start

    def factorize(self) -> None:
        """Put thin layers into the model, on all ranks together. Residuals, momentum and other states by
        parameter start anew; the ledger, the policy and the compressor's random numbers go on."""
        assert self.low_rank is not None
        step = self.exchange.step
        for name, part in vars(self.trained(self.low_rank.factorized(self.module))).items():
            setattr(self, name, part)
        self.exchange.step = step
        self.exchange.choose = self.choose
        self.workers.buffers = list(self.module.buffers())
        self.progress.watched.sums = {}
        self.progress.epoch_start = [p.detach().clone() for p in self.module.parameters()]
        self.progress.is_low_rank = True

    @property
    def splits(self) -> Splits | Text:
        return self.task.splits

    def zero_grad(self) -> None:
        """Drop the gradients. (`Module.zero_grad` walks through the modules, for each worker.)"""
        for parameter in self.parameters.values():
            parameter.grad = None

    @property
    def device(self) -> torch.device:
        return self.world.device
