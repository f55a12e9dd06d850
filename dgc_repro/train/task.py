"""What is learned. A task supplies batches and answers; the step, the loop and evaluation know no more.

Every task here is a classification: an answer is a row of logits, a target is a number. Images have
one answer each (`image_task`), a text has one for every word, the next word (`language_task`). So
the loss is the mean cross-entropy in nats, and accuracy the share of answers whose largest logit is
the target's, in percent, of images or of next words.

What a worker carries from one step to the next is explicit: it goes into `answer` as an argument and
comes out as a value; `Progress` keeps it and checkpoints save it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from dgc_repro.dataset.images import Images, Splits
from dgc_repro.dataset.text import Text

Forward = Callable[..., Any]
"""The model, wrapped in DDP or not."""
Carried = tuple[Tensor, ...]
"""What one micro-batch's place carries on; empty where there is nothing yet, or never."""
TOP = 5
"""Of so many likeliest answers one may be right: top-5, where there are more than that."""
Part = Images | Tensor
"""A split: images, or a row of word numbers i64[n]."""


@dataclass(frozen=True)
class Batch:
    """What one worker learns from in one step. ``count``: answers in it. ``micro_batches`` makes
    (inputs, targets) on the run's device as it goes, ``accumulate`` of them; it is read once."""

    count: int
    micro_batches: Iterable[tuple[Tensor, Tensor]]


class Task(Protocol):
    """Images or language."""

    @property
    def splits(self) -> Splits | Text:
        """The data, on the run's device."""

    @property
    def counts_top5(self) -> bool:
        """Whether evaluation counts answers among the five likeliest."""

    def steps_per_epoch(self, world_size: int) -> int:
        """Steps each worker makes. Raises UserError if there is not one."""

    def batches(self, epoch: int, world_size: int, rank: int, start_step: int) -> Iterator[Batch]:
        """A worker's batches of one epoch, from a step of it on: a pure function of these."""

    def answer(self, forward: Forward, inputs: Tensor, carried: Carried) -> tuple[Tensor, Carried]:
        """(logits f32[m,classes], what to carry on, detached)."""

    def evaluation_size(self, part: Part) -> int:
        """Answers in a whole part."""

    def evaluation_batches(
        self, part: Part, ranks: Sequence[int], world_size: int
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """(inputs, targets) of these workers' shares, in the order in which to carry on. A target
        may be `text.IGNORED`; over all ranks each answer is asked for once."""

    def metrics(self, loss: float, accuracy_percent: float) -> dict[str, float]:
        """What a record says of a part, by name."""


@runtime_checkable
class Prepared(Protocol):
    """A network that needs ``prepared_from`` training images before training."""

    prepared_from: int

    def prepare(self, images: Tensor) -> None:
        """Compute what depends on the images, f32[n,3,H,W], normalized."""
