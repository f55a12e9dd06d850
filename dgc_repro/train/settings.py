"""Settings of a run's training."""

from __future__ import annotations

from typing import Annotated

from dgc_repro.checked import Count, Positive, Rate, Rule, checked, one_of, within
from dgc_repro.exchange.fit import ON_NONFINITE
from dgc_repro.exchange.saved import RESHARD
from dgc_repro.optimizer.sgd import SGD

__all__ = ["SGD", "TrainSettings"]
"""Configs of published runs name SGD of this module."""

PRECISIONS = ("fp32", "bf16", "fp16", "half")
MEASURED, MODELLED = "measured", "modelled"


@checked
class TrainSettings:
    """How a run trains.

    ``epochs``: epochs of the run. ``steps_share``: share of their steps that is trained; the schedule of
    the learning rate is shortened with them, warm-up included (a policy's is not). ``batch_size``:
    images, or columns of text, a worker and micro-step. ``accumulate``: micro-steps a step.
    ``evaluation_batch_size``: images of a step of an evaluation (a text is evaluated in
    dataset.evaluation_columns). ``local_steps``: steps of a worker between two exchanges; above 1 it is
    DiLoCo (train/local_steps.py). ``outer_lr``: learning rate of the shared weights (used with
    local_steps above 1); local SGD has 1. ``outer_momentum``: Nesterov momentum of the shared weights
    (used with local_steps above 1); local SGD has 0. ``fragments``: parts of the layers that are sent in
    turns (Streaming DiLoCo, train/streaming.py); a divisor of local_steps. ``delay_steps``: local steps
    while a fragment travels. ``mixing``: share of its own weights that a worker keeps; used where a
    fragment arrives. ``label_smoothing``: share of a target that is spread over all classes (Szegedy et
    al., 2016, arXiv:1512.00567, section 7); the loss that is trained and recorded has it, evaluation has
    not. ``channels_last``: keep images and convolutions in this memory format. ``on_nonfinite``: what
    follows a gradient that is not finite: raise, or skip the step on all ranks.
    ``checkpoint_every_epochs``: epochs between two checkpoints. ``resume_from``: folder of another run to
    continue from (see reshard). ``precision``: number format of forward and backward; bf16 and fp16 are
    autocast only, parameters and gradients stay float32; fp16 scales the loss (train/loss_scale.py); half
    is bf16 where the device computes it and else fp16 (`launch.devices.computed_precision`). ``compile``:
    compile the model in place, by torch.compile. ``reshard``: what to do with residuals saved by another
    number of workers. ``profile``: trace a few steps by torch.profiler; the trace lies in the run folder.
    ``step_time``: the step time that policies see: measured, or modelled (communication on the network
    that the run names). ``compute_ms``: modelled time of a step without communication; null takes the
    measured time (step_time=modelled only)."""

    epochs: Count
    steps_share: Annotated[float, within(above=0, most=1)] = 1.0
    batch_size: Count = 32
    accumulate: Count = 1
    local_steps: Count = 1
    outer_lr: Rate = 0.7
    outer_momentum: Annotated[float, within(0, below=1)] = 0.9
    fragments: Count = 1
    delay_steps: Annotated[int, within(0)] = 0
    mixing: Annotated[float, within(0, below=1)] = 0.0
    precision: Annotated[str, one_of(PRECISIONS)] = "fp32"
    label_smoothing: Annotated[float, within(0, below=1)] = 0.0
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
        for names, needed, more in (
            (("outer_lr", "outer_momentum", "fragments"), "local_steps", "local steps"),
            (("delay_steps", "mixing"), "fragments", "fragments"),
        ):
            for name in names:
                given = getattr(self, name)
                if getattr(self, needed) == 1 and given != getattr(TrainSettings, name):
                    raise ValueError(
                        f"{name}: does nothing with train.{needed}=1, got {given!r}; give more {more}, or "
                        "leave it out"
                    )
        if self.local_steps % self.fragments:
            raise ValueError(
                f"fragments: a divisor of train.local_steps={self.local_steps}, in which each fragment is "
                f"sent once, got {self.fragments}"
            )
        if self.delay_steps >= self.steps_between_fragments:
            raise ValueError(
                f"delay_steps: below the {self.steps_between_fragments} steps from one fragment to the next "
                f"(train.local_steps / train.fragments), got {self.delay_steps}"
            )
        if self.compute_ms is not None and self.step_time != MODELLED:
            raise ValueError(
                f"compute_ms: goes with train.step_time={MODELLED}, got {self.compute_ms!r} with "
                f"{self.step_time}"
            )

    @property
    def steps_between_fragments(self) -> int:
        """Steps from one exchange to the next."""
        return self.local_steps // self.fragments

    def num_steps(self, steps_per_epoch: int) -> int:
        """Steps of the whole run."""
        return max(1, round(self.steps_share * (self.epochs * steps_per_epoch)))

    @property
    def step_size(self) -> int:
        """Images, or columns of text, a worker learns from in one step."""
        return self.batch_size * self.accumulate
