"""A ladder of settings: rung 0 is no compression, rungs grow stronger, a policy picks one a step.

Asks: what the chosen rung asks; `Choose` first (three energies in float64, 24 bytes for all tensors together)
where the policy must see this step's gradient before it decides.

Dense being a rung, "residual = 0" (GraVAC, algorithm 1) and "compression removed for a while"
(dynamic gradient compression) need no special case: own = sent.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dgc_repro.compressor.interface import Compressor, Context, Measurable, State
from dgc_repro.exchange.requests import Choose, Exchange, Outcome


@dataclass(frozen=True)
class Ladder:
    """``rungs``: weakest first. State: ``rungs``, one state a rung, only the chosen one moves."""

    rungs: tuple[Compressor, ...]

    def __post_init__(self) -> None:
        if len(self.rungs) < 2:
            raise ValueError("values: a ladder needs at least one setting besides dense, got none")

    def init(self, tensor: Tensor) -> State:
        return {"rungs": [rung.init(tensor) for rung in self.rungs]}

    def exchange(self, tensor: Tensor, state: State, context: Context) -> Exchange:
        chosen = context.rung
        if chosen is None:
            chosen = yield Choose(self._energies(tensor, context))
        if not 0 <= chosen < len(self.rungs):
            raise ValueError(f"the policy chose rung {chosen} of a ladder of {len(self.rungs)}")
        states = list(state["rungs"])
        inside = context.within(f"rung{chosen}")
        outcome = yield from self.rungs[chosen].exchange(tensor, states[chosen], inside)
        states[chosen] = outcome.state
        return Outcome(outcome.mean, outcome.own, {"rungs": states})

    def _energies(self, tensor: Tensor, context: Context) -> Tensor:
        """||g||^2, ||rung_min(g)||^2, ||rung_candidate(g)||^2: f32[3]."""
        energies = [tensor.square().sum()]
        for index in context.candidates:
            rung = self.rungs[index]
            assert isinstance(rung, Measurable), (
                "the builder refuses ladders that cannot be measured"
            )
            energies.append(rung.energy(tensor, context.within(f"rung{index}")))
        return torch.stack(energies)
