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
        if self.metric not in tuple(COLUMNS):
            raise ValueError(f"metric: one of {', '.join(COLUMNS)}, got {self.metric!r}")
        if self.target is not None:
            low, high = (1, math.inf) if self.metric == PERPLEXITY else (0, 100)
            like = "1 up" if self.metric == PERPLEXITY else "0 to 100 percent"
            if not _is_number(self.target) or not low <= self.target <= high:
                raise ValueError(
                    f"target: a number from {like} for metric {self.metric}, or null, got {self.target!r}"
                )
        if not isinstance(self.stop, bool):
            raise ValueError(f"stop: true or false, got {self.stop!r}")
        if self.stop and self.target is None:
            raise ValueError("stop: needs goal.target, got null: there is nothing to stop at")
        if not _is_number(self.plateau) or not 0 <= self.plateau < 1:
            raise ValueError(f"plateau: a share from 0 to below 1, got {self.plateau!r}")

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


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)
