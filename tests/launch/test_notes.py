"""What a valid config does, and its author may not have meant, is said when the run begins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from tiny_run import built

from dgc_repro.launch.run import warning

DGC = ("compressor=dgc", "compressor.sample=1.0")


@pytest.mark.parametrize(
    ("overrides", "begins", "says"),
    [
        ((*DGC, "train.epochs=8", "policy.epochs_each=2"),
         "policy.epochs_each: the warm-up reaches density=0.001 in epoch 9",
         "a run of 8 epochs ends at 0.004 (train.epochs)"),
        ((*DGC, "train.epochs=5", "wrap=[error_feedback]"),
         "optimizer.momentum: optimizer.momentum=0 optimizer.weight_decay=0.005, as compressor=dgc",
         "wrap=['error_feedback'] leaves out: there is no momentum"),
        (("compressor=uniform", "compressor.bits=2", "policy=stepwise"),
         "compressor.bits: 2 has no effect, because policy=stepwise sets it to one of [16,",
         "change the values of the policy, or use policy=fixed policy.field=null"),
        (("optimizer.lr=101",), "optimizer.lr: 101 is above 100, where", "diverges"),
    ],
)  # fmt: skip
def test_it_is_said(overrides: Sequence[str], begins: str, says: str) -> None:
    (note,) = built(*overrides).notes
    assert note.startswith(begins)
    assert says in note


@pytest.mark.parametrize(
    "overrides",
    [
        (*DGC, "train.epochs=5"),
        (*DGC, "train.epochs=5", "wrap=[error_feedback]", "optimizer.momentum=0.9"),
        (*DGC, "policy=fixed", "compressor.density=0.01"),
        ("compressor=uniform", "policy=stepwise"),  # bits: 8 is its file's own
        ("compressor=topk", "wrap=[error_feedback]", "optimizer.momentum=0"),
    ],
)
def test_what_is_meant_needs_no_words(overrides: Sequence[str]) -> None:
    assert built(*overrides).notes == []


GUESS = {"classes": 10, "test/accuracy_percent": 10.0}
TEXT = {"classes": 50, "test/accuracy_percent": 1.0}


@pytest.mark.parametrize(
    ("summary", "losses", "says"),
    [
        ({"train/loss": float("nan")}, [2.5], "diverged (train/loss is nan)"),
        ({"test/loss": float("inf")}, [2.5], "diverged (test/loss is inf)"),
        (GUESS, [2.4], "10 of 10 classes is no better than guessing; raise train.epochs"),
        (GUESS, [2.4, 2.5, 3.0], "train/loss grew from 2.4 to 3"),
        (GUESS | {"test/accuracy_percent": 11.0}, [2.5, 2.4], "None"),
        (TEXT | {"test/perplexity": 60.0}, [2.5, 2.4], "of 50 tokens"),
        (TEXT | {"test/perplexity": 40.0}, [2.5, 2.4], "None"),
        ({"train/loss": 2.0}, [2.5, 2.4], "None"),
    ],
)
def test_a_run_that_failed_to_learn_ends_with_a_warning(
    summary: dict[str, Any], losses: list[float], says: str
) -> None:
    assert says in str(warning(summary, losses))
