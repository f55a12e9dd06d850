"""What policies share: the values of a ladder, and the answers of a policy that plans before the step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from torch import Tensor

from dgc_repro.checked import Rule
from dgc_repro.policy.interface import EpochReport, Plan, State, StepReport


def ladder(least: int, words: str) -> Rule:
    """Values of a compressor's setting, weakest first: numbers or words, each once, ``least`` at least."""

    def fits(values: Sequence[Any]) -> bool:
        if any(value is None or isinstance(value, Mapping | list) for value in values):
            return False
        return len(set(values)) == len(values) >= least

    return Rule(f"a list of {words} (numbers or words), weakest first, each once", fits)


Field = Annotated[str, "the compressor's setting that the values are for, such as bits or density"]
Settings = Annotated[Sequence[Any], ladder(0, "settings")]
Rungs = Annotated[Sequence[Any], ladder(1, "one or more settings")]


class PlansAhead:
    """The answers of a policy that plans before the step; `init` and `plan` are its own. A policy that also
    measures overrides the others."""

    @property
    def chooses(self) -> bool:
        return False

    @property
    def watches(self) -> str | None:
        return None

    def observe(self, state: State, report: EpochReport) -> State:
        return state

    def choose(self, state: State, energies: Tensor) -> tuple[int, State]:
        raise NotImplementedError(f"{type(self).__name__} plans before the step")

    def after_step(self, state: State, report: StepReport) -> State:
        return state


class PlansByEpoch(PlansAhead):
    """A policy whose rung follows from the number of finished epochs. ``reason``: why it changes."""

    reason: str

    def rung_after(self, epochs: int) -> int:
        """The rung after so many whole epochs."""
        raise NotImplementedError

    def init(self) -> State:
        return {"epoch": 0, "trace": []}

    def plan(self, state: State, step: int) -> Plan:
        return Plan(self.rung_after(state["epoch"]))

    def observe(self, state: State, report: EpochReport) -> State:
        rung, following = self.rung_after(report.epoch - 1), self.rung_after(report.epoch)
        reason = self.reason if following != rung else ""
        entry = {"epoch": report.epoch, "rung": rung, "next_rung": following, "reason": reason}
        return {"epoch": report.epoch, "trace": [*state["trace"], entry]}
