"""CIFAR-100: 50,000 training and 10,000 test images of 32x32 in a hundred classes.

Source: Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009. The statistics
are those of its 50,000 training images, as commonly given.
"""

from __future__ import annotations

from dgc_repro.dataset.cifar import Cifar, Kind

MEAN = (0.5071, 0.4865, 0.4409)
STD = (0.2673, 0.2564, 0.2762)
KIND = Kind("CIFAR-100", 100, "fine_label", MEAN, STD)


class Cifar100(Cifar):
    """Settings: see `Cifar`."""

    kind = KIND
