"""One setting for the whole run: the static baselines of every paper."""

from __future__ import annotations

from dgc_repro.checked import checked
from dgc_repro.policy.interface import Plan, State
from dgc_repro.policy.planned import PlansAhead, Settings


@checked
class Fixed(PlansAhead):
    """Without field and values the compressor is used as it is set. ``field``: the compressor's setting that
    values are for; null: no ladder. ``values``: the ladder, weakest first. ``rung``: the rung that is used, 0
    for dense; null: the strongest."""

    field: str | None = None
    values: Settings = ()
    rung: int | None = None

    def __post_init__(self) -> None:
        if (self.field is None) != (len(self.values) == 0):
            raise ValueError(
                f"field: names the compressor's setting that values are for, got {self.field!r} with "
                f"values {list(self.values)!r}; give both or neither"
            )
        if self.rung is not None and not 0 <= self.rung <= len(self.values):
            raise ValueError(
                f"rung: 0 (dense) to {len(self.values)} (the last of values), got {self.rung}"
            )

    def init(self) -> State:
        return {}

    def plan(self, state: State, step: int) -> Plan:
        return Plan(len(self.values) if self.rung is None else self.rung)
