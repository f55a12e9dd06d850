"""A target for the quality on the test split, or for the cross-entropy of the training split, checked at the
end of each epoch, or after every so many steps.

A run ends there only with ``stop``. Policies see the validation split. All ranks have the same sums of
evaluation and end together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any

from dgc_repro.checked import Count, checked, one_of, within

ACCURACY, TOP5, PERPLEXITY = "accuracy", "top5", "perplexity"
TRAIN_CROSS_ENTROPY = "train_cross_entropy"
COLUMNS = {
    ACCURACY: "test/accuracy_percent",
    TOP5: "test/top5_percent",
    PERPLEXITY: "test/perplexity",
    TRAIN_CROSS_ENTROPY: "train/cross_entropy",
}
"""Where a record has each metric. The training cross-entropy is that of the whole split, not augmented and
without dropout; records have it where it is the metric."""
FALLING = (PERPLEXITY, TRAIN_CROSS_ENTROPY)
"""Metrics that are better when they are smaller."""


@checked
class Stopping:
    """A target of the test split, and what follows when it is reached.

    ``target``: percent, a perplexity, or nats to reach; null for none. ``metric``: what the target is of;
    reports compare runs by it too. ``stop``: end the run where the target is reached. ``every_steps``:
    check the target after so many steps too; null: at the end of epochs.
    ``plateau``: least improvement that reports count, as a share."""

    target: float | None = None
    metric: Annotated[str, one_of(COLUMNS)] = ACCURACY
    stop: bool = False
    every_steps: Count | None = None
    plateau: Annotated[float, within(0, below=1, name="a share")] = 0.01

    def __post_init__(self) -> None:
        high = math.inf if self.metric in FALLING else 100
        low = 1 if self.metric == PERPLEXITY else 0
        if self.target is not None and not low <= self.target <= high:
            like = f"{low} up" if self.metric in FALLING else "0 to 100 percent"
            raise ValueError(
                f"target: a number from {like} for metric {self.metric}, or null, got {self.target!r}"
            )
        if self.stop and self.target is None:
            raise ValueError("stop: needs stopping.target, got null: there is nothing to stop at")
        if self.every_steps is not None and self.target is None:
            raise ValueError(
                "every_steps: needs stopping.target, got null: there is nothing to check"
            )

    def is_reached(self, record: Mapping[str, Any]) -> bool:
        """Whether an epoch's record has the target. NaN never reaches the target."""
        if self.target is None:
            return False
        value = record[COLUMNS[self.metric]]
        return bool(value <= self.target if self.metric in FALLING else value >= self.target)

    def summary(self, reached: Mapping[str, Any]) -> dict[str, Any]:
        """For summary.json; nothing without a target. ``reached``: where, empty if nowhere."""
        if self.target is None:
            return {}
        told = {"metric": self.metric, "target": self.target, "reached": bool(reached), **reached}
        return {"stopping": told}


def where_reached(record: Mapping[str, Any], seconds: Mapping[str, str]) -> dict[str, Any]:
    """Epoch, step and times (by name, the record's column; those that it has) of an epoch's record."""
    found = {name: record[column] for name, column in seconds.items() if column in record}
    return {"epoch": record["epoch"], "step": record["step"], **found}
