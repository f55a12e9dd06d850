"""Digits: the offline default; what the splits promise holds on it."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits

from dgc_repro.dataset.batches import normalize
from dgc_repro.dataset.digits import Digits
from dgc_repro.dataset.images import Images


def rows(images: Images) -> list[bytes]:
    return [image.numpy().tobytes() for image in images.images]


def test_the_1797_digits_fall_into_three_disjoint_parts() -> None:
    splits = Digits().load()
    assert [len(p) for p in (splits.train, splits.validation, splits.test)] == [1237, 200, 360]
    parts = rows(splits.train) + rows(splits.validation) + rows(splits.test)
    # No two of scikit-learn's digits are equal, so equal sets mean every image exactly once.
    assert len({image.tobytes() for image in load_digits().images}) == 1797
    assert len(set(parts)) == 1797
    labels = torch.cat([splits.train.labels, splits.validation.labels, splits.test.labels])
    expected = torch.bincount(torch.from_numpy(load_digits().target))
    assert torch.equal(torch.bincount(labels), expected)
    assert (splits.label, splits.augment, splits.num_classes) == ("digits", "crop", 10)


def test_images_are_32x32x3_with_the_right_label_and_the_whole_range() -> None:
    images = Digits().load().train
    assert images.images.shape == (1237, 3, 32, 32)
    assert (int(images.images.min()), int(images.images.max())) == (0, 255)
    assert torch.equal(images.images[:, 0], images.images[:, 2])
    digits = load_digits()
    pairs = zip(digits.images, digits.target, strict=True)
    source = {image.astype("uint8").tobytes(): int(label) for image, label in pairs}
    # The mean of the 4x4 middle pixels of a cell is not the 8x8 pixel (bilinear), so go the other
    # way: the nearest original has the same label for all but a few images.
    originals = torch.tensor([list(key) for key in source], dtype=torch.float32)
    small = torch.nn.functional.avg_pool2d(images.images[:200, :1].float(), 4).flatten(1) * 16 / 255
    nearest = torch.cdist(small, originals).argmin(dim=1)
    labels = torch.tensor(list(source.values()))[nearest]
    assert int((labels == images.labels[:200]).sum()) >= 195


def test_normalization_uses_the_training_parts_own_statistics() -> None:
    splits = Digits().load()
    train = normalize(splits.train.images, splits.mean, splits.std).double()
    # Standardized up to float32 rounding of 1.3 M pixels of order 1.
    assert train.mean(dim=(0, 2, 3)).abs().max().item() < 1e-5
    assert (train.std(dim=(0, 2, 3), correction=0) - 1).abs().max().item() < 1e-5
