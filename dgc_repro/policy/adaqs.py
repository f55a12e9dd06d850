"""AdaQS: more bits as the gradient sinks into its noise.

Paper: Guo et al., "Accelerating distributed deep learning by adaptive gradient quantization", ICASSP 2020:
precision follows the mean-to-standard-deviation ratio of the gradient (MSDR), a moving average of which
is watched; when it has fallen by a set fraction, precision doubles.
Differs: the ratio is that of the whole gradient over the workers,

    MSDR = ||mean of g_i|| / sqrt(mean of ||g_i||^2 - ||mean of g_i||^2)

(the mean is the one that was applied, compression included), so that all ranks agree on it for one number
a step. The paper was not at hand when this was written: fraction, weight and what "doubles" counts
(bits here, by the ladder's values) are settings.

Letters: g_i = gradient of worker i. One worker has no spread: the ratio is then infinite, and nothing moves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from dgc_repro.policy.checks import check_ladder, check_number, check_share, check_whole
from dgc_repro.policy.interface import SPREAD, EpochReport, Plan, State, StepReport


@dataclass(frozen=True)
class AdaQS:
    """``field``, ``values``: the ladder, weakest first, such as bits [16, 8, 4, 2]; it begins with the
    strongest. ``falls_by``: the fraction by which the averaged ratio must have fallen since the last move for
    the next weaker one; ``smoothing``: weight of a step in the average; ``least_steps``: on each."""

    field: str
    values: Sequence[Any]
    falls_by: float = 0.5
    smoothing: float = 0.1
    least_steps: int = 10
    chooses = False
    watches = SPREAD

    def __post_init__(self) -> None:
        check_ladder(self.field, self.values, least=1)
        check_number(
            "falls_by", self.falls_by, "a fraction above 0 and below 1", lambda x: 0 < x < 1
        )
        check_share("smoothing", self.smoothing, "a fraction above 0 and at most 1")
        check_whole("least_steps", self.least_steps)

    def init(self) -> State:
        """``average``: of the ratio, None before the first; ``reference``: at the last move."""
        return {
            "rung": len(self.values),
            "average": None,
            "reference": None,
            "steps": 0,
            "trace": [],
        }

    def plan(self, state: State, step: int) -> Plan:
        return Plan(state["rung"])

    def observe(self, state: State, report: EpochReport) -> State:
        return state

    def choose(self, state: State, energies: Tensor) -> tuple[int, State]:
        raise NotImplementedError("adaqs plans beforehand")

    def after_step(self, state: State, report: StepReport) -> State:
        ratio = ratio_of(report)
        if not math.isfinite(ratio):
            return state
        before = state["average"]
        average = ratio if before is None else before + self.smoothing * (ratio - before)
        steps, reference = state["steps"] + 1, state["reference"]
        if steps == self.least_steps:
            reference = average
        after = {**state, "average": average, "steps": steps, "reference": reference}
        rung = state["rung"]
        fallen = steps > self.least_steps and average <= (1 - self.falls_by) * reference
        if rung == 1 or not fallen:
            return after
        entry = {
            "step": report.step + 1,
            "rung": rung,
            "next_rung": rung - 1,
            "reason": f"ratio {average:.4g}, {reference:.4g} at the last move",
        }
        trace = [*state["trace"], entry]
        return {**after, "rung": rung - 1, "reference": average, "steps": 0, "trace": trace}


def ratio_of(report: StepReport) -> float:
    """MSDR of a step; infinite where the workers do not differ."""
    spread = report.own_square - report.mean_square
    if not spread > 0:
        return math.inf
    return math.sqrt(report.mean_square / spread)
