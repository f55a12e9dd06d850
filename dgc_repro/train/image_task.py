"""Images: shuffled every epoch, augmented, one answer each; nothing is carried from step to step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dgc_repro.dataset.batches import (
    ALTERNATES,
    alternating_flips,
    augment_and_normalize,
    augment_generator,
    epoch_batches,
    eval_shard,
    normalize,
    steps_per_epoch,
    uploaded,
)
from dgc_repro.dataset.images import Images, Splits
from dgc_repro.train.settings import TrainSettings
from dgc_repro.train.task import TOP, Batch, Carried, Forward, Part


@dataclass(frozen=True)
class ImageTask:
    """``seed`` decides order and augmentation."""

    splits: Splits
    settings: TrainSettings
    seed: int

    @property
    def counts_top5(self) -> bool:
        return self.splits.num_classes > TOP

    def steps_per_epoch(self, world_size: int) -> int:
        return steps_per_epoch(len(self.splits.train), self.settings.step_size, world_size)

    def batches(self, epoch: int, world_size: int, rank: int, start_step: int) -> Iterator[Batch]:
        size, n = self.settings.step_size, len(self.splits.train)
        chosen = epoch_batches(n, size, world_size, rank, self.seed, epoch, start_step)
        alternates = self.splits.augment == ALTERNATES
        flips = alternating_flips(n, self.seed, epoch) if alternates else None
        for step, indices in enumerate(chosen, start=start_step):
            generator = augment_generator(self.seed, epoch, rank, step)
            mirrored = None if flips is None else flips[indices]
            yield Batch(len(indices), self._micro_batches(indices, mirrored, generator))

    def _micro_batches(
        self, indices: Tensor, mirrored: Tensor | None, generator: torch.Generator
    ) -> Iterator[tuple[Tensor, Tensor]]:
        splits, size = self.splits, self.settings.batch_size
        chosen = uploaded(indices, splits.train.labels.device).split(size)
        flips = [None] * len(chosen) if mirrored is None else mirrored.split(size)
        for micro, flipped in zip(chosen, flips, strict=True):
            images = augment_and_normalize(
                splits.train.images[micro],
                splits.augment,
                splits.mean,
                splits.std,
                generator,
                flipped,
            )
            yield self._in_memory_format(images), splits.train.labels[micro]

    def answer(self, forward: Forward, inputs: Tensor, carried: Carried) -> tuple[Tensor, Carried]:
        return forward(inputs), ()

    def evaluation_size(self, part: Part) -> int:
        return len(part)

    def evaluation_batches(
        self, part: Part, ranks: Sequence[int], world_size: int
    ) -> Iterator[tuple[Tensor, Tensor]]:
        assert isinstance(part, Images)
        mine = torch.cat([eval_shard(len(part), world_size, rank) for rank in ranks])
        for indices in uploaded(mine, part.labels.device).split(
            self.settings.evaluation_batch_size
        ):
            images = normalize(part.images[indices], self.splits.mean, self.splits.std)
            yield self._in_memory_format(images), part.labels[indices]

    def training_images(self, count: int) -> Tensor:
        """The first ``count`` training images, f32[m,3,H,W], normalized and not augmented."""
        return normalize(self.splits.train.images[:count], self.splits.mean, self.splits.std)

    def metrics(self, loss: float, accuracy_percent: float) -> dict[str, float]:
        return {"loss": loss, "accuracy_percent": accuracy_percent}

    def _in_memory_format(self, images: Tensor) -> Tensor:
        if self.settings.channels_last:
            return images.to(memory_format=torch.channels_last)
        return images
