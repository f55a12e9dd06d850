"""One setting for the whole run: the static baselines of every paper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from dgc_repro.policy.checks import check_ladder
from dgc_repro.policy.interface import EpochReport, Plan, State, StepReport


@dataclass(frozen=True)
class Fixed:
    """Without ``field`` and ``values`` the compressor is used as it is set; with them, ``rung`` of
    the ladder (default: the strongest)."""

    field: str | None = None
    values: Sequence[Any] = ()
    rung: int | None = None
    chooses = False
    watches = None

    def __post_init__(self) -> None:
        check_ladder(self.field, self.values)
        if self.rung is not None and not 0 <= self.rung <= len(self.values):
            raise ValueError(
                f"rung: 0 (dense) to {len(self.values)} (the last of values), got {self.rung}"
            )

    def init(self) -> State:
        return {}

    def plan(self, state: State, step: int) -> Plan:
        return Plan(len(self.values) if self.rung is None else self.rung)

    def observe(self, state: State, report: EpochReport) -> State:
        return state

    def choose(self, state: State, energies: Tensor) -> tuple[int, State]:
        raise NotImplementedError("fixed plans beforehand")

    def after_step(self, state: State, report: StepReport) -> State:
        return state
