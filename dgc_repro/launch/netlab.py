"""``launch=netlab``: the ranks of a run in a lab of shaped links, one namespace a worker.

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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from dgc_repro.errors import UserError
from dgc_repro.launch.components import component
from dgc_repro.launch.identity import config_hash
from dgc_repro.launch.local import POLL_SECONDS, Ranks, execute, rank_variables
from dgc_repro.launch.netlab_config import CONTROL, FACTS, rates_at, rates_of
from dgc_repro.launch.networks import network_of
from dgc_repro.launch.rendezvous import HAS_STORE
from dgc_repro.launch.worker import FAILURE_FILE, leave_line
from dgc_repro.network.lab import Lab, clean
from dgc_repro.network.profile import Network
from dgc_repro.network.units import seconds

PORT = 29500  # of the store on worker 0: in a namespace of its own all ports are free


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

    def __init__(self, lab: Lab, network: Network, folder: Path, log: IO[bytes]) -> None:
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
