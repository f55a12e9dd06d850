"""Rungs that are written down beforehand, by epoch or by step: a decay, a cycle, another run's trace.

Paper: none; static schedules are the baselines that adaptive policies are compared with (for example
DGC's warm-up, policy/warmup.py, which is the schedule that only ever grows).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Annotated

from dgc_repro.checked import Rule, checked, one_of, within
from dgc_repro.policy.interface import EpochReport, Plan, State
from dgc_repro.policy.planned import Field, PlansByEpoch, Rungs

STEP, EPOCH = "step", "epoch"
PAIR = Rule("two whole numbers from 0", lambda pair: len(pair) == 2)


def _is_schedule(pairs: Sequence[Sequence[int]]) -> bool:
    starts = [start for start, _ in pairs]
    return starts[:1] == [0] and starts == sorted(set(starts))


PAIRS = Rule(
    "pairs of a rung's first step (or epoch) and the rung, the first from 0, such as [[0, 1], [5, 2]]",
    _is_schedule,
)


@checked
class Scheduled(PlansByEpoch):
    """``field``: the compressor's setting that values are for. ``values``: the ladder, weakest first.
    ``by``: count epochs, or steps. ``rungs``: pairs of the first epoch (or step) on which a rung is used,
    and that rung; 0 is dense, r sends with values[r - 1]."""

    field: Field
    values: Rungs
    rungs: Annotated[Sequence[Annotated[Sequence[Annotated[int, within(0)]], PAIR]], PAIRS]
    by: Annotated[str, one_of((STEP, EPOCH))] = EPOCH
    reason = "schedule"

    def __post_init__(self) -> None:
        if (highest := max(rung for _, rung in self.rungs)) > len(self.values):
            raise ValueError(
                f"rungs: 0 (dense) to {len(self.values)} (the last of values), got {highest}"
            )

    def plan(self, state: State, step: int) -> Plan:
        return Plan(self.rung_after(step if self.by == STEP else state["epoch"]))

    def observe(self, state: State, report: EpochReport) -> State:
        if self.by == STEP:
            return {**state, "epoch": report.epoch}
        return super().observe(state, report)

    def rung_after(self, epochs: int) -> int:
        """The rung after so many epochs (or steps, ``by``)."""
        starts = [start for start, _ in self.rungs]
        return int(self.rungs[bisect_right(starts, epochs) - 1][1])
