"""CIFAR-10: 50,000 training and 10,000 test images of 32x32 in ten classes.

Two ways to have it: the parquet files of its hub copy in a folder (`dataset.root`), or
torchvision's download with its checksums. It goes into ./data; a folder that is named has to hold
the data already, so that a mistyped one is an error and not a download.

Source: Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009. The statistics
are those of its 50,000 training images.
"""

from __future__ import annotations

import contextlib
import socket
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import ClassVar

import torch
import torchvision
from filelock import FileLock

from dgc_repro.dataset.hub_parquet import find_files, read_images
from dgc_repro.dataset.images import (
    Images,
    Splits,
    check_fields,
    check_split_seed,
    hold_out,
    take,
)
from dgc_repro.errors import UserError

MEAN = (0.4914, 0.4822, 0.4465)
STD = (0.2470, 0.2435, 0.2616)
SIDE_PIXELS = 32
NETWORK_TIMEOUT_S = 30.0
BOTH_WAYS = (
    "put the hub's train-*.parquet and test-*.parquet into a folder and name it, or leave it null "
    "for torchvision's download into ./data"
)


@dataclass(frozen=True)
class Cifar10:
    """Settings of CIFAR-10; sizes count images.

    root: folder with the hub's parquet files (also under plain_text/) or torchvision's; None is
    ./data, and downloads what is not there. validation: held out of the training images by
    `split_seed`. train_size, test_size: use the first so many of a fixed permutation of the rest
    and of the test images; None uses all. augment: `none`, `crop` or `crop_flip`.

    Raises ValueError for a value out of range.
    """

    root: str | None = None
    validation: int = 5000
    train_size: int | None = None
    test_size: int | None = None
    augment: str = "crop_flip"
    split_seed: int = 0

    num_classes: ClassVar[int] = 10

    def __post_init__(self) -> None:
        check_fields(
            [("validation", self.validation)],
            [("train_size", self.train_size), ("test_size", self.test_size)],
            self.augment,
        )
        check_split_seed(self.split_seed)

    def load(self) -> Splits:
        """Read or download the images; about 5 s for the parquet files.

        Raises UserError if the folder or the sizes asked for do not fit.
        """
        everything, test, label = self._read()
        if self.validation >= len(everything):
            raise UserError(
                f"dataset.validation: under {len(everything)}, the number of training images, "
                f"got {self.validation}; nothing would be left to train on"
            )
        train, validation = hold_out(everything, self.validation, self.split_seed)
        if self.test_size is not None:
            test, _ = hold_out(test, 0, self.split_seed)  # the order of a fixed permutation
        return Splits(
            train=take(
                train,
                self.train_size,
                "train_size",
                f"the {len(everything)} training images but the {self.validation} of validation",
            ),
            validation=validation,
            test=take(test, self.test_size, "test_size", "the test images"),
            num_classes=self.num_classes,
            mean=MEAN,
            std=STD,
            label=label,
            augment=self.augment,
        )

    def _read(self) -> tuple[Images, Images, str]:
        root = Path("data" if self.root is None else self.root).expanduser()
        if self.root is not None and not root.is_dir():
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
            train, was_jpeg = read_images(train_files, SIDE_PIXELS, "label", self.num_classes)
            test, _ = read_images(test_files, SIDE_PIXELS, "label", self.num_classes)
            return train, test, "cifar10 (JPEG mirror)" if was_jpeg else "cifar10"
        if self.root is not None and not _is_torchvisions(root):
            raise UserError(f"dataset.root: {root} holds no CIFAR-10; {BOTH_WAYS}")
        train, test = _from_torchvision(root)
        return train, test, "cifar10"


def _is_torchvisions(root: Path) -> bool:
    cifar = torchvision.datasets.CIFAR10
    return any((root / name).exists() for name in (cifar.base_folder, cifar.filename))


def _from_torchvision(root: Path) -> tuple[Images, Images]:
    """Training and test images from torchvision's files, whose checksums it verifies."""
    with contextlib.suppress(RuntimeError):  # what torchvision raises if they are absent or broken
        return _torchvision_part(root, True, False), _torchvision_part(root, False, False)
    try:
        with _one_process_at_a_time(root), _network_timeout(NETWORK_TIMEOUT_S):
            return _torchvision_part(root, True, True), _torchvision_part(root, False, True)
    # No network, no permission; a wrong checksum; an archive that does not unpack.
    except (OSError, RuntimeError, EOFError, HTTPException, tarfile.TarError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(
            f"dataset.root: downloading CIFAR-10 into {root} by torchvision failed ({reason}); "
            "try again where there is a network, or put the hub's train-*.parquet and "
            "test-*.parquet into a folder and name it"
        ) from error


def _torchvision_part(root: Path, train: bool, download: bool) -> Images:
    data = torchvision.datasets.CIFAR10(str(root), train=train, download=download)
    return Images(
        torch.from_numpy(data.data).permute(0, 3, 1, 2).contiguous(),
        torch.tensor(data.targets, dtype=torch.int64),
    )


@contextlib.contextmanager
def _one_process_at_a_time(root: Path) -> Iterator[None]:
    """The ranks of a machine share the folder: the first one downloads, the others find it done."""
    made = not root.exists()
    root.mkdir(parents=True, exist_ok=True)
    lock = root / ".cifar10.lock"
    try:
        with FileLock(lock):
            yield
    except BaseException:
        lock.unlink(missing_ok=True)
        if made:
            with contextlib.suppress(OSError):  # not empty: another rank is at it
                root.rmdir()
        raise


@contextlib.contextmanager
def _network_timeout(seconds: float) -> Iterator[None]:
    """torchvision sets none, and a firewall that drops packets would hold the run for ever."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)
