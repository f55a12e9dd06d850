"""What a valid config does, and its author may not have meant, is said when the run begins."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tiny_run import built

DGC = ("compressor=dgc", "compressor.sample=1.0")


@pytest.mark.parametrize(
    ("overrides", "begins", "says"),
    [
        (
            (*DGC, "train.epochs=3"),
            "policy.epochs_each: the warm-up reaches density=0.001 in epoch 5",
            "train.epochs=3 ends it at 0.015625",
        ),
        (
            (*DGC, "train.epochs=8", "policy.epochs_each=2"),
            "policy.epochs_each: the warm-up reaches density=0.001 in epoch 9",
            "ends it at 0.004",
        ),
        (
            (*DGC, "train.epochs=5", "wrap=[error_feedback]"),
            "optimizer.momentum: optimizer.momentum=0 optimizer.weight_decay=0.005, as compressor=dgc",
            "wrap=['error_feedback'] leaves out: there is no momentum",
        ),
    ],
)
def test_it_is_said(overrides: Sequence[str], begins: str, says: str) -> None:
    (note,) = built(*overrides).notes
    assert note.startswith(begins)
    assert says in note


@pytest.mark.parametrize(
    "overrides",
    [
        (*DGC, "train.epochs=5"),
        (*DGC, "train.epochs=5", "wrap=[error_feedback]", "optimizer.momentum=0.9"),
        ("compressor=topk", "wrap=[error_feedback]", "optimizer.momentum=0"),
    ],
)
def test_what_is_meant_needs_no_words(overrides: Sequence[str]) -> None:
    assert built(*overrides).notes == []
