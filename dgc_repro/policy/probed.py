"""One setting for the whole run, and every step written down: what was sent, how much of it survived.
With a ladder, also how much would have survived at its other settings.

Paper: none; it makes the curves of static settings that Tyagi and Swany, "GraVAC", IEEE CLOUD 2023
(arXiv:2305.12201), draw in figures 1b and 4 to 6: norms before and after compression, gain and variance of
the gradient by step. It decides nothing: a run with it takes the steps of a run with ``policy=fixed``.

Gain: ||C(g)||^2 / ||g||^2 of one step, not smoothed, g with error feedback (policy/gravac.py has the sums).
With a ladder, each step also measures one of the other settings: the gain that this setting would have had
under the residual of the setting that is sent.
Variance of the gradient over workers: mean of ||g_i||^2 - ||mean of g_i||^2, the mean as it was applied.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from dgc_repro.checked import checked
from dgc_repro.policy.interface import SPREAD, Plan, State, StepReport
from dgc_repro.policy.planned import PlansAhead, Rungs

GOLDEN = (math.sqrt(5) - 1) / 2
ONLY = "theta_min"
"""The branch that is written down: GraVAC's that sends its weakest factor, the only one that is sent here."""


@checked
class Probed(PlansAhead):
    """``field``, ``value``: the compressor's setting and its value, for a ladder of that one rung; null: no
    ladder and no gains, the compressor as it is set. ``spread``: squares of gradients are written down too
    (without a ladder always). ``ladder``: settings, weakest first, with ``value`` among them: the gains of
    the others are written down too, of one other setting a step."""

    field: str | None = None
    value: Any = None
    spread: bool = False
    ladder: Rungs | None = None
    weighs_time = False

    def __post_init__(self) -> None:
        if (self.field is None) != (self.value is None):
            raise ValueError(
                f"field: names the compressor's setting that value is for, got {self.field!r} with "
                f"value {self.value!r}; give both or neither"
            )
        if self.ladder is not None and self.value not in self.ladder:
            raise ValueError(
                f"ladder: must hold value, the setting that is sent, got {self.ladder!r} "
                f"without {self.value!r}"
            )

    @property
    def values(self) -> Sequence[Any]:
        if self.ladder is not None:
            return self.ladder
        return () if self.value is None else (self.value,)

    def _tried(self, state: State) -> Any:
        """The setting that this step measures beside the one that is sent. Multiples of the golden ratio are
        spread evenly, those of every second or tenth step too, so that a thinned record has all settings."""
        others = [value for value in self.values if value != self.value] or [self.value]
        return others[int(state["steps"] * GOLDEN % 1 * len(others))]

    @property
    def chooses(self) -> bool:
        return self.value is not None

    @property
    def watches(self) -> str | None:
        return SPREAD if self.spread or self.value is None else None

    def init(self) -> State:
        """``steps``: how many were measured; ``last``: this step's numbers; ``waiting``: gains of steps whose
        time is not known yet; ``timed``: the last step whose time is."""
        return {"steps": 0, "last": {}, "waiting": [], "timed": {}}

    def plan(self, state: State, step: int) -> Plan:
        if self.value is None:
            return Plan(0)
        places = {value: rung for rung, value in enumerate(self.values, start=1)}
        sent, tried = places[self.value], places[self._tried(state)]
        return Plan(None, candidates=(sent, tried), norms=True)

    def choose(self, state: State, energies: Tensor) -> tuple[int, State]:
        whole, kept, tried, *_ = energies.tolist()
        gain, other = (energy / whole if whole > 0 else 1.0 for energy in (kept, tried))
        rung = 1 + list(self.values).index(self.value)
        last = {
            "theta_min": self.value,
            "candidate": self._tried(state),
            "gain_theta_min": gain,
            "gain_candidate": other,
            "branch": ONLY,
            "rung": rung,
            "gain": gain,
            "energies": energies.tolist(),
        }
        after = {"steps": state["steps"] + 1, "last": last, "waiting": [*state["waiting"], gain]}
        return rung, {**state, **after}

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
