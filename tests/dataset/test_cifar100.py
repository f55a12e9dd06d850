"""CIFAR-100: what differs from CIFAR-10, whose tests cover what the two share."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_cifar10 import encode, pixels_of

from dgc_repro.dataset.cifar10 import Cifar10
from dgc_repro.dataset.cifar100 import KIND, Cifar100
from dgc_repro.errors import UserError


def write_hub(root: Path, most: int = 99) -> None:
    """Files as the hub's: two columns of labels, fine and coarse."""
    for part, count in (("train", 30), ("test", 12)):
        images = [
            {"bytes": encode(p, "PNG"), "path": f"{i}.png"}
            for i, p in enumerate(pixels_of(count, 0))
        ]
        fine = [(i * 7) % most + 1 for i in range(count)]
        table = pa.table(
            {"img": images, "fine_label": fine, "coarse_label": [f % 20 for f in fine]}
        )
        root.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, root / f"{part}-00000-of-00001.parquet")


def test_fine_labels_of_a_hundred_classes(tmp_path: Path) -> None:
    write_hub(tmp_path)
    splits = Cifar100(root=str(tmp_path), validation=5).load()
    assert splits.num_classes == 100
    assert splits.label == "cifar100"
    assert (len(splits.train), len(splits.validation), len(splits.test)) == (25, 5, 12)
    assert int(splits.test.labels.max()) > 20  # not the coarse ones
    assert (splits.mean, splits.std) == (KIND.mean, KIND.std)


def test_one_is_not_taken_for_the_other(tmp_path: Path) -> None:
    write_hub(tmp_path)
    with pytest.raises(UserError, match=r"must have the columns img .* and label \(integer\)"):
        Cifar10(root=str(tmp_path), validation=5).load()
