"""What a run is to reach: a quality of the test part at the end of an epoch, where training may end.

Looked at is what tables print, the test part. It drives nothing but the end of the run, and only where
``stop`` says so: policies see the validation part. Sums of evaluation are the same on all ranks, so that
all of them end together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dgc_repro.policy.checks import check_flag, check_number, check_one_of

ACCURACY, TOP5, PERPLEXITY = "accuracy", "top5", "perplexity"
COLUMNS = {
    ACCURACY: "test/accuracy_percent",
    TOP5: "test/top5_percent",
    PERPLEXITY: "test/perplexity",
}
"""Where a record has each metric."""


@dataclass(frozen=True)
class Goal:
    """``target``: percent, or a perplexity; null: none. ``metric``: accuracy, top5 or perplexity; reports
    compare runs by it too. ``stop``: end the run where the target is reached. ``plateau``: for
    reports: an epoch that improves on the best one by no more than this share of it is no improvement."""

    target: float | None = None
    metric: str = ACCURACY
    stop: bool = False
    plateau: float = 0.01

    def __post_init__(self) -> None:
        check_one_of("metric", self.metric, tuple(COLUMNS))
        if self.target is not None:
            low, high = (1, math.inf) if self.metric == PERPLEXITY else (0, 100)
            like = "1 up" if self.metric == PERPLEXITY else "0 to 100 percent"
            like = f"a number from {like} for metric {self.metric}, or null"
            check_number("target", self.target, like, lambda target: low <= target <= high)
        check_flag("stop", self.stop)
        if self.stop and self.target is None:
            raise ValueError("stop: needs goal.target, got null: there is nothing to stop at")
        check_number(
            "plateau", self.plateau, "a share from 0 to below 1", lambda share: 0 <= share < 1
        )

    def is_reached(self, record: Mapping[str, Any]) -> bool:
        """Whether an epoch's record has the target. What is not a number reaches nothing."""
        if self.target is None:
            return False
        value = record[COLUMNS[self.metric]]
        return bool(value <= self.target if self.metric == PERPLEXITY else value >= self.target)

    def summary(self, reached: Mapping[str, Any]) -> dict[str, Any]:
        """For summary.json; nothing without a target. ``reached``: where it was, empty if nowhere."""
        if self.target is None:
            return {}
        told = {"metric": self.metric, "target": self.target, "reached": bool(reached), **reached}
        return {"goal": told}


def where_reached(record: Mapping[str, Any], seconds: Mapping[str, str]) -> dict[str, Any]:
    """Epoch, step and times (by name, the record's column; those that it has) of an epoch's record."""
    found = {name: record[column] for name, column in seconds.items() if column in record}
    return {"epoch": record["epoch"], "step": record["step"], **found}


def refuse_misfit(goal: Goal, gives: str) -> None:
    """Raise ValueError where a metric is of another kind of data: ``gives`` images, or words."""
    wrong = {PERPLEXITY: "images", TOP5: "words"}
    if wrong.get(goal.metric) == gives:
        rest = ", ".join(name for name in COLUMNS if wrong.get(name) != gives)
        raise ValueError(f"metric: of {gives} there is {rest}, got {goal.metric}")
