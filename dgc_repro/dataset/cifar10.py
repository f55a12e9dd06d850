"""CIFAR-10: 50,000 training and 10,000 test images of 32x32 in ten classes.

Source: Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009. The statistics
are those of its 50,000 training images.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torchvision

from dgc_repro.dataset.cifar import Kind, load
from dgc_repro.dataset.images import Splits, check_fields, check_split_seed

MEAN = (0.4914, 0.4822, 0.4465)
STD = (0.2470, 0.2435, 0.2616)
KIND = Kind("CIFAR-10", 10, "label", MEAN, STD, torchvision.datasets.CIFAR10)


@dataclass(frozen=True)
class Cifar10:
    """Settings of CIFAR-10; sizes count images.

    root: folder with the hub's parquet files (also under plain_text/) or torchvision's; None is
    ./data/cifar10 with the former, else ./data with the latter, downloaded where absent. validation:
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
