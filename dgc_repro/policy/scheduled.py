"""Rungs that are written down beforehand, by epoch or by step: a decay, a cycle, another run's trace.

Paper: none; static schedules are the baselines that adaptive policies are compared with (for example
DGC's warm-up, policy/warmup.py, which is the schedule that only ever grows).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from dgc_repro.policy.checks import check_ladder
from dgc_repro.policy.interface import EpochReport, Plan, State, StepReport

STEP, EPOCH = "step", "epoch"


@dataclass(frozen=True)
class Scheduled:
    """``field``, ``values``: the ladder, weakest first. ``rungs``: pairs of the first step (or epoch,
    ``by``) on which a rung is used, and that rung; 0 is dense, r sends with values[r - 1]."""

    field: str
    values: Sequence[Any]
    rungs: Sequence[Any]
    by: str = EPOCH
    chooses = False
    watches = None

    def __post_init__(self) -> None:
        check_ladder(self.field, self.values, least=1)
        if self.by not in (STEP, EPOCH):
            raise ValueError(f"by: step or epoch, got {self.by!r}")
        wanted = (
            f"rungs: pairs of the first {self.by} of a rung and the rung, beginning at 0, such as "
        )
        pairs = self.rungs
        if isinstance(pairs, str) or not isinstance(pairs, Sequence) or not pairs:
            raise ValueError(f"{wanted}[[0, 1], [5, 2]], got {pairs!r}")
        for pair in pairs:
            if isinstance(pair, str) or not isinstance(pair, Sequence) or len(pair) != 2:
                raise ValueError(f"{wanted}[[0, 1], [5, 2]], got {pair!r}")
            if not all(isinstance(n, int) and not isinstance(n, bool) and n >= 0 for n in pair):
                raise ValueError(f"rungs: whole numbers from 0, got {list(pair)!r}")
            if pair[1] > len(self.values):
                raise ValueError(
                    f"rungs: 0 (dense) to {len(self.values)} (the last of values), got {pair[1]}"
                )
        starts = [start for start, _ in pairs]
        if starts[0] != 0 or starts != sorted(set(starts)):
            raise ValueError(f"rungs: the first begins at 0, the others ascend, got {starts}")

    def init(self) -> State:
        return {"epoch": 0, "trace": []}

    def plan(self, state: State, step: int) -> Plan:
        return Plan(self._rung(step if self.by == STEP else state["epoch"]))

    def observe(self, state: State, report: EpochReport) -> State:
        if self.by == STEP:
            return {**state, "epoch": report.epoch}
        rung, following = self._rung(report.epoch - 1), self._rung(report.epoch)
        entry = {
            "epoch": report.epoch,
            "rung": rung,
            "next_rung": following,
            "reason": "schedule" if following != rung else "",
        }
        return {"epoch": report.epoch, "trace": [*state["trace"], entry]}

    def choose(self, state: State, energies: Tensor) -> tuple[int, State]:
        raise NotImplementedError("scheduled plans beforehand")

    def after_step(self, state: State, report: StepReport) -> State:
        return state

    def _rung(self, position: int) -> int:
        starts = [start for start, _ in self.rungs]
        return int(self.rungs[bisect_right(starts, position) - 1][1])
