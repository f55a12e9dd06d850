"""What a valid config does, and its author may not have meant, is said when the run begins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from tiny_run import built

from dgc_repro.launch.single import divergence

DGC = ("compressor=dgc", "compressor.sample=1.0")


@pytest.mark.parametrize(
    ("overrides", "begins", "says"),
    [
        (
            (*DGC, "train.epochs=3"),
            "policy.epochs_each: the warm-up reaches density=0.001 in epoch 5",
            "a run of 3 epochs ends at 0.015625 (train.epochs)",
        ),
        (
            (*DGC, "train.epochs=8", "policy.epochs_each=2"),
            "policy.epochs_each: the warm-up reaches density=0.001 in epoch 9",
            "ends at 0.004",
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


@pytest.mark.parametrize(
    ("summary", "says"),
    [
        ({"train/loss": float("nan")}, "train/loss is nan"),
        ({"test/loss": float("inf")}, "test/loss is inf"),
        ({"classes": 10, "test/accuracy_percent": 10.0}, "a guess among 10 classes has 10"),
        ({"classes": 10, "test/accuracy_percent": 11.0}, None),
        ({"classes": 50, "test/accuracy_percent": 1.0, "test/perplexity": 60.0}, "of 50 words"),
        ({"classes": 50, "test/accuracy_percent": 1.0, "test/perplexity": 40.0}, None),
        ({"train/loss": 2.0}, None),
    ],
)
def test_a_run_that_diverged_is_told_by_its_summary(
    summary: dict[str, Any], says: str | None
) -> None:
    found = divergence(summary)
    assert found is None if says is None else says in str(found)
