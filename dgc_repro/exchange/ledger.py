"""Bytes: what this worker hands to the wire, from ``.nbytes`` of the tensors really sent.

Three columns that never share a name:

``floats``         the papers' convention: values only, bits / 32
``payload_bytes``  what is handed over: headers, indices, scales and filling included
``wire_bytes``     payload times what the collective moves per rank: ring allreduce 2 (N-1) / N,
                   allgather N-1, broadcast (N-1) / N, all-to-all 1 (of an all-to-all the payload
                   is what goes to other workers: what a worker has for itself is not sent)

The gradient exchange has all three. Everything else (signals, buffers, evaluation, checks)
has wire bytes under its own name, and ``total_wire_bytes`` is the sum of all of them: the number a
network interface's counter sees, TCP/IP headers aside. ``calls`` counts the collectives by purpose and
kind: what headers and latency are paid for.

``seconds`` is not counted but modelled: what the collectives would take on the network that the run names
(network/cost.py), by purpose. Collectives are taken one after the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TypeVar

Number = TypeVar("Number", int, float)

GRADIENT = "gradient"
CHECK = "check"
IN_STEPS = (GRADIENT, "signal")
PURPOSES = ("signal", "buffer", "evaluation", CHECK)


def moved_by(collective: str, world_size: int) -> float:
    """Bytes per rank and payload byte that a collective sends (ring algorithms; broadcast: mean)."""
    others = world_size - 1
    return {
        "allreduce": 2 * others / world_size,
        "allgather": float(others),
        "broadcast": others / world_size,
        "alltoall": 1.0,
    }[collective]


@dataclass
class Ledger:
    """Sums since the start of the run; checkpointed with it."""

    floats: float = 0.0
    payload_bytes: int = 0
    wire_bytes: dict[str, float] = field(default_factory=dict)  # by purpose
    payload_by_collective: dict[str, int] = field(default_factory=dict)  # gradient exchange only
    calls: dict[str, dict[str, int]] = field(default_factory=dict)  # by purpose, then collective
    moved: dict[str, dict[str, float]] = field(default_factory=dict)  # wire bytes, in the same way
    seconds: dict[str, float] = field(default_factory=dict)  # by purpose; empty without a model

    def add(
        self,
        purpose: str,
        collective: str,
        payload_bytes: int,
        world_size: int,
        seconds: float | None = None,
    ) -> None:
        """One collective in which this worker hands over ``payload_bytes``; ``seconds``: modelled."""
        if seconds is not None:
            self.seconds[purpose] = self.seconds.get(purpose, 0.0) + seconds
        moved = payload_bytes * moved_by(collective, world_size)
        self.wire_bytes[purpose] = self.wire_bytes.get(purpose, 0.0) + moved
        _add(self.calls, purpose, {collective: 1})
        _add(self.moved, purpose, {collective: moved})
        if purpose == GRADIENT:
            self.payload_bytes += payload_bytes
            before = self.payload_by_collective.get(collective, 0)
            self.payload_by_collective[collective] = before + payload_bytes

    def clear(self) -> None:
        """Forget everything."""
        self.load_state_dict(Ledger().state_dict())

    def calls_by_collective(self, purpose: str | None = None) -> dict[str, int]:
        """How many collectives of each kind there were, for one purpose or for all."""
        return _totals(self.calls, purpose)

    def moved_by_collective(self, purpose: str | None = None) -> dict[str, float]:
        """Wire bytes of each kind of collective, for one purpose or for all."""
        return _totals(self.moved, purpose)

    def of_gradients(self) -> dict[str, dict[str, int]]:
        """Of the gradient exchange, by collective: ``calls`` and ``payload_bytes``."""
        calls = self.calls_by_collective(GRADIENT)
        return {
            name: {"calls": count, "payload_bytes": self.payload_by_collective.get(name, 0)}
            for name, count in calls.items()
        }

    @property
    def step_seconds(self) -> float | None:
        """Modelled communication of all steps: gradients and signals; None without a model."""
        if not self.seconds:
            return None
        return sum(self.seconds.get(purpose, 0.0) for purpose in IN_STEPS)

    def metrics(self) -> dict[str, float]:
        """The columns of a record, all cumulative and per worker."""
        by_purpose = {f"comm/{name}_bytes": self.wire_bytes.get(name, 0.0) for name in PURPOSES}
        return {
            "comm/floats": self.floats,
            "comm/payload_bytes": self.payload_bytes,
            "comm/wire_bytes": self.wire_bytes.get(GRADIENT, 0.0),
            **by_purpose,
            "comm/total_wire_bytes": sum(self.wire_bytes.values()),
        }

    def state_dict(self) -> dict[str, object]:
        return asdict(self)

    def load_state_dict(self, state: dict[str, object]) -> None:
        for name, value in state.items():
            setattr(self, name, value)


def _add(sums: dict[str, dict[str, Number]], purpose: str, more: Mapping[str, Number]) -> None:
    own = sums.setdefault(purpose, {})
    for collective, number in more.items():
        own[collective] = own[collective] + number if collective in own else number


def _totals(sums: dict[str, dict[str, Number]], purpose: str | None) -> dict[str, Number]:
    totals: dict[str, dict[str, Number]] = {}
    for name, counted in sums.items():
        if purpose in (None, name):
            _add(totals, "", counted)
    return totals.get("", {})
