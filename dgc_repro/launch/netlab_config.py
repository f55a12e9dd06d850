"""The netlab settings of a config (see launch/netlab.py), and the code that a rank runs inside a lab."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dgc_repro.errors import UserError
from dgc_repro.launch.networks import network_of
from dgc_repro.network.lab import check_rates
from dgc_repro.network.profile import Network
from dgc_repro.train.meter import Meter, NoMeter

KIND = "netlab"
FACTS, CONTROL = "DGC_REPRO_LAB_FACTS", "DGC_REPRO_LAB_CONTROL"


def validate_lab(config: Mapping[str, Any]) -> None:
    """Raise UserError unless a lab can have what the config asks for; makes none."""
    launch, network = config["launch"], network_of(config)
    if not network.known:
        raise UserError(
            "network.rate: launch=netlab needs one, such as network.rate=100mbit or "
            "network=ethernet_1gbit"
        )
    if (launch["workers_per_node"] or 1) > 1:
        raise UserError(
            "launch.workers_per_node: a lab gives every worker a link of its own; use null, or "
            "launch=simulated and the model"
        )
    if network.workers_per_node is not None:
        raise UserError(
            "network.workers_per_node: a lab has one level of links; use a network without, or "
            "launch=simulated and the model"
        )
    if launch["backend"] == "nccl":
        raise UserError(
            "launch.backend: nccl would go past the lab's links on one machine; use gloo"
        )
    mirror = config["sink"]["mirror"]
    if mirror and mirror.get("mode") == "online":
        raise UserError("sink.mode: there is no way out of a lab; use offline and sync later")
    rates_of(network, launch["workers"])


def rates_of(network: Network, workers: int) -> list[float]:
    """Rates of a lab, the schedule's checked too. Raises UserError."""
    try:
        field = "rate" if network.rates is None else "rates"
        check_rates("schedule", [rate for _, rate in network.changes()] or [1e9])
        return check_rates(field, network.worker_rates(workers))
    except ValueError as error:
        raise UserError(f"network.{error}") from error


def rates_at(network: Network, first: Sequence[float], step: int) -> list[float]:
    """Rates that hold at a step of a run whose lab was made with ``first``."""
    rates = list(first)
    for since, rate in network.changes():
        if since <= step:
            rates = [rate] * len(rates)
    return rates


@dataclass
class Schedule:
    """A rank's side of the rates that change: `before` is called by all ranks before each step.

    ``meter``: stopped while rates change, since their barriers belong to no exchange."""

    steps: frozenset[int]
    barrier: Callable[[], None]
    meter: Meter = field(default_factory=NoMeter)
    ask: int | None = None  # rank 0's ends of the pipes
    answer: int | None = None

    def before(self, step: int, *, first: bool = False) -> None:
        """``first``: of this process, which may go on from a checkpoint behind a change."""
        if not self.steps or (step not in self.steps and not first):
            return
        if not first:  # then nothing has been started
            self.meter.stop()
        self.barrier()
        if self.ask is not None and self.answer is not None:
            os.write(self.ask, f"{step}".encode())
            if not os.read(self.answer, 1):
                raise RuntimeError("the launcher of the lab is gone")
        self.barrier()
        if not first:
            self.meter.start()


def schedule_of(config: Mapping[str, Any], barrier: Callable[[], None], meter: Meter) -> Schedule:
    """What this rank has to do for ``network.schedule``: nothing outside a lab."""
    if config["launch"]["kind"] != KIND:
        return Schedule(frozenset(), barrier, meter)
    steps = frozenset(step for step, _ in network_of(config).changes())
    return Schedule(steps, barrier, meter, *pipes())


def pipes() -> list[int]:
    """The pipes through which rank 0 asks the launcher for rates; none on other ranks."""
    control = os.environ.get(CONTROL)
    return [int(descriptor) for descriptor in control.split(",")] if control else []


def lab_facts() -> tuple[dict[str, Any], list[str]]:
    """Of the lab, from the launcher: facts for the record, and notes."""
    found = json.loads(os.environ.get(FACTS) or '{"facts": {}, "notes": []}')
    return found["facts"], found["notes"]
