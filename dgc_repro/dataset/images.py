"""Images in memory, and the splits a run works on: train, validation, test.

The validation part is held out of the training images by `split_seed`, a field of the data set, so
that runs with different seeds train, validate and test on the same images. Whatever a policy looks
at comes from validation; the test images only ever give the number that is reported.

Legend: n = images, H = height, W = width.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, TypeVar

import torch
from torch import Tensor

from dgc_repro.checked import checked, one_of, within
from dgc_repro.dataset.batches import AUGMENTATIONS
from dgc_repro.errors import UserError

NumImages = Annotated[int, within(1, name="a whole number of images")]
Size = Annotated[NumImages | None, "null takes all"]
Augmentation = Annotated[str, one_of(AUGMENTATIONS), "none takes images as they are"]
SplitSeed = Annotated[int, within(0), "published results use 0"]
Statistics = tuple[tuple[float, ...], tuple[float, ...]] | None
"""Mean and standard deviation, per channel; None: of the training images."""


@dataclass(frozen=True, eq=False)
class Images:
    """Labelled images as stored, before augmentation and normalization."""

    images: Tensor  # u8[n,3,H,W]
    labels: Tensor  # i64[n]

    def __post_init__(self) -> None:
        assert self.images.dtype == torch.uint8
        assert self.images.ndim == 4
        assert self.labels.dtype == torch.int64
        assert self.labels.shape == self.images.shape[:1]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, at: Tensor | slice) -> Images:
        """A view of a slice; a copy of the images at indices (i64[m]), in that order."""
        return Images(self.images[at], self.labels[at])

    def to(self, device: torch.device) -> Images:
        """The same images on a device."""
        return Images(self.images.to(device), self.labels.to(device))


Part = TypeVar("Part", Images, Tensor)


@dataclass(frozen=True, eq=False)
class Splits:
    """What a data set loads: three disjoint parts and how to feed them to a network.

    mean, std: per channel, in units of 0..1, of this data set itself.
    label: what a report prints after "data:".
    augment: one of `batches.AUGMENTATIONS`, for training batches only.
    """

    train: Images
    validation: Images
    test: Images
    num_classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    label: str
    augment: str

    def to(self, device: torch.device) -> Splits:
        """The same splits on a device."""
        parts = (self.train, self.validation, self.test)
        train, validation, test = (part.to(device) for part in parts)
        return replace(self, train=train, validation=validation, test=test)


def hold_out(images: Images, count: int, split_seed: int) -> tuple[Images, Images]:
    """Split `images` into (kept, held out), `count` of them held out, by a fixed permutation.

    The kept part is in the permutation's order, so its first m images are a fair sample, and the
    held-out part does not depend on how many of the kept ones are used.
    """
    order = permutation(len(images), split_seed)
    return images[order[count:]], images[order[:count]]


def permutation(count: int, split_seed: int) -> Tensor:
    """i64[count]: the fixed order of a split."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(split_seed))


def take(whole: Part, size: int | None, field: str, part: str) -> Part:
    """The first `size` of a part (all for None); UserError names `field` if there are fewer."""
    if size is not None and size > len(whole):
        raise UserError(
            f"dataset.{field}: at most {len(whole)}, which is all of {part}, got {size}; "
            "null takes them all"
        )
    return whole[:size]


def channel_statistics(images: Images) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation over all pixels, per channel, in units of 0..1."""
    pixels = images.images.to(torch.float64).div_(255).transpose(0, 1).flatten(1)  # f64[3,n*H*W]
    mean, std = pixels.mean(dim=1), pixels.std(dim=1, correction=0)
    return tuple(mean.tolist()), tuple(std.tolist())


@checked
class ImageSettings:
    """Settings of images; sizes count images.

    validation: training images that are held out. split_seed: chooses them. train_size, test_size: use the
    first so many of a fixed permutation of the rest and of the test images; None uses all. augment: `none`,
    `crop` or `crop_flip`.

    Raises ValueError for a value out of range.
    """

    validation: NumImages = 5000
    train_size: Size = None
    test_size: Size = None
    augment: Augmentation = "crop_flip"
    split_seed: SplitSeed = 0

    def _splits(
        self,
        whole: Images,
        test: Images,
        part: str,
        num_classes: int,
        label: str,
        statistics: Statistics,
    ) -> Splits:
        """``whole``: to train on and to validate; ``part``: what is trained on, in words. Raises UserError
        for sizes that they do not have."""
        train, held_out = hold_out(whole, self.validation, self.split_seed)
        mean, std = statistics or channel_statistics(train)
        return Splits(
            train=take(train, self.train_size, "train_size", part),
            validation=held_out,
            test=take(test, self.test_size, "test_size", "the test images"),
            num_classes=num_classes,
            mean=mean,
            std=std,
            label=label,
            augment=self.augment,
        )
