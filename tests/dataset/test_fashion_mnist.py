"""Fashion-MNIST from IDX files that the tests write, from a download that they serve, and for real."""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from dgc_repro.dataset import fashion_mnist
from dgc_repro.dataset.fashion_mnist import MD5, FashionMnist
from dgc_repro.dataset.images import channel_statistics, permutation
from dgc_repro.errors import UserError

SIZES = {"train": 30, "t10k": 12}
REAL = Path(os.environ.get("DGC_REPRO_DATA", "")) / "fashion_mnist"


def pixels_of(count: int, seed: int, side: int = 28) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, side, side), dtype=np.uint8)


def idx(values: np.ndarray, kind: int = 8) -> bytes:
    """An IDX file: magic number, dimensions, values."""
    head = struct.pack(f">BBBB{values.ndim}I", 0, 0, kind, values.ndim, *values.shape)
    return head + values.tobytes()


def files(side: int = 28) -> dict[str, bytes]:
    """By name, the four files before compression."""
    made = {}
    for seed, (part, count) in enumerate(SIZES.items()):
        made[f"{part}-images-idx3-ubyte"] = idx(pixels_of(count, seed, side))
        made[f"{part}-labels-idx1-ubyte"] = idx(np.arange(count, dtype=np.uint8) % 10)
    return made


def write(root: Path, *, compressed: bool = True, **other: bytes) -> Path:
    """The four files in a folder; ``other``: by the beginning of a name, other content."""
    root.mkdir(exist_ok=True)
    for name, right in files().items():
        content = next((new for key, new in other.items() if name.startswith(key)), right)
        if compressed:
            (root / f"{name}.gz").write_bytes(gzip.compress(content, mtime=0))
        else:
            (root / name).write_bytes(content)
    return root


def complaint(root: Path, **settings: int) -> str:
    with pytest.raises(UserError) as caught:
        FashionMnist(root=str(root), **{"validation": 5, **settings}).load()  # type: ignore[arg-type]
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("compressed", [True, False])
def test_images_get_a_black_border_and_three_equal_channels(
    tmp_path: Path, compressed: bool
) -> None:
    splits = FashionMnist(root=str(write(tmp_path, compressed=compressed)), validation=5).load()
    assert (len(splits.train), len(splits.validation), len(splits.test)) == (25, 5, 12)
    framed = np.pad(pixels_of(12, 1), ((0, 0), (2, 2), (2, 2)))
    expected = torch.from_numpy(np.repeat(framed[:, None], 3, axis=1))
    order = permutation(12, 0)
    assert torch.equal(splits.test.images, expected[order])
    assert torch.equal(splits.test.labels, (torch.arange(12) % 10)[order])
    assert (splits.label, splits.num_classes) == ("fashion-mnist", 10)
    assert (splits.mean, splits.std) == channel_statistics(splits.train)


def test_sizes_that_the_data_does_not_have_name_their_key(tmp_path: Path) -> None:
    root = write(tmp_path)
    assert complaint(root, validation=30).startswith("dataset.validation: under 30")
    assert complaint(root, train_size=26).startswith("dataset.train_size: at most 25")
    assert complaint(root, test_size=13).startswith("dataset.test_size: at most 12")


def flipped(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :]


PACKED = gzip.compress(files()["train-images-idx3-ubyte"], mtime=0)


NO_IDX = "train-images-idx3-ubyte is no whole IDX file of 3 dimensions"
NOT_READ = r"train-images-idx3-ubyte\.gz .*(cannot be read|no whole IDX file)"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", NO_IDX),
        (idx(pixels_of(30, 0))[:-1], NO_IDX),
        (idx(pixels_of(30, 0)) + b"0", NO_IDX),
        (idx(pixels_of(30, 0), kind=9), NO_IDX),
        (idx(np.arange(30, dtype=np.uint8)), NO_IDX),
        (struct.pack(">BBBB3I", 0, 0, 8, 3, 1 << 31, 1 << 31, 4), NO_IDX),
        (PACKED[:500], NOT_READ),
        (b"<html>not found</html>", NOT_READ),
        (flipped(PACKED, len(PACKED) - 6), NOT_READ),
        (None, r"has no train-images-idx3-ubyte; put "),
    ],
    ids=[
        *("empty", "cut", "longer", "another type", "one dimension", "sizes beyond 64 bits"),
        *("gzip cut", "no gzip", "gzip's checksum", "missing"),
    ],
)
def test_a_file_that_is_not_whole_is_named_in_one_line(
    content: bytes | None, says: str, tmp_path: Path
) -> None:
    is_packed = says == NOT_READ
    write(tmp_path, compressed=is_packed)
    path = tmp_path / f"train-images-idx3-ubyte{'.gz' if is_packed else ''}"
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    assert re.match(f"dataset.root: {tmp_path}[/ ]{says}", complaint(tmp_path))


@pytest.mark.parametrize(
    "other",
    [
        {"t10k-images": idx(pixels_of(12, 0, side=32))},
        {"t10k-labels": idx(np.arange(11, dtype=np.uint8) % 10)},
        {"t10k-labels": idx(np.arange(12, dtype=np.uint8))},
        {"t10k-images": idx(pixels_of(0, 0)), "t10k-labels": idx(np.zeros(0, np.uint8))},
    ],
    ids=["another size", "a label too few", "a label above 9", "nothing"],
)
def test_another_data_set_is_said_to_be_one(tmp_path: Path, other: dict[str, bytes]) -> None:
    message = complaint(write(tmp_path, **other))
    assert message.startswith(f"dataset.root: {tmp_path} has t10k images ")
    assert message.endswith("is this another data set?")


# -- the download ----------------------------------------------------------------------------------


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A mirror on this machine, with the sums of its own files; the work is done elsewhere."""
    folder, work = write(tmp_path / "mirror"), tmp_path / "work"
    work.mkdir()
    sums = {
        name: hashlib.md5((folder / f"{name}.gz").read_bytes(), usedforsecurity=False).hexdigest()
        for name in MD5
    }
    monkeypatch.setattr(fashion_mnist, "MIRROR", folder.as_uri())
    monkeypatch.setattr(fashion_mnist, "MD5", sums)
    monkeypatch.chdir(work)
    return folder


def test_without_a_folder_what_is_absent_is_downloaded_once(mirror: Path) -> None:
    first = FashionMnist(validation=5).load()
    for name in MD5:
        assert (Path("data/fashion_mnist") / f"{name}.gz").is_file()
        (mirror / f"{name}.gz").unlink()
    assert torch.equal(FashionMnist(validation=5).load().train.images, first.train.images)


@pytest.mark.skipif(not REAL.is_dir(), reason="DGC_REPRO_DATA has no folder fashion_mnist")
def test_the_real_files_have_their_sizes_and_statistics() -> None:
    splits = FashionMnist(root=str(REAL)).load()
    assert (len(splits.train), len(splits.validation), len(splits.test)) == (55_000, 5_000, 10_000)
    assert splits.test.labels.bincount().tolist() == [1000] * 10
    grey = splits.train.images[:, 0, 2:-2, 2:-2].double() / 255
    # The commonly listed values, 0.2860 and 0.3530, are those of all 60,000 images.
    assert grey.mean().item() == pytest.approx(0.2860, abs=2e-3)
    assert grey.std().item() == pytest.approx(0.3530, abs=2e-3)
