"""Language: the next word of every word; the hidden state goes on from step to step of an epoch.

Truncated backpropagation through time: each step reads the next `bptt` words of the worker's own
columns (`dataset.text`), beginning with the hidden state that the step before has left there, cut
off from its graph. An epoch begins with zeros, and so does each evaluation, for every column.

A text of windows (`Text.windows`) is read from random places instead, and every step begins with zeros, in
evaluation too.

Perplexity is exp(mean nats a word), over all words of a part and all workers. Where a text is read by
characters (dataset/shakespeare.py), each of its words is one character, and the loss is nats a character.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from dgc_repro.dataset.batches import window_generator
from dgc_repro.dataset.text import (
    Text,
    eval_steps,
    own_columns,
    text_steps,
    text_steps_per_epoch,
    text_windows,
)
from dgc_repro.train.settings import TrainSettings
from dgc_repro.train.task import Batch, Carried, Forward, Part


@dataclass(frozen=True)
class LanguageTask:
    """A batch is ``batch_size`` columns a micro-batch; every micro-batch has columns of its own. ``seed``
    decides where windows begin."""

    splits: Text
    settings: TrainSettings
    seed: int
    counts_top5 = False

    def steps_per_epoch(self, world_size: int) -> int:
        text, size = self.splits, self.settings.step_size
        return text_steps_per_epoch(len(text.train), text.bptt, size, world_size, text.windows)

    def batches(self, epoch: int, world_size: int, rank: int, start_step: int) -> Iterator[Batch]:
        size = self.settings.batch_size
        for words, targets in self._steps(epoch, world_size, rank, start_step):
            micro_batches = zip(words.split(size), targets.split(size), strict=True)
            yield Batch(words.numel(), ((w, t.flatten()) for w, t in micro_batches))

    def _steps(
        self, epoch: int, world_size: int, rank: int, start_step: int
    ) -> Iterator[tuple[Tensor, Tensor]]:
        text, size = self.splits, self.settings.step_size
        if text.windows is None:
            yield from text_steps(
                own_columns(text.train, size, world_size, rank), text.bptt, start_step
            )
            return
        for step in range(start_step, self.steps_per_epoch(world_size)):
            generator = window_generator(self.seed, epoch, rank, step)
            yield text_windows(text.train, text.bptt, size, generator)

    def answer(self, forward: Forward, inputs: Tensor, carried: Carried) -> tuple[Tensor, Carried]:
        logits, state = forward(inputs, carried or None)
        if self.splits.windows is not None:  # the next window is elsewhere
            state = ()
        return logits.flatten(0, 1), tuple(part.detach().float() for part in state)

    def evaluation_size(self, part: Part) -> int:
        return len(part) - 1  # the first word is nobody's next

    def evaluation_batches(
        self, part: Part, ranks: Sequence[int], world_size: int
    ) -> Iterator[tuple[Tensor, Tensor]]:
        assert isinstance(part, Tensor)
        text = self.splits
        steps = eval_steps(part, text.bptt, text.evaluation_columns, ranks, world_size)
        return ((words, targets.flatten()) for words, targets in steps)

    def metrics(self, loss: float, accuracy_percent: float) -> dict[str, float]:
        perplexity = math.exp(loss) if loss < 700 else loss * math.inf  # exp(710) is no double
        return {"loss": loss, "accuracy_percent": accuracy_percent, "perplexity": perplexity}
