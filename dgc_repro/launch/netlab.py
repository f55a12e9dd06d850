"""``launch=netlab``: the ranks of a run in a lab of shaped links, one namespace a worker.

The entry of a rank is that of ``launch=local``; what torchrun sets for it is set here (RANK,
WORLD_SIZE, MASTER_ADDR: worker 0's address in the lab), and what torchrun sees to is seen to here: stop
signals, a rank that fails or is killed, the others that then wait for it. So nothing but the ranks
talks in the lab, and each namespace has all ports for itself.

Rates that change during a run (``network.schedule``) are changed between two steps: all ranks wait at a
barrier, rank 0 asks through a pipe, the launcher answers when the rates are set, and the ranks go on
after a second barrier. So a rate holds from exactly its step on, on all links.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from dgc_repro.errors import UserError
from dgc_repro.launch.components import component
from dgc_repro.launch.identity import config_hash
from dgc_repro.launch.local import LEFT_BEHIND_SECONDS, execute, passed_on
from dgc_repro.launch.netlab_config import CONTROL, FACTS, network_of, rates_at, rates_of
from dgc_repro.launch.worker import FAILURE_FILE, FINISHED, STOPPED, leave_line
from dgc_repro.network.lab import Lab, clean
from dgc_repro.network.profile import Network
from dgc_repro.network.units import seconds

PORT = 29500  # of the store on worker 0: in a namespace of its own all ports are free
LOOK_EVERY_SECONDS = 0.05
GRACE_SECONDS = 30.0  # that ranks have to find out that one has failed, and to say so


def execute_in_lab(config: Mapping[str, Any], folder: Path) -> None:
    """Run to the end in a lab that is made for it. Raises UserError, RunFailed or RunStopped."""
    network, workers = network_of(config), config["launch"]["workers"]
    rates = rates_of(network, workers)
    if config["dataset"].get("root", "") is None:
        component(config["dataset"], "dataset").load()  # what is downloaded: no way out of a lab
    lab = Lab(rates, seconds("latency", network.latency), network.loss, config_hash(config))
    with lab:

        def see_through(
            command: list[str], log: IO[bytes], environment: Mapping[str, str], folder: Path
        ) -> tuple[int | None, int]:
            return Ranks(lab, network, log, folder).run(command, environment)

        execute(config, folder, see_through)


class Ranks:
    """The ranks of a run, one in each namespace of a lab."""

    def __init__(self, lab: Lab, network: Network, log: IO[bytes], folder: Path) -> None:
        self.lab = lab
        self.log = log
        self.folder = folder
        self.network = network
        self.first_rates = lab.rates
        self.processes: list[subprocess.Popen[bytes]] = []

    def run(self, command: Sequence[str], environment: Mapping[str, str]) -> tuple[int | None, int]:
        """Start them and wait for all. The signal that stopped them, or None; the exit code."""
        asks, asked = os.pipe()  # rank 0 asks for the rates of a step
        answered, answers = os.pipe()
        try:
            with passed_on(self.processes) as caught:
                for rank in range(len(self.lab.rates)):
                    control = (
                        {CONTROL: f"{asked},{answered}"}
                        if rank == 0 and self.network.changes()
                        else {}
                    )
                    self.processes.append(
                        self.lab.popen(
                            rank,
                            command,
                            env={**environment, **self._environment(rank), **control},
                            stderr=self.log,
                            stdin=subprocess.DEVNULL,
                            start_new_session=True,
                            pass_fds=(asked, answered) if control else (),
                        )
                    )
                    if caught:  # while the ranks were started
                        self.processes[-1].send_signal(signal.SIGTERM)
                self._wait(asks, answers)
        finally:
            for descriptor in (asks, asked, answered, answers):
                os.close(descriptor)
        return (caught[0] if caught else None), self._code()

    def _environment(self, rank: int) -> dict[str, str]:
        """What torchrun tells a rank, and the interface to use."""
        workers = str(len(self.lab.rates))
        return {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": workers,
            "LOCAL_WORLD_SIZE": workers,
            "MASTER_ADDR": self.lab.address(0),
            "MASTER_PORT": str(PORT),
            "GLOO_SOCKET_IFNAME": self.lab.interface,
            # Of the store's warnings: there is nobody in a lab who knows host names.
            "TORCH_CPP_LOG_LEVEL": os.environ.get("TORCH_CPP_LOG_LEVEL", "ERROR"),
            FACTS: json.dumps({"facts": self.lab.facts(), "notes": self.lab.notes}),
        }

    def _wait(self, asks: int, answers: int) -> None:
        """Until all have ended, changing rates when asked. Once a rank has failed or links are lost, the
        others are told to stop, and killed where they hang."""
        first: tuple[int, int] | None = None
        lost: str | None = None
        failed_at = 0.0
        while any(process.poll() is None for process in self.processes):
            if not (first or lost) and (lost := self.lab.lost()):
                leave_line(
                    self.folder / FAILURE_FILE,
                    f"the lab has lost links: the process that held the namespace of {lost} was ended",
                )
                failed_at = time.monotonic()
                self._signal(signal.SIGTERM)
            ready, _, _ = select.select([asks], [], [], LOOK_EVERY_SECONDS)
            if ready:
                step = int(os.read(asks, 32))
                if not lost:
                    self._change(step)
                os.write(answers, b"\n")
            if not (first or lost) and (first := self._failure()):
                failed_at = time.monotonic()
                self._signal(signal.SIGTERM)
            if (first or lost) and time.monotonic() > failed_at + self._patience():
                self._signal(signal.SIGKILL)
        if not lost and (first or (first := self._failure())):
            self.log.write(report(*first).encode())
            self.log.flush()

    def _patience(self) -> float:
        """Seconds that ranks have to end by themselves: few when one of them has said what was wrong."""
        has_said = (self.folder / FAILURE_FILE).is_file()
        return LEFT_BEHIND_SECONDS + (0 if has_said else GRACE_SECONDS)

    def _failure(self) -> tuple[int, int] | None:
        """A rank that has failed and its exit code: one that was killed before those that miss it."""
        codes = [(process.poll(), rank) for rank, process in enumerate(self.processes)]
        failed = [(code, rank) for code, rank in codes if code not in (None, FINISHED, STOPPED)]
        if not failed:
            return None
        code, rank = min(failed, key=lambda found: (found[0] >= 0, found[1]))
        return rank, code

    def _code(self) -> int:
        """As torchrun's: 0 if all ranks have finished."""
        return int(any(process.returncode != FINISHED for process in self.processes))

    def _signal(self, number: int) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(number)

    def _change(self, step: int) -> None:
        """The rates that hold from a step on."""
        self.lab.set_rates(rates_at(self.network, self.first_rates, step))


def report(rank: int, code: int) -> str:
    """What torchrun says of the rank that failed first, in its words: local.what_failed reads them."""
    return (
        "\nRoot Cause (first observed failure):\n"
        f"  rank      : {rank} (local_rank: {rank})\n  exitcode  : {code} (pid: unknown)\n"
    )


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
    with contextlib.suppress(OSError):
        sys.stdout.flush()
