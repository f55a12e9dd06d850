"""What CIFAR-10 and CIFAR-100 share: where their files lie, reading them, the sizes asked for.

Two ways to have one: the parquet files of its hub copy in a folder (`dataset.root`), or
torchvision's archive with its checksums. It goes into ./data; a folder that is named has to hold
the data already, so that a mistyped one is an error and not a download.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from dgc_repro.checked import checked
from dgc_repro.dataset.download import downloading, fetch
from dgc_repro.dataset.hub_parquet import find_files, read_images
from dgc_repro.dataset.images import Images, ImageSettings, Splits, hold_out, permutation
from dgc_repro.errors import UserError

SIDE_PIXELS = 32
DEFAULT_FOLDER = Path("data")
BOTH_WAYS = (
    "put the hub's train-*.parquet and test-*.parquet into a folder and name it, or leave it null "
    "for a download of torchvision's archive into ./data"
)


@dataclass(frozen=True)
class Kind:
    """Which of the two. ``label_column``: of the hub's files; ``mean``, ``std``: of its training images, by
    channel, in [0, 1]."""

    name: str
    num_classes: int
    label_column: str
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    @property
    def label(self) -> str:
        """As it stands in a record."""
        return self.name.lower().replace("-", "")

    def of_torchvision(self) -> Any:
        """torchvision's class. Imported here: the parquet files need no torchvision."""
        try:
            from torchvision import datasets
        except Exception as error:  # absent, or built for another torch
            reason = " ".join(str(error).split())
            raise UserError(
                f"dataset.root: torchvision cannot be imported ({reason}); install the one that was built "
                f"for torch {torch.__version__}, or name a folder with the hub's parquet files"
            ) from error
        return getattr(datasets, self.name.replace("-", ""))


@checked
class Cifar(ImageSettings):
    """root: folder with the hub's parquet files (also under plain_text/ or cifar100/) or torchvision's; None
    is ./data/cifar10 or ./data/cifar100 with the former, else ./data with the latter, downloaded where
    absent. The other settings: see `ImageSettings`.
    """

    root: str | None = None

    kind: ClassVar[Kind]

    def load(self) -> Splits:
        """Read or download the images; about 5 s for all of the parquet files.

        Raises UserError if the folder or the sizes asked for do not fit.
        """
        kind, validation = self.kind, self.validation
        everything, test, label = _read(
            kind, self.root, self._used_for_training, self._used_for_test
        )
        if validation >= len(everything):
            raise UserError(
                f"dataset.validation: under {len(everything)}, the number of training images, "
                f"got {validation}; nothing would be left to train on"
            )
        if self.test_size is not None:
            test, _ = hold_out(test, 0, self.split_seed)  # the order of a fixed permutation
        part = f"the {len(everything)} training images but the {validation} of validation"
        return self._splits(everything, test, part, kind.num_classes, label, (kind.mean, kind.std))

    def _used_for_training(self, count: int) -> Tensor:
        """The training images that `_splits` takes of ``count``, for validation too."""
        end = None if self.train_size is None else self.validation + self.train_size
        return permutation(count, self.split_seed)[:end]

    def _used_for_test(self, count: int) -> Tensor:
        return permutation(count, self.split_seed)[: self.test_size]


Used = Callable[[int], Tensor]


def _read(
    kind: Kind, given: str | None, train_used: Used, test_used: Used
) -> tuple[Images, Images, str]:
    """Training and test images, and the data's label. Of parquet files only what is used is decoded."""
    root = _default_folder(kind) if given is None else Path(given).expanduser()
    if given is not None and not root.is_dir():
        raise UserError(f"dataset.root: no folder {root}; {BOTH_WAYS}")
    train_files = find_files(root, "train")
    test_files = find_files(root, "test")
    if train_files or test_files:
        if not (train_files and test_files):
            absent = "test" if train_files else "train"
            raise UserError(
                f"dataset.root: {root} has no {absent}-*.parquet beside the others; copy the "
                "missing files there too"
            )
        column, classes = kind.label_column, kind.num_classes
        train, was_jpeg = read_images(train_files, SIDE_PIXELS, column, classes, train_used)
        test, _ = read_images(test_files, SIDE_PIXELS, column, classes, test_used)
        return train, test, f"{kind.label} (JPEG mirror)" if was_jpeg else kind.label
    source = kind.of_torchvision()
    names = (source.base_folder, source.filename)
    if given is not None and not any((root / name).exists() for name in names):
        raise UserError(f"dataset.root: {root} holds no {kind.name}; {BOTH_WAYS}")
    train, test = _from_torchvision(kind, root)
    return train, test, kind.label


def _default_folder(kind: Kind) -> Path:
    """./data/<name> where parquet files lie there, else ./data, where torchvision downloads to."""
    own = DEFAULT_FOLDER / kind.label
    return own if find_files(own, "train") else DEFAULT_FOLDER


def _from_torchvision(kind: Kind, root: Path) -> tuple[Images, Images]:
    """Training and test images from torchvision's files, whose checksums it verifies."""
    with contextlib.suppress(RuntimeError):  # what torchvision raises if they are absent or broken
        return _torchvision_parts(kind, root, download=False)
    files = "the hub's train-*.parquet and test-*.parquet"
    source = kind.of_torchvision()
    with downloading(kind.name, root, f"from {source.url}", files):
        if not (archive := root / source.filename).is_file():  # nor has another rank fetched it
            fetch(source.url, archive, "md5", source.tgz_md5)
        return _torchvision_parts(kind, root, download=True)  # unpacks the archive


def _torchvision_parts(kind: Kind, root: Path, download: bool) -> tuple[Images, Images]:
    source = kind.of_torchvision()

    def part(train: bool) -> Images:
        data = source(str(root), train=train, download=download)
        pixels = torch.from_numpy(data.data).permute(0, 3, 1, 2).contiguous()
        return Images(pixels, torch.tensor(data.targets, dtype=torch.int64))

    return part(True), part(False)
