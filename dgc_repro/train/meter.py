"""The ledger beside an interface: both are read at the same points, so that they can be compared.

Read are training steps and evaluation; the starts of a run, checkpoints and changes of the lab's
rates (launch/networks.py, `Schedule.before`) lie outside, between `stop` and `start`. Each is a barrier
and then a reading, so that nothing of what the ledger has counted is still on its way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from dgc_repro.exchange.world import World
from dgc_repro.network import counters
from dgc_repro.network.counters import PACKET_HEADER, Counters, handed_over

Reader = Callable[[str], Counters]


class Meter:
    """What the loop calls, on all ranks together. This one counts nothing."""

    def start(self) -> None:
        """Count from here on."""

    def stop(self) -> None:
        """Count no more; the sums are agreed."""

    def metrics(self) -> dict[str, float]:
        """The columns of a record, cumulative: bytes and packets a worker, the mean over workers."""
        return {}

    def state_dict(self) -> dict[str, float]:
        return {}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Go on from saved sums."""


class NoMeter(Meter):
    """Where there is no interface to read."""


class InterfaceMeter(Meter):
    """Reads one interface of this worker; the numbers are means over all workers."""

    def __init__(self, world: World, interface: str, read: Reader = counters.read) -> None:
        self._world = world
        self._interface = interface
        self._read = read
        self._sums = dict.fromkeys(("tx_bytes", "rx_bytes", "tx_packets", "expected_tx_bytes"), 0.0)
        self._since: tuple[Counters, float] | None = None

    def start(self) -> None:
        self._world.barrier("of the meter")
        self._since = self._read(self._interface), self._handed_over()

    def stop(self) -> None:
        if self._since is None:
            return
        self._world.barrier("of the meter")
        before, handed_over = self._since
        counted = self._read(self._interface) - before
        self._since = None
        expected = self._handed_over() - handed_over + PACKET_HEADER * counted.tx_packets
        found = [counted.tx_bytes, counted.rx_bytes, counted.tx_packets, expected]
        # Past the ledger: it is not read now either.
        sums = self._world.share(torch.tensor(found, dtype=torch.float64), purpose=None)
        for name, value in zip(self._sums, sums, strict=True):
            self._sums[name] += value / self._world.size

    def metrics(self) -> dict[str, float]:
        return {f"net/{name}": value for name, value in self._sums.items()}

    def state_dict(self) -> dict[str, float]:
        return dict(self._sums)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._sums.update(state)

    def _handed_over(self) -> float:
        """Bytes for all that the ledger has, since the start of the run, without headers of packets."""
        ledger = self._world.ledger
        return sum(
            handed_over(ledger.moved_by_collective(purpose), calls, self._world.size)
            for purpose, calls in ledger.calls.items()
        )
