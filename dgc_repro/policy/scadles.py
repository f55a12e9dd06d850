"""ScaDLES's choice between compressed and uncompressed: compress while the norm of the gradient survives it.

Paper: Tyagi and Swany, "ScaDLES: scalable deep learning over streaming data at the edge", IEEE Big Data
2022 (arXiv:2301.08897). Followed is the rule for adaptive compression in the authors' published code (the
adaptive trainers of ``scadles_py3``); the paper itself was not at hand.

    c = | sum_l ||g_l|| - sum_l ||C(g_l + e_l)|| | / sum_l ||g_l||
    average of c over this epoch's steps so far <= delta: compressed, else dense

Norms are summed over tensors as in the code (``gradient_norm`` of ``scadles_py3/misc/helper_fns.py``).
Defaults, top-k with one entry of 10 and delta 0.3, are those of the code's trainer with data injection and
of its scripts for ResNet152 (the adaptive trainer's own defaults are one entry of 5 and 0.1).
Differs: in the code each worker compares its own norms and votes, and half of the votes decide; here norms
are averaged over workers first, and one decision holds for all. The code changes the residual on dense steps
as if the compressed gradient had been sent; here a dense step empties it (compressor/error_feedback.py).
Nothing else of ScaDLES is here: no streams of data, no weights by batch size, no data injection.

Letters: l = tensor, g = gradient, e = residual, C = the compressor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from torch import Tensor

from dgc_repro.checked import Rule, Share, checked
from dgc_repro.policy.interface import EpochReport, Plan, State
from dgc_repro.policy.planned import Field, PlansAhead

ONE_VALUE = Rule(
    "a list of one value, that of compressed steps (the others are dense)",
    lambda values: len(values) == 1,
)


@checked
class ScaDLES(PlansAhead):
    """``field``, ``values``: the compressor's setting and its one value. ``delta``: the relative change of
    the norm, averaged over the epoch so far, up to which a step is compressed."""

    field: Field
    values: Annotated[Sequence[Any], ONE_VALUE]
    delta: Share = 0.3
    chooses = True
    weighs_time = False

    def init(self) -> State:
        """``changes``: sum of c over ``steps`` steps of this epoch; ``last``: this step's decision."""
        return {"changes": 0.0, "steps": 0, "last": {}}

    def plan(self, state: State, step: int) -> Plan:
        return Plan(None, candidates=(1, 1), norms=True)

    def observe(self, state: State, report: EpochReport) -> State:
        return {**state, "changes": 0.0, "steps": 0}

    def choose(self, state: State, energies: Tensor) -> tuple[int, State]:
        whole, kept, _, raw, sent, _ = energies.tolist()
        change = abs(1 - sent / raw) if raw > 0 else 0.0
        changes, steps = state["changes"] + change, state["steps"] + 1
        rung = 1 if changes / steps <= self.delta else 0
        gain = kept / whole if whole > 0 else 1.0
        last = {
            "theta_min": self.values[0],
            "candidate": self.values[0],
            "gain_theta_min": gain,
            "gain_candidate": gain,
            "branch": "theta_min" if rung else "dense",
            "rung": rung,
            "gain": gain if rung else 1.0,
            "change": change,
            "average_change": changes / steps,
            "energies": energies.tolist(),
        }
        return rung, {"changes": changes, "steps": steps, "last": last}
