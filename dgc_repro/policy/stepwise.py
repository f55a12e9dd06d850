"""Dynamic gradient compression: begin with the strongest setting, step down as learning proceeds.

Paper: "Distributed Model Training With Dynamic Gradient Compression", section III: a step function
of validation accuracy (and of the epoch-to-epoch difference of the training loss) lowers the
compression; if the model stays on one step for an extended number of epochs (stagnation),
compression is removed temporarily.
Differs: the paper prints neither thresholds nor patience nor the length of the dense interval; all
are settings here. It says "validation accuracy" without naming the data; ours is a held-out part of
the training set. Accuracy may skip steps; a flat loss takes one step an epoch. Steps are never
taken back. Epochs on which nothing was compressed do not count as stagnation.

Position p = 0..len(values)-1 counts the steps taken: rung = len(values) - p.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from dgc_repro.policy.checks import check_ladder
from dgc_repro.policy.interface import EpochReport, Plan, State, StepReport


@dataclass(frozen=True)
class Stepwise:
    """``field``, ``values``: the ladder, weakest first. ``accuracy_thresholds``: validation accuracy
    in percent that the p-th step down needs, ascending, one fewer than values.
    ``loss_differences``: the p-th step down is also taken when the training loss of two successive
    epochs differs by less (null: never). ``patience_epochs``: epochs on one step before compression
    is removed for ``dense_epochs`` epochs (0: never)."""

    field: str
    values: Sequence[Any]
    accuracy_thresholds: Sequence[float]
    loss_differences: Sequence[float] | None = None
    patience_epochs: int = 8
    dense_epochs: int = 1
    chooses = False
    watches = None

    def __post_init__(self) -> None:
        check_ladder(self.field, self.values, least=1)
        steps = len(self.values) - 1
        if len(self.accuracy_thresholds) != steps:
            raise ValueError(
                f"accuracy_thresholds: one for each step down, {steps} for the {len(self.values)} "
                f"values {list(self.values)!r}, got {len(self.accuracy_thresholds)}"
            )
        if list(self.accuracy_thresholds) != sorted(self.accuracy_thresholds) or not all(
            0 <= threshold <= 100 for threshold in self.accuracy_thresholds
        ):
            raise ValueError(
                f"accuracy_thresholds: ascending, in percent (0 to 100), got "
                f"{list(self.accuracy_thresholds)!r}"
            )
        if self.loss_differences is not None and (
            len(self.loss_differences) != steps or min(self.loss_differences, default=0) < 0
        ):
            raise ValueError(
                f"loss_differences: null or one from 0 for each step down, {steps} in all, got "
                f"{list(self.loss_differences)!r}"
            )
        whole = all(type(count) is int for count in (self.patience_epochs, self.dense_epochs))
        if not whole or self.patience_epochs < 1 or self.dense_epochs < 0:
            raise ValueError(
                f"patience_epochs: at least 1 (and dense_epochs at least 0), whole numbers, got "
                f"{self.patience_epochs!r} and {self.dense_epochs!r}"
            )

    def init(self) -> State:
        return {"position": 0, "epochs_on_step": 0, "dense_left": 0, "last_loss": None, "trace": []}

    def plan(self, state: State, step: int) -> Plan:
        return Plan(self._rung(state))

    def observe(self, state: State, report: EpochReport) -> State:
        was_dense = state["dense_left"] > 0
        position, reason = self._position(state, report)
        stays = position == state["position"]
        epochs_on_step = state["epochs_on_step"] + 1 if stays else 0
        dense_left = max(0, state["dense_left"] - 1) if stays else 0
        if was_dense and dense_left == 0 and stays:
            epochs_on_step, reason = 0, "dense interval over, compression returns"
        elif self.dense_epochs and epochs_on_step >= self.patience_epochs and not dense_left:
            dense_left, epochs_on_step = self.dense_epochs, 0
            reason = f"no step for {self.patience_epochs} epochs, compression removed"
        after = {
            "position": position,
            "epochs_on_step": epochs_on_step,
            "dense_left": dense_left,
            "last_loss": report.train_loss,
        }
        entry = {
            "epoch": report.epoch,
            "validation_accuracy_percent": report.validation_accuracy_percent,
            "train_loss": report.train_loss,
            "rung": self._rung(state),
            "next_rung": self._rung(after),
            "reason": reason,
        }
        return {**after, "trace": [*state["trace"], entry]}

    def choose(self, state: State, energies: Tensor) -> tuple[int, State]:
        raise NotImplementedError("stepwise plans beforehand")

    def after_step(self, state: State, report: StepReport) -> State:
        return state

    def _rung(self, state: State) -> int:
        return 0 if state["dense_left"] else len(self.values) - state["position"]

    def _position(self, state: State, report: EpochReport) -> tuple[int, str]:
        """The step after this epoch, and why."""
        position: int = state["position"]
        accuracy = report.validation_accuracy_percent
        passed = sum(accuracy >= threshold for threshold in self.accuracy_thresholds)
        if passed > position:
            threshold = self.accuracy_thresholds[passed - 1]
            return passed, f"validation accuracy {accuracy:.2f} % passed {threshold:g} %"
        last = state["last_loss"]
        if (
            self.loss_differences is not None
            and last is not None
            and position < len(self.values) - 1
        ):
            difference = abs(last - report.train_loss)
            limit = self.loss_differences[position]
            if math.isfinite(difference) and difference < limit:
                return position + 1, f"loss changed by {difference:.4f}, less than {limit:g}"
        return position, ""
