"""The digits that scikit-learn carries in its wheel: a data set that is always there.

1,797 grey 8x8 images of handwritten digits, resized bilinearly to 32x32 and repeated over three
channels, so that networks made for CIFAR take them. For quick runs and for tests; no paper's claim
is judged on it.

Source: Alpaydin, Kaynak, "Optical Recognition of Handwritten Digits" (test part), UCI, 1998;
`sklearn.datasets.load_digits`.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from dgc_repro.checked import checked
from dgc_repro.dataset.images import (
    Augmentation,
    Images,
    ImageSettings,
    NumImages,
    Splits,
    hold_out,
)
from dgc_repro.errors import UserError

SIDE_PIXELS = 32
GREY_LEVELS = 16  # scikit-learn's pixels are 0..16


@checked
class Digits(ImageSettings):
    """test: held out, by `split_seed`. Flips are off by default because a mirrored digit is no digit. The
    other settings: see `ImageSettings`.
    """

    validation: NumImages = 200
    test: NumImages = 360
    augment: Augmentation = "crop"

    def load(self) -> Splits:
        """Make the splits; mean and std are those of the training part.

        Raises UserError if the parts asked for are larger than the data set.
        """
        everything = _all_digits()
        if self.validation + self.test >= len(everything):
            raise UserError(
                f"dataset.validation: with dataset.test under {len(everything)} in all, "
                f"got {self.validation} + {self.test}; nothing would be left to train on"
            )
        rest, test = hold_out(everything, self.test, self.split_seed)
        return self._splits(rest, test, "the part to train on", 10, "digits", None)


def _all_digits() -> Images:
    spec = importlib.util.find_spec("sklearn")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    folder = Path(spec.submodule_search_locations[0])  # importing sklearn takes seconds
    table = np.loadtxt(
        folder / "datasets" / "data" / "digits.csv.gz", delimiter=",", dtype=np.float32
    )
    small, labels = torch.from_numpy(table[:, :-1]), torch.from_numpy(table[:, -1])
    grey = small.reshape(-1, 1, 8, 8).div(GREY_LEVELS)
    large = F.interpolate(grey, size=(SIDE_PIXELS, SIDE_PIXELS), mode="bilinear")
    pixels = large.mul_(255).round_().to(torch.uint8).repeat(1, 3, 1, 1)  # u8[n,3,32,32]
    return Images(pixels, labels.to(torch.int64))
