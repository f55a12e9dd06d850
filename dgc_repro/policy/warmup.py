"""Sparsity warm-up: weak compression in the first epochs, then the strongest for good.

Paper: Lin et al., "Deep gradient compression", ICLR 2018 (arXiv:1712.01887), section 3.3: sparsity
75 %, 93.75 %, 98.4375 %, 99.6 %, 99.9 % over the first epochs, while momentum and network settle.
Differs: the paper's warm-up of the learning rate is the schedule's (``schedule.warmup_epochs``).
Any setting that can be ordered by strength may be warmed up, not sparsity alone.
"""

from __future__ import annotations

from dgc_repro.checked import Count, checked
from dgc_repro.policy.interface import EpochReport, Plan, State
from dgc_repro.policy.planned import Field, PlansAhead, Rungs


@checked
class Warmup(PlansAhead):
    """``field``, ``values``: the ladder, weakest first, which is the order they are used in.
    ``epochs_each``: epochs on each value before the next."""

    field: Field
    values: Rungs
    epochs_each: Count = 1

    def never_reached(self, epochs: int) -> str | None:
        """A sentence for a run that is over before its strongest setting is; None for others."""
        needed = (len(self.values) - 1) * self.epochs_each + 1
        if epochs >= needed:
            return None
        last = self.values[self._rung(epochs - 1) - 1]
        return (
            f"epochs_each: the warm-up reaches {self.field}={self.values[-1]} in epoch {needed}, and a run "
            f"of {epochs} epochs ends at {last}"
        )

    def init(self) -> State:
        return {"epoch": 0, "trace": []}

    def plan(self, state: State, step: int) -> Plan:
        return Plan(self._rung(state["epoch"]))

    def observe(self, state: State, report: EpochReport) -> State:
        rung, following = self._rung(report.epoch - 1), self._rung(report.epoch)
        entry = {
            "epoch": report.epoch,
            "rung": rung,
            "next_rung": following,
            "reason": "warm-up" if following != rung else "",
        }
        return {"epoch": report.epoch, "trace": [*state["trace"], entry]}

    def _rung(self, epoch: int) -> int:
        """After so many whole epochs: 1 (the weakest) to len(values)."""
        return min(epoch // self.epochs_each + 1, len(self.values))
