"""CIFAR-10: 50,000 training and 10,000 test images of 32x32 in ten classes.

Source: Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009. The statistics
are those of its 50,000 training images.
"""

from __future__ import annotations

from dgc_repro.dataset.cifar import Cifar, Kind

MEAN = (0.4914, 0.4822, 0.4465)
STD = (0.2470, 0.2435, 0.2616)
KIND = Kind("CIFAR-10", 10, "label", MEAN, STD)


class Cifar10(Cifar):
    """Settings: see `Cifar`."""

    kind = KIND
