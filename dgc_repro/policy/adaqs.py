"""AdaQS: more bits as the gradient sinks into its noise.

Paper: Guo et al., "Accelerating distributed deep learning by adaptive gradient quantization", ICASSP 2020.
Its abstract: the quantization level follows the gradient's mean-to-standard-deviation ratio (MSDR), whose
moments are estimated cheaply. The paper itself was not at hand: how the moments are estimated, when the
policy moves and how far is ours.

    MSDR = ||mu|| / s,  ||mu||^2 = the square of what the workers' gradients have in common,
                        s^2 = mean of ||g_i||^2 - ||mu||^2

Both are estimated from the workers' own gradients, before compression, and without bias
(exchange/sketch.py): neither the noise of N workers nor that of the quantizer counts as signal. The
estimates are averaged over steps before the ratio is taken. The policy moves one rung weaker when the ratio
has certainly fallen by ``falls_by``: its upper bound lies so far below the largest lower bound since the last
move. Bounds are three standard errors of the averaged ||mu||^2, measured from its own scatter. A signal that
cannot be told from the noise (all these lower bounds are 0) moves nothing: with 2 workers, 257 sums and
smoothing 0.1 that is ||mu||^2 below about 0.04 s^2.

Letters: g_i = gradient of worker i, w = smoothing. One worker has no spread: nothing moves.
"""

from __future__ import annotations

import math
from typing import Annotated

from dgc_repro.checked import Count, checked, within
from dgc_repro.policy.interface import SPREAD, Plan, State, StepReport
from dgc_repro.policy.planned import Field, PlansAhead, Rungs

STANDARD_ERRORS = 3.0


@checked
class AdaQS(PlansAhead):
    """``field``, ``values``: the ladder, weakest first, such as bits [16, 8, 4, 2]; it begins with the
    strongest. ``falls_by``: the fraction by which the averaged ratio must have fallen since the last move for
    the next weaker one; ``smoothing``: weight of a step in the averages, below 1 because one step alone has
    no standard error; ``least_steps``: on each rung."""

    field: Field
    values: Rungs
    falls_by: Annotated[float, within(above=0, below=1, name="a fraction")] = 0.5
    smoothing: Annotated[float, within(above=0, below=1), "0.1 is usual"] = 0.1
    least_steps: Count = 10
    watches = SPREAD
    sketches = True

    def init(self) -> State:
        """``signal``, ``square``, ``whole``: averages of the estimates of ||mu||^2, of their squares, and of
        ||g_i||^2; ``weight``: of all steps in them; ``reference``: largest lower bound of the ratio since the
        last move, None before the first; ``steps``: since then."""
        return {
            "rung": len(self.values),
            "signal": 0.0,
            "square": 0.0,
            "whole": 0.0,
            "weight": 0.0,
            "reference": None,
            "steps": 0,
            "trace": [],
        }

    def plan(self, state: State, step: int) -> Plan:
        return Plan(state["rung"])

    def after_step(self, state: State, report: StepReport) -> State:
        found, whole = report.signal_square, report.own_square
        if not (math.isfinite(found * found) and math.isfinite(whole)):
            return state
        told = {"signal": found, "square": found * found, "whole": whole, "weight": 1.0}
        w = self.smoothing
        averages = {name: (1 - w) * state[name] + w * now for name, now in told.items()}
        after = {**state, **averages, "steps": state["steps"] + 1}
        lower, upper = self.bounds(after)
        if after["steps"] >= self.least_steps:
            after["reference"] = max(after["reference"] or 0.0, lower)
        rung = state["rung"]
        if rung == 1 or after["steps"] <= self.least_steps or not math.isfinite(upper):
            return after
        if after["reference"] == 0 or upper > (1 - self.falls_by) * after["reference"]:
            return after
        entry = {
            "step": report.step + 1,
            "rung": rung,
            "next_rung": rung - 1,
            "reason": f"ratio at most {upper:.4g}, it was at least {after['reference']:.4g}",
        }
        moved = {"rung": rung - 1, "reference": None, "steps": 0}
        return {**after, **moved, "trace": [*state["trace"], entry]}

    def bounds(self, state: State) -> tuple[float, float]:
        """Between which the averaged ratio lies."""
        signal, square, whole = (
            state[name] / state["weight"] for name in ("signal", "square", "whole")
        )
        w = self.smoothing
        left = 1 - state["weight"]  # (1 - w)^steps
        share = w / (2 - w) * (1 + left) / (1 - left)  # of one step's variance, in the average
        error = STANDARD_ERRORS * math.sqrt(share * max(0.0, square - signal * signal))
        return ratio_of(signal - error, whole), ratio_of(signal + error, whole)


def ratio_of(signal: float, whole: float) -> float:
    """MSDR from ||mu||^2 and the mean of ||g_i||^2; infinite where nothing is noise."""
    if signal <= 0:
        return 0.0
    return math.sqrt(signal / (whole - signal)) if signal < whole else math.inf
