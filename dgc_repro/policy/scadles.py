"""ScaDLES-style: strong compression where it loses little, or where data streams in faster than it is learnt.

Paper: Tyagi and Swany, "ScaDLES: scalable deep learning over streaming data at the edge", IEEE Big Data
2022 (arXiv:2301.08897), as GraVAC's section II sums it up: adaptive low and high compression for streaming
edge data. Taken: two rungs, the gain of the strong one judged in every step, and data that arrives at a rate
whether or not workers keep up.
Differs: the paper was not at hand when this was written, and names and defaults are ours. One stream feeds
all workers (no rates of their own, no batches weighted by them, no data injection). What waits is counted,
not stored: training goes on with the batches that the data set has.

    waiting = max(0, waiting + rate * seconds of a step - its samples)

    gain(high) >= eps: high
    else waiting > patience and gain(high) >= least: high, to catch up
    else: low

Gain: as in policy/gravac.py, of one step, smoothed as a ratio of averages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from dgc_repro.policy.checks import check_ladder, check_number, check_share
from dgc_repro.policy.interface import EpochReport, Plan, State, StepReport

KEEPS, CATCHES_UP, LOSES = "keeps enough", "catches up", "loses too much"


@dataclass(frozen=True)
class ScaDLES:
    """``field``, ``values``: the low compression and the high one. ``rate``: samples a second that stream in,
    for all workers together; ``patience``: samples that may wait before it hurries; ``eps``: the share of a
    gradient that is enough, ``least``: that must survive in any hurry; ``smoothing``: weight of a step."""

    field: str
    values: Sequence[Any]
    rate: float = 1000.0
    patience: float = 1000.0
    eps: float = 0.9
    least: float = 0.5
    smoothing: float = 0.1
    chooses = True
    watches = None

    def __post_init__(self) -> None:
        check_ladder(self.field, self.values)
        if len(self.values) != 2:
            raise ValueError(
                f"values: the low compression and the high one, got {list(self.values)!r}"
            )
        check_number("rate", self.rate, "samples a second from 0", lambda rate: rate >= 0)
        check_number("patience", self.patience, "samples from 0", lambda samples: samples >= 0)
        for name in ("eps", "least", "smoothing"):
            check_share(name, getattr(self, name))
        if self.least > self.eps:
            raise ValueError(f"least: at most eps, got {self.least:g} above {self.eps:g}")

    def init(self) -> State:
        """``kept``, ``whole``: smoothed energies; ``waiting``: samples; ``last``: this step's decision."""
        return {"kept": 0.0, "whole": 0.0, "waiting": 0.0, "last": {}}

    def plan(self, state: State, step: int) -> Plan:
        return Plan(None, candidates=(1, 2))

    def observe(self, state: State, report: EpochReport) -> State:
        return state

    def choose(self, state: State, energies: Tensor) -> tuple[int, State]:
        whole, low, high = energies.tolist()
        w = self.smoothing
        sums = {
            "kept": (1 - w) * state["kept"] + w * high,
            "whole": (1 - w) * state["whole"] + w * whole,
        }
        gain = min(1.0, max(0.0, sums["kept"] / sums["whole"])) if sums["whole"] > 0 else 1.0
        hurries = state["waiting"] > self.patience and gain >= self.least
        reason = KEEPS if gain >= self.eps else CATCHES_UP if hurries else LOSES
        rung = 1 if reason == LOSES else 2
        of_low = min(1.0, max(0.0, low / whole)) if whole > 0 else 1.0
        last = {
            "theta_min": self.values[0],
            "candidate": self.values[1],
            "gain_theta_min": of_low,
            "gain_candidate": gain,
            "branch": "candidate" if rung == 2 else "theta_min",
            "rung": rung,
            "gain": gain if rung == 2 else of_low,
            "waiting": state["waiting"],
            "reason": reason,
            "energies": energies.tolist(),
        }
        return rung, {**state, **sums, "last": last}

    def after_step(self, state: State, report: StepReport) -> State:
        arrived = self.rate * report.seconds if report.seconds > 0 else 0.0
        return {**state, "waiting": max(0.0, state["waiting"] + arrived - report.samples)}
