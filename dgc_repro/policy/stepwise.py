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
from typing import Annotated

from dgc_repro.checked import Count, Rule, checked, within
from dgc_repro.policy.interface import EpochReport, Plan, State
from dgc_repro.policy.planned import Field, PlansAhead, Rungs

Percent = Annotated[float, within(0, 100)]
ASCENDING = Rule("percentages (0 to 100), ascending", lambda values: list(values) == sorted(values))


@checked
class Stepwise(PlansAhead):
    """``field``: the compressor's setting that values are for. ``values``: the ladder, weakest first.
    ``accuracy_thresholds``: validation accuracy
    in percent that the p-th step down needs, ascending, one fewer than values.
    ``loss_differences``: the p-th step down is also taken when the training loss of two successive
    epochs differs by less (null: never). ``patience_epochs``: epochs on one step before compression
    is removed. ``dense_epochs``: for so many epochs; 0: never."""

    field: Field
    values: Rungs
    accuracy_thresholds: Annotated[Sequence[Percent], ASCENDING]
    loss_differences: Sequence[Annotated[float, within(0)]] | None = None
    patience_epochs: Count = 8
    dense_epochs: Annotated[int, within(0)] = 1

    def __post_init__(self) -> None:
        steps = len(self.values) - 1
        for field in ("accuracy_thresholds", "loss_differences"):
            given = getattr(self, field)
            if given is not None and len(given) != steps:
                raise ValueError(
                    f"{field}: one for each step down, {steps} for the {len(self.values)} values "
                    f"{list(self.values)!r}, got {len(given)}"
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
