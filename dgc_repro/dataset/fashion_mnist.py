"""Fashion-MNIST: 60,000 and 10,000 grey 28x28 images of clothes in ten classes.

Two ways to have it: a folder with the four original files, compressed or not (`dataset.root`; Debian's
package dataset-fashion-mnist installs such a folder), or a download from the authors' site into
./data/fashion_mnist, checked by the MD5 that torchvision lists. A folder that is named has to hold the files
already, so that a mistyped one is an error and not a download.

Images get a border of two black pixels and are repeated over three channels, so that networks made for CIFAR
take them.

Source: Xiao, Rasul, Vollgraf, "Fashion-MNIST: a novel image dataset for benchmarking machine learning
algorithms", 2017 (arXiv:1708.07747).
"""

from __future__ import annotations

import math
import zlib
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from dgc_repro.checked import checked
from dgc_repro.dataset.download import downloading, fetch
from dgc_repro.dataset.images import Images, ImageSettings, Splits, hold_out
from dgc_repro.errors import UserError
from dgc_repro.files import MIB, content, unpacked

MIRROR = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
MD5 = {  # of the compressed files, as torchvision.datasets.FashionMNIST lists them
    "train-images-idx3-ubyte": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "train-labels-idx1-ubyte": "25c81989df183df01b3e8a0aad5dffbe",
    "t10k-images-idx3-ubyte": "bef4ecab320f06d8554ea6380940ec79",
    "t10k-labels-idx1-ubyte": "bb300cfdad3c16e7a12a480ee83cd310",
}
DEFAULT_FOLDER = Path("data") / "fashion_mnist"
SIDE_PIXELS, BORDER_PIXELS, NUM_CLASSES = 28, 2, 10
MOST_BYTES = 64 * MIB  # of an unpacked file; 60,000 images are 45 MiB
BYTES = 8  # the code of "unsigned byte" in an IDX file
BOTH_WAYS = (
    "put train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz, t10k-images-idx3-ubyte.gz and "
    "t10k-labels-idx1-ubyte.gz into a folder and name it, or leave it null for a download into "
    "./data/fashion_mnist"
)


@checked
class FashionMnist(ImageSettings):
    """root: folder with the four files; None is ./data/fashion_mnist, and downloads what is not there. The
    other settings: see `ImageSettings`."""

    root: str | None = None

    def load(self) -> Splits:
        """Read or download the images. Mean and standard deviation are those of the training part. Raises
        UserError if the folder or the sizes do not fit."""
        root = self._folder()
        everything, test = _images(root, "train"), _images(root, "t10k")
        if self.validation >= len(everything):
            raise UserError(
                f"dataset.validation: under {len(everything)}, the number of training images, "
                f"got {self.validation}; nothing would be left to train on"
            )
        test, _ = hold_out(test, 0, self.split_seed)  # the order of a fixed permutation
        part = f"the {len(everything)} training images but the {self.validation} of validation"
        return self._splits(everything, test, part, NUM_CLASSES, "fashion-mnist", None)

    def _folder(self) -> Path:
        if self.root is None:
            _download(DEFAULT_FOLDER)
            return DEFAULT_FOLDER
        root = Path(self.root).expanduser()
        if not root.is_dir():
            raise UserError(f"dataset.root: no folder {root}; {BOTH_WAYS}")
        if absent := [name for name in MD5 if _path(root, name) is None]:
            raise UserError(f"dataset.root: {root} has no {', '.join(absent)}; {BOTH_WAYS}")
        return root


def _path(root: Path, name: str) -> Path | None:
    """A file of the folder, compressed or not; None where there is neither."""
    return next((p for p in (root / f"{name}.gz", root / name) if p.is_file()), None)


def _images(root: Path, part: str) -> Images:
    grey = _read(root, f"{part}-images-idx3-ubyte", 3)
    labels = _read(root, f"{part}-labels-idx1-ubyte", 1)
    if (
        grey.shape[1:] != (SIDE_PIXELS, SIDE_PIXELS)
        or len(grey) != len(labels)
        or not len(labels) > 0
        or int(labels.max()) >= NUM_CLASSES
    ):
        raise UserError(
            f"dataset.root: {root} has {part} images {tuple(grey.shape)} with {len(labels)} labels, expected "
            f"{SIDE_PIXELS}x{SIDE_PIXELS} images and a label below {NUM_CLASSES} for each; is this another "
            "data set?"
        )
    framed = F.pad(grey, (BORDER_PIXELS,) * 4).unsqueeze(1)  # u8[n,1,32,32]
    return Images(framed.repeat(1, 3, 1, 1), labels.to(torch.int64))


def _read(root: Path, name: str, dimensions: int) -> Tensor:
    """The array of an IDX file, u8. The format: two zeros, the type, the number of dimensions, each dimension
    as a big-endian 32-bit number, the values."""
    path = _path(root, name)
    assert path is not None
    try:
        place = path.resolve()  # a data set is the user's own, and may be linked
        is_packed = path.suffix == ".gz"
        data = unpacked(place, MOST_BYTES) if is_packed else content(place, MOST_BYTES)
    except (OSError, EOFError, zlib.error) as error:  # gzip.BadGzipFile is an OSError
        raise UserError(f"dataset.root: {path} cannot be read ({error})") from error
    begin = 4 + 4 * dimensions
    shape = np.frombuffer(data, ">u4", dimensions, 4).tolist() if len(data) >= begin else []
    if data[:4] != bytes((0, 0, BYTES, dimensions)) or len(data) != begin + math.prod(shape):
        raise UserError(
            f"dataset.root: {path} is no whole IDX file of {dimensions} dimensions; copy it there again"
        )
    return torch.from_numpy(np.frombuffer(data, np.uint8, offset=begin).reshape(shape).copy())


def _download(root: Path) -> None:
    """Fetch what is not there, one process of a machine at a time; a file appears whole or not."""
    if all(_path(root, name) is not None for name in MD5):
        return
    files = ", ".join(f"{name}.gz" for name in MD5)
    with downloading("Fashion-MNIST", root, f"from {MIRROR}", files):
        for name, md5 in MD5.items():
            if _path(root, name) is None:
                fetch(f"{MIRROR}/{name}.gz", root / f"{name}.gz", "md5", md5)
