"""Accordion: weak compression in critical regimes of training, strong compression elsewhere.

Paper: Agarwal et al., "Accordion: adaptive gradient communication via critical learning regime
identification", MLSys 2021 (arXiv:2010.16248), algorithm 1. Each layer is judged by itself. Its regime is
critical where the norm of an epoch's summed gradient has changed quickly since the epoch ``interval``
epochs before, and where the learning rate is about to decay.

    | ||D_before|| - ||D_now|| | / ||D_before|| >= eta, or lr_next < lr_now: the low rung; else the high one

As in the authors' code (github.com/uw-mad-dash/Accordion, main.py, ``switch_freq``), the sum starts anew in
every epoch, and epochs 1, 1 + interval, 1 + 2 interval ... are judged; the first has nothing to compare with.
Differs: the norm is that of the averaged gradient (the paper) or of rank 0's own gradient (the authors' code;
``norm=own``; all ranks use rank 0's, so that they agree). A learning rate that decays a little in every epoch
(cosine) would make every epoch critical: ``decay`` says what counts. Between judgements a decay lowers
compression until the next judgement, as in the authors' code.

Letters: D = sum of a layer's gradients over an epoch, eta as printed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from dgc_repro.checked import Share, checked, one_of, within
from dgc_repro.policy.interface import MEAN, OWN, EpochReport, Plan, State
from dgc_repro.policy.planned import Field, PlansAhead, ladder


@checked
class Accordion(PlansAhead):
    """``field``, ``values``: the low compression and the high one, or more, of which the first and the last
    are used. ``eta``: the relative change that is critical; ``interval``: epochs between judgements, and
    between the two epochs that a judgement compares; ``norm``: mean, or own; ``decay``: the learning rate
    decays where the next is below so many times this one's (null: never looked at)."""

    field: Field
    values: Annotated[Sequence[Any], ladder(2, "the low compression and the high one")]
    eta: Annotated[float, within(above=0, name="a relative change")] = 0.5
    interval: Annotated[int, within(1, name="a whole number of epochs")] = 1
    norm: Annotated[str, one_of((MEAN, OWN))] = MEAN
    decay: Share | None = 0.9

    @property
    def watches(self) -> str:
        return self.norm

    def init(self) -> State:
        """``norms``: by tensor, of the last judged epoch; ``high``: tensors on the high rung."""
        return {"norms": {}, "high": [], "trace": []}

    def plan(self, state: State, step: int) -> Plan:
        return Plan(1, dict.fromkeys(state["high"], len(self.values)))

    def observe(self, state: State, report: EpochReport) -> State:
        now, following = report.learning_rate
        decays = self.decay is not None and following < self.decay * now
        judges = (report.epoch - 1) % self.interval == 0
        if not judges and not decays:
            return state
        before, high = state["norms"], list(state["high"])
        norms = dict(report.gradient_norms) if judges else before
        if decays:
            high, reason = [], "the learning rate decays"
        elif not before:
            reason = "nothing to compare with"
        else:
            high = [
                name for name, norm in norms.items() if not self._critical(before.get(name), norm)
            ]
            reason = f"{len(norms) - len(high)} of {len(norms)} tensors critical"
        entry = {
            "epoch": report.epoch,
            "rung": len(self.values) if state["high"] else 1,
            "next_rung": len(self.values) if high else 1,
            "high": len(high),
            "reason": reason,
        }
        return {**state, "norms": norms, "high": high, "trace": [*state["trace"], entry]}

    def _critical(self, before: float | None, now: float) -> bool:
        """Whether a norm has changed quickly; a tensor that is new, or had no gradient, is critical."""
        return not before or abs(before - now) / before >= self.eta
