"""``launch=netlab``: the ranks of a run in a lab of shaped links, one network namespace a worker.

Ranks are started, waited for and stopped as with ``launch=local`` (launch/local.py), but rank 0 hosts the
store, so that only the ranks communicate in the lab. Each namespace has all ports for itself.

Rates that change during a run (``network.schedule``) are changed between two steps: all ranks wait at a
barrier, rank 0 asks through a pipe, the launcher answers when the rates are set, and the ranks go on
after a second barrier. So a rate holds from exactly its step on, on all links.
"""

from __future__ import annotations

import functools
import json
import os
import select
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from dgc_repro.errors import UserError
from dgc_repro.launch.components import component
from dgc_repro.launch.identity import config_hash
from dgc_repro.launch.local import (
    FAILURE_FILE,
    HAS_STORE,
    POLL_SECONDS,
    Ranks,
    execute,
    leave_line,
    rank_variables,
)
from dgc_repro.launch.networks import network_of
from dgc_repro.launch.sections import NETLAB
from dgc_repro.network.lab import Lab, check_rates, clean
from dgc_repro.network.profile import Network
from dgc_repro.network.units import seconds
from dgc_repro.train.meter import Meter, NoMeter

FACTS, CONTROL = "DGC_REPRO_LAB_FACTS", "DGC_REPRO_LAB_CONTROL"
PORT = 29500  # of the store on worker 0: in a namespace of its own all ports are free


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


def execute_netlab(config: Mapping[str, Any], folder: Path) -> None:
    """Run to the end in a lab that is made for it. Raises UserError, RunFailed or RunStopped."""
    network, workers = network_of(config), config["launch"]["workers"]
    rates = rates_of(network, workers)
    if config["dataset"].get("root", "") is None:
        component(config["dataset"], "dataset").load()  # a lab has no way out for a download
    latency = seconds("latency", network.latency)
    with Lab(rates, latency, network.loss, config_hash(config)) as lab:
        execute(config, folder, functools.partial(LabRanks, lab, network))


class LabRanks(Ranks):
    """The ranks of a run, one in each namespace of a lab; rank 0 hosts the store."""

    def __init__(self, lab: Lab, network: Network, folder: Path, log: TextIO) -> None:
        super().__init__(folder, log, len(lab.rates))
        self.lab = lab
        self.network = network
        self.first_rates = lab.rates
        self.pipes: tuple[int, ...] = ()

    def run(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start all ranks and wait until all have ended."""
        self.pipes = (*os.pipe(), *os.pipe())  # rank 0 asks for the rates of a step; the answer
        try:
            super().run(command, environment)
        finally:
            for descriptor in self.pipes:
                os.close(descriptor)

    def popen(
        self, rank: int, command: Sequence[str], environment: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        """Start one rank in its namespace."""
        _, ask, answer, _ = self.pipes
        controls = rank == 0 and bool(self.network.changes())
        place = {
            "GLOO_SOCKET_IFNAME": self.lab.interface,
            # Off: warnings of the store, since a lab resolves no host names.
            "TORCH_CPP_LOG_LEVEL": os.environ.get("TORCH_CPP_LOG_LEVEL", "ERROR"),
            FACTS: json.dumps({"facts": self.lab.facts(), "notes": self.lab.notes}),
            **rank_variables(rank, self.workers, self.lab.address(0), PORT),
            HAS_STORE: "False",
            **({CONTROL: f"{ask},{answer}"} if controls else {}),
        }
        return self.lab.popen(
            rank,
            command,
            env={**environment, **place},
            stderr=self.log,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=(ask, answer) if controls else (),
        )

    def poll(self) -> bool:
        """Wait a moment, and change rates when rank 0 asks; false where the lab has lost links."""
        if lost := self.lab.lost():
            reason = f"the process that held the namespace of {lost} was ended"
            leave_line(self.folder / FAILURE_FILE, f"the lab has lost links: {reason}")
        asked, *_, answer = self.pipes
        if select.select([asked], [], [], POLL_SECONDS)[0]:
            step = int(os.read(asked, 32))
            if not lost:
                self.lab.set_rates(rates_at(self.network, self.first_rates, step))
            os.write(answer, b"\n")
        return not lost


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
    if config["launch"]["kind"] != NETLAB:
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


def command(arguments: Sequence[str]) -> None:
    """``python -m dgc_repro netlab clean``. Raises UserError for anything else."""
    if {"-h", "--help"} & set(arguments):
        print("usage: python -m dgc_repro netlab clean\n\nRemoves labs that ended runs have left.")
        return
    if list(arguments) != ["clean"]:
        given = " ".join(arguments) or "nothing"
        raise UserError(f"netlab: python -m dgc_repro netlab clean, got {given}")
    removed = clean()
    for one in removed:
        print(f"removed {one.lab}: {one.namespaces} namespaces, {one.processes} processes")
    if not removed:
        print("no lab is left over")
