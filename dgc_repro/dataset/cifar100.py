"""CIFAR-100: 50,000 training and 10,000 test images of 32x32 in a hundred classes.

Source: Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009. The statistics
are those of its 50,000 training images, as commonly given.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torchvision

from dgc_repro.dataset.cifar import Kind, load
from dgc_repro.dataset.images import Splits, check_fields, check_split_seed

MEAN = (0.5071, 0.4865, 0.4409)
STD = (0.2673, 0.2564, 0.2762)
KIND = Kind("CIFAR-100", 100, "fine_label", MEAN, STD, torchvision.datasets.CIFAR100)


@dataclass(frozen=True)
class Cifar100:
    """Settings of CIFAR-100; sizes count images.

    root: folder with the hub's parquet files (also under cifar100/) or torchvision's; None is
    ./data/cifar100 with the former, else ./data with the latter, downloaded where absent. validation:
    held out of the training images by `split_seed`. train_size, test_size: use the first so many of a
    fixed permutation of the rest and of the test images; None uses all. augment: `none`, `crop` or
    `crop_flip`.

    Raises ValueError for a value out of range.
    """

    root: str | None = None
    validation: int = 5000
    train_size: int | None = None
    test_size: int | None = None
    augment: str = "crop_flip"
    split_seed: int = 0

    num_classes: ClassVar[int] = KIND.num_classes

    def __post_init__(self) -> None:
        check_fields(
            [("validation", self.validation)],
            [("train_size", self.train_size), ("test_size", self.test_size)],
            self.augment,
        )
        check_split_seed(self.split_seed)

    def load(self) -> Splits:
        """Read or download the images (see `cifar.load`)."""
        return load(
            KIND,
            self.root,
            self.validation,
            self.train_size,
            self.test_size,
            self.augment,
            self.split_seed,
        )
