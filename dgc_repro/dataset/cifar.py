"""What CIFAR-10 and CIFAR-100 share: where their files lie, reading them, the sizes asked for.

Two ways to have one: the parquet files of its hub copy in a folder (`dataset.root`), or
torchvision's download with its checksums. It goes into ./data; a folder that is named has to hold
the data already, so that a mistyped one is an error and not a download.
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

from dgc_repro.checked import checked
from dgc_repro.dataset.hub_parquet import find_files, read_images
from dgc_repro.dataset.images import (
    Augmentation,
    Images,
    NumImages,
    Size,
    Splits,
    SplitSeed,
    hold_out,
    take,
)
from dgc_repro.errors import UserError

SIDE_PIXELS = 32
DEFAULT_FOLDER = Path("data")
NETWORK_TIMEOUT_S = 30.0
BOTH_WAYS = (
    "put the hub's train-*.parquet and test-*.parquet into a folder and name it, or leave it null "
    "for torchvision's download into ./data"
)


@dataclass(frozen=True)
class Kind:
    """Which of the two. ``label_column``: of the hub's files; ``mean``, ``std``: of its training images, by
    channel, in [0, 1]; ``source``: torchvision's."""

    name: str
    num_classes: int
    label_column: str
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    source: type[torchvision.datasets.CIFAR10]

    @property
    def label(self) -> str:
        """As it stands in a record."""
        return self.name.lower().replace("-", "")


@checked
class Cifar:
    """Settings of CIFAR-10 and CIFAR-100; sizes count images.

    root: folder with the hub's parquet files (also under plain_text/ or cifar100/) or torchvision's; None is
    ./data/cifar10 or ./data/cifar100 with the former, else ./data with the latter, downloaded where
    absent. validation: held out of the training images by `split_seed`. train_size, test_size: use the first
    so many of a fixed permutation of the rest and of the test images; None uses all. augment: `none`, `crop`
    or `crop_flip`.

    Raises ValueError for a value out of range.
    """

    root: str | None = None
    validation: NumImages = 5000
    train_size: Size = None
    test_size: Size = None
    augment: Augmentation = "crop_flip"
    split_seed: SplitSeed = 0

    kind: ClassVar[Kind]
    num_classes: ClassVar[int]

    def load(self) -> Splits:
        """Read or download the images; about 5 s for the parquet files.

        Raises UserError if the folder or the sizes asked for do not fit.
        """
        kind, validation = self.kind, self.validation
        everything, test, label = _read(kind, self.root)
        if validation >= len(everything):
            raise UserError(
                f"dataset.validation: under {len(everything)}, the number of training images, "
                f"got {validation}; nothing would be left to train on"
            )
        train, held_out = hold_out(everything, validation, self.split_seed)
        if self.test_size is not None:
            test, _ = hold_out(test, 0, self.split_seed)  # the order of a fixed permutation
        return Splits(
            train=take(
                train,
                self.train_size,
                "train_size",
                f"the {len(everything)} training images but the {validation} of validation",
            ),
            validation=held_out,
            test=take(test, self.test_size, "test_size", "the test images"),
            num_classes=kind.num_classes,
            mean=kind.mean,
            std=kind.std,
            label=label,
            augment=self.augment,
        )


def _read(kind: Kind, given: str | None) -> tuple[Images, Images, str]:
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
        train, was_jpeg = read_images(train_files, SIDE_PIXELS, column, classes)
        test, _ = read_images(test_files, SIDE_PIXELS, column, classes)
        return train, test, f"{kind.label} (JPEG mirror)" if was_jpeg else kind.label
    if given is not None and not _is_torchvisions(kind, root):
        raise UserError(f"dataset.root: {root} holds no {kind.name}; {BOTH_WAYS}")
    train, test = _from_torchvision(kind, root)
    return train, test, kind.label


def _default_folder(kind: Kind) -> Path:
    """./data/<name> where parquet files lie there, else ./data, where torchvision downloads to."""
    own = DEFAULT_FOLDER / kind.label
    return own if find_files(own, "train") else DEFAULT_FOLDER


def _is_torchvisions(kind: Kind, root: Path) -> bool:
    names = (kind.source.base_folder, kind.source.filename)
    return any((root / name).exists() for name in names)


def _from_torchvision(kind: Kind, root: Path) -> tuple[Images, Images]:
    """Training and test images from torchvision's files, whose checksums it verifies."""
    with contextlib.suppress(RuntimeError):  # what torchvision raises if they are absent or broken
        return _torchvision_part(kind, root, True, False), _torchvision_part(
            kind, root, False, False
        )
    try:
        with _one_process_at_a_time(kind, root), _network_timeout(NETWORK_TIMEOUT_S):
            return _torchvision_part(kind, root, True, True), _torchvision_part(
                kind, root, False, True
            )
    # No network, no permission; a wrong checksum; an archive that does not unpack.
    except (OSError, RuntimeError, EOFError, HTTPException, tarfile.TarError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(
            f"dataset.root: downloading {kind.name} into {root} by torchvision failed ({reason}); "
            "try again where there is a network, or put the hub's train-*.parquet and "
            "test-*.parquet into a folder and name it"
        ) from error


def _torchvision_part(kind: Kind, root: Path, train: bool, download: bool) -> Images:
    data = kind.source(str(root), train=train, download=download)
    return Images(
        torch.from_numpy(data.data).permute(0, 3, 1, 2).contiguous(),
        torch.tensor(data.targets, dtype=torch.int64),
    )


@contextlib.contextmanager
def _one_process_at_a_time(kind: Kind, root: Path) -> Iterator[None]:
    """The ranks of a machine share the folder: the first one downloads, the others find it done.

    A failed download leaves no folder behind, so a rank that waits for the lock makes it again."""
    made = not root.exists()
    lock = FileLock(root / f".{kind.label}.lock")
    while True:
        root.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire()
            break
        except FileNotFoundError:
            made = True
    try:
        yield
    except BaseException:
        Path(lock.lock_file).unlink(missing_ok=True)
        if made:
            with contextlib.suppress(OSError):  # not empty: another rank is at it
                root.rmdir()
        raise
    finally:
        lock.release()


@contextlib.contextmanager
def _network_timeout(seconds: float) -> Iterator[None]:
    """torchvision sets none, and a firewall that drops packets would hold the run for ever."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)
