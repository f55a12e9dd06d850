"""Final test accuracy against batch size for SGD, LARS, LAMB and SAM.

All optimizers train for the same number of epochs, so that a batch twice as large has half the steps. For
each optimizer and batch size the learning rate is the one with the highest final validation accuracy, as
tuning.py chooses it. The test split chooses nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import pandas as pd

from dgc_repro.paper.artifact import BARS, Artifact, drawing
from dgc_repro.paper.claims import Check, Claim
from dgc_repro.paper.frame import Column, longer, seeds
from dgc_repro.paper.lecture import by_number, line_for_each
from dgc_repro.paper.lecture.tuning import EDGE, NAMES, RATES, tried_of, tuned_of
from dgc_repro.paper.page import Template
from dgc_repro.paper.records import Run

WORDS = Template.read(__file__)
OPTIMIZERS = {"sgd": "SGD", "lars": "LARS", "lamb": "LAMB", "sam": "SAM"}
ACCURACY, TRAINED, GAP = "test accuracy", "training accuracy", "training minus test accuracy"
FIRST, LAST = "the smallest batch", "the largest batch"
"""The settings under which the frame has both ends again, for the claims."""
FITTED = 30.0
"""Ours: an optimizer trains where it fits more percent of the training images; a guess is right in 10."""
AS_GOOD = 2.0
"""Ours: the points of accuracy within which SGD counts as good as another optimizer."""
APART = 4.0
"""Neighbours in the grids of learning rates are at most so many times apart."""
UNITS = {"test": (ACCURACY, "%"), "gap": (GAP, "%"), "train": (TRAINED, "%")}
UNITS |= {name: NAMES[name] for name in ("rate", "tried", "at_edge")}


def _premises(end: str, *optimizers: str, trained: Sequence[str] = ()) -> list[Check]:
    """No best learning rate is at an edge of its grid, else a better one may lie outside; and networks are
    trained, else accuracy tells how fast an optimizer is."""
    at_edge = [Check(EDGE, o, above=-math.inf, below=0.5, setting=end) for o in optimizers]
    return at_edge + [Check(TRAINED, o, above=FITTED, setting=end) for o in trained]


def _claims() -> Iterator[Claim]:
    as_good = [Check(ACCURACY, "sgd", o, above=-AS_GOOD, setting=FIRST) for o in ("lars", "lamb")]
    premises = _premises(FIRST, "sgd", "lars", "lamb")
    yield WORDS.claim("small.sgd", *as_good, premises=premises)
    for name, o, end, trained in (
        *(("large.lars", "lars", LAST, ["lars"]), ("large.lamb", "lamb", LAST, ["lamb"])),
        *(("sam.small", "sam", FIRST, ["sgd", "sam"]), ("sam.large", "sam", LAST, ["sgd", "sam"])),
    ):
        check = Check(ACCURACY, o, "sgd", setting=end)
        premises = _premises(end, "sgd", o, trained=trained)
        yield WORDS.claim(name, check, premises=premises)


def numbers(runs: Sequence[Run]) -> pd.DataFrame:
    """The frame: rows are optimizers and settings batch sizes; for the claims, both ends too."""
    tried = tried_of(
        runs,
        test=lambda run: run.last("test/accuracy_percent"),
        train=lambda run: run.last("train/accuracy_percent"),
        error=lambda run: 100 - run.last("validation/accuracy_percent"),
    )
    tuned = tuned_of(tried, "error", APART)
    tuned["gap"] = tuned["train"] - tuned["test"]
    ends = [
        tuned[tuned["batch"] == batch].assign(setting=end)
        for end, batch in ((FIRST, tuned["batch"].min()), (LAST, tuned["batch"].max()))
    ]
    return longer(pd.concat([tuned, *ends]), UNITS)


page = Artifact(
    __file__,
    rows=OPTIMIZERS,
    numbers=numbers,
    tables={
        "Accuracy": line_for_each(
            "optimizer, batch size",
            (seeds(ACCURACY), Column(f"{ACCURACY}, %", ACCURACY, 1), Column(GAP, GAP, 1), *RATES),
        )
    },
    claims=tuple(_claims()),
    figures={
        "large_batch": drawing(
            "Test accuracy against batch size",
            lambda shown: [by_number(shown, ACCURACY, OPTIMIZERS, x="batch size", log="x")],
            f"The learning rate is tuned for each point. {BARS}",
        )
    },
    said=lambda shown: {"epochs": shown.runs[0].setting("train.epochs")},
    alike=("scale.name", "dataset", "model", "schedule", "train.epochs"),
)
