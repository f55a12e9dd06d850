"""A ladder of settings: rung 0 is no compression, rungs grow stronger, a policy picks one a step.

Paper: Tyagi and Swany, "GraVAC: adaptive compression for communication-efficient distributed DL
training", IEEE CLOUD 2023 (arXiv:2305.12201), section III: energies of the weakest and a candidate
rung, and multi-level compression, where the candidate works on what the weakest has left.
Asks: what the chosen rung asks; `Choose` first (three energies in float64, 24 bytes for all tensors together)
where the policy must see this step's gradient before it decides. Where it decides afterwards
(`Plan.measures`) the energies are told and nothing is asked: they travel with the signals of the step.

Dense being a rung, "residual = 0" (GraVAC, algorithm 1) and "compression removed for a while"
(dynamic gradient compression) need no special case: own = sent.

Sparsifiers refine: where the policy asks to see energies, a stronger rung chooses among the
survivors of the weaker one, and the selection of the rung that is then picked is sent as it is. Exact
top-k finds all rungs in one pass over the tensor, and chooses what it would have chosen directly.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from dgc_repro.checked import checked
from dgc_repro.compressor.interface import Compressor, Context, Measurable, State
from dgc_repro.compressor.sparsifier import Largest, Sparsifier, explained_by
from dgc_repro.exchange.requests import Choose, Exchange, Outcome
from dgc_repro.kernel import native, select
from dgc_repro.kernel.select import Selection


@checked
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
        selections: dict[int, Selection] = {}
        if chosen is None or context.tell_energies is not None:
            selections = self._selections(tensor, context)
            energies = self._energies(tensor, selections, context)
            if chosen is None:
                chosen = yield Choose(energies)
            elif context.tell_energies is not None:
                context.tell_energies(energies)
        if not 0 <= chosen < len(self.rungs):
            raise ValueError(f"the policy chose rung {chosen} of a ladder of {len(self.rungs)}")
        states = list(state["rungs"])
        inside = context.within(f"rung{chosen}")
        if chosen in selections:
            inside = replace(inside, selection=selections[chosen])
        outcome = yield from self.rungs[chosen].exchange(tensor, states[chosen], inside)
        states[chosen] = outcome.state
        return Outcome(outcome.mean, outcome.own, {"rungs": states})

    def _selections(self, tensor: Tensor, context: Context) -> dict[int, Selection]:
        """What those candidates choose that are sparsifiers, each among the survivors of the one
        before."""
        rungs = {i: self.rungs[i] for i in sorted(set(context.candidates))}
        sparsifiers = {
            i: rung
            for i, rung in rungs.items()
            if isinstance(rung, Sparsifier) and getattr(rung, "refines", True)
        }
        n = tensor.numel()
        largest = [rung for rung in sparsifiers.values() if isinstance(rung, Largest)]
        if len(largest) == len(sparsifiers) > 1:
            ks = [rung.num_largest(n) for rung in largest]
            if ks == sorted(ks, reverse=True):
                flat = tensor.view(-1)
                chosen = select.ladder(flat, ks, scratch=context.scratch)
                if native.usable(flat) and native.all_finite(chosen[0].values):
                    context.found_finite(flat)
                return dict(zip(sparsifiers, chosen, strict=True))
        found: dict[int, Selection] = {}
        survivors: Selection | None = None
        for i, rung in sparsifiers.items():
            inside = context.within(f"rung{i}")
            if survivors is None:
                survivors = rung.select(tensor, inside)
            else:
                survivors = rung.refine(survivors, inside)
            found[i] = survivors
        return found

    def _energies(
        self, tensor: Tensor, selections: dict[int, Selection], context: Context
    ) -> Tensor:
        """The numbers of `requests.Choose`: f64[3], or f64[6] with norms."""
        of_rung: dict[int, Tensor] = {}
        for index in set(context.candidates):
            rung = self.rungs[index]
            if index in selections:
                of_rung[index] = explained_by(rung, selections[index])
                continue
            assert isinstance(rung, Measurable), (
                "the builder refuses ladders that cannot be measured"
            )
            of_rung[index] = rung.energy(tensor, context.within(f"rung{index}"))
        energies = [select.energy(tensor), *(of_rung[index] for index in context.candidates)]
        if context.raw_energy is not None:
            energies += [context.raw_energy.sqrt(), *(e.clamp(min=0).sqrt() for e in energies[1:])]
        return torch.stack(energies)
