"""Sparsity warm-up: weak compression in the first epochs, then the strongest for good.

Paper: Lin et al., "Deep gradient compression", ICLR 2018 (arXiv:1712.01887), section 3.3: sparsity
75 %, 93.75 %, 98.4375 %, 99.6 %, 99.9 % over the first epochs, while momentum and network settle.
Differs: the paper's warm-up of the learning rate is the schedule's (``schedule.warmup_epochs``).
Any setting that can be ordered by strength may be warmed up, not sparsity alone.
"""

from __future__ import annotations

from dgc_repro.checked import Count, checked
from dgc_repro.policy.planned import Field, PlansByEpoch, Rungs


@checked
class Warmup(PlansByEpoch):
    """``field``: the compressor's setting that values are for. ``values``: the ladder, weakest first, which
    is the order they are used in.
    ``epochs_each``: epochs on each value before the next."""

    field: Field
    values: Rungs
    epochs_each: Count = 1
    reason = "warm-up"

    def never_reached(self, epochs: int) -> str | None:
        """A sentence for a run that is over before its strongest setting is; None for others."""
        needed = (len(self.values) - 1) * self.epochs_each + 1
        if epochs >= needed:
            return None
        last = self.values[self.rung_after(epochs - 1) - 1]
        return (
            f"the warm-up reaches {self.field}={self.values[-1]} in epoch {needed}, and a run "
            f"of {epochs} epochs ends at {last}"
        )

    def rung_after(self, epochs: int) -> int:
        """1 (the weakest) to len(values)."""
        return min(epochs // self.epochs_each + 1, len(self.values))
