"""One setting for the whole run, and every step written down: what was sent, how much of it survived.

Paper: none; it makes the curves of static settings that Tyagi and Swany, "GraVAC", IEEE CLOUD 2023
(arXiv:2305.12201), draw in figures 1b and 4 to 6: norms before and after compression, gain and variance of
the gradient by step. It decides nothing: a run with it takes the steps of a run with ``policy=fixed``.

Gain: ||C(g)||^2 / ||g||^2 of one step, not smoothed, g with error feedback (policy/gravac.py has the sums).
Variance of the gradient over workers: mean of ||g_i||^2 - ||mean of g_i||^2, the mean as it was applied.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from dgc_repro.checked import checked
from dgc_repro.policy.interface import SPREAD, Plan, State, StepReport
from dgc_repro.policy.planned import PlansAhead

ONLY = "theta_min"
"""The branch that is written down: GraVAC's that sends its weakest factor, of which there is one here."""


@checked
class Probed(PlansAhead):
    """``field``, ``value``: the compressor's setting and its value, for a ladder of that one rung; null: no
    ladder and no gains, the compressor as it is set. ``spread``: squares of gradients are written down too
    (without a ladder always)."""

    field: str | None = None
    value: Any = None
    spread: bool = False
    weighs_time = False

    def __post_init__(self) -> None:
        if (self.field is None) != (self.value is None):
            raise ValueError(
                f"field: names the compressor's setting that value is for, got {self.field!r} with "
                f"value {self.value!r}; give both or neither"
            )

    @property
    def values(self) -> Sequence[Any]:
        return () if self.value is None else (self.value,)

    @property
    def chooses(self) -> bool:
        return self.value is not None

    @property
    def watches(self) -> str | None:
        return SPREAD if self.spread or self.value is None else None

    def init(self) -> State:
        """``last``: this step's numbers; ``waiting``: gains of steps whose time is not known yet; ``timed``:
        the last step whose time is."""
        return {"last": {}, "waiting": [], "timed": {}}

    def plan(self, state: State, step: int) -> Plan:
        if self.value is None:
            return Plan(0)
        return Plan(None, candidates=(1, 1), norms=True)

    def choose(self, state: State, energies: Tensor) -> tuple[int, State]:
        whole, kept, *_ = energies.tolist()
        gain = kept / whole if whole > 0 else 1.0
        last = {
            "theta_min": self.value,
            "candidate": self.value,
            "gain_theta_min": gain,
            "gain_candidate": gain,
            "branch": ONLY,
            "rung": 1,
            "gain": gain,
            "energies": energies.tolist(),
        }
        return 1, {**state, "last": last, "waiting": [*state["waiting"], gain]}

    def after_step(self, state: State, report: StepReport) -> State:
        gain, *waiting = state["waiting"] or [1.0]
        timed: dict[str, Any] = {
            "step": report.step,
            "seconds": report.seconds,
            "samples": report.samples,
            "throughput": (
                report.samples / report.seconds * gain if report.seconds > 0 else math.nan
            ),
        }
        if self.watches == SPREAD:
            timed |= {"own_square": report.own_square, "mean_square": report.mean_square}
        return {**state, "waiting": waiting, "timed": timed}
