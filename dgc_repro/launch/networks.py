"""The network of a run: what its collectives cost by the model, or a lab of shaped links (``launch=netlab``).

In a lab each rank has a network namespace of its own. launch/ranks.py starts, waits for and stops the ranks.
Rank 0 hosts the store, because nothing outside can reach a lab, and changes rates that change during the run
(`Schedule`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dgc_repro.errors import UserError
from dgc_repro.exchange.collective import Cost
from dgc_repro.launch.settings import NETLAB, component
from dgc_repro.network.cost import Costs
from dgc_repro.network.lab import Lab, check_rates, links_here
from dgc_repro.network.profile import Network
from dgc_repro.network.units import seconds
from dgc_repro.train.meter import Meter

Config = Mapping[str, Any]


def network_of(config: Config) -> Network:
    """The network that the config describes. Raises UserError."""
    network: Network = component(config["network"], "network")
    return network


def named_network(config: Config) -> Network | None:
    """The network of a run; None where no rate is given. Raises UserError."""
    network = network_of(config)
    return network if network.known else None


def costs(network: Network, workers: int, step: int = 0) -> Costs:
    """Of collectives between so many workers. Raises UserError naming the network's key."""
    try:
        return Costs(network, workers, step=step)
    except ValueError as error:
        raise UserError(f"network.{error}") from error


def modelled(config: Config, step: Callable[[], int]) -> Cost | None:
    """What collectives cost on the network that a config names; None where it names none. A network may have
    the run stand for another one, of more workers and longer messages. ``step``: of the run, now. Raises
    UserError where network and workers do not fit."""
    network = named_network(config)
    if network is None:
        return None
    workers, scale = network.as_workers or config["launch"]["workers"], network.message_scale
    changes = (0, *(since for since, _ in network.changes()))
    by_rate = {since: costs(network, workers, since) for since in changes}

    def cost(collective: str, payload_bytes: int) -> float:
        since = max(since for since in by_rate if since <= step())
        return by_rate[since].seconds(collective, scale * payload_bytes)

    return cost


def rates_of(network: Network, workers: int) -> list[float]:
    """Rates of a lab, the schedule's checked too. Raises UserError."""
    try:
        field = "rate" if network.rates is None else "rates"
        check_rates("schedule", [rate for _, rate in network.changes()] or [1e9])
        return check_rates(field, network.worker_rates(workers))
    except ValueError as error:
        raise UserError(f"network.{error}") from error


def lab_of(config: Config) -> Lab:
    """Make the lab of a run. Raises UserError."""
    network = network_of(config)
    rates = rates_of(network, config["launch"]["workers"])
    if config["dataset"].get("root", "") is None:
        component(config["dataset"], "dataset").load()  # a lab has no way out for a download
    return Lab(rates, seconds("latency", network.latency), network.loss)


class Schedule:
    """The rates of ``network.schedule``: all ranks call `before` before each step, wait at a barrier, rank 0
    changes the rates of all links, and the ranks go on after a second barrier. So a rate holds from exactly
    its step on. Outside a lab nothing happens."""

    def __init__(
        self, config: Config, rank: int, barrier: Callable[[], None], meter: Meter
    ) -> None:
        """``meter``: stopped while rates change, since their barriers belong to no exchange."""
        in_a_lab = config["launch"]["kind"] == NETLAB
        self.changes = dict(network_of(config).changes()) if in_a_lab else {}
        self._links = links_here() if self.changes and rank == 0 else None
        self._barrier = barrier
        self._meter = meter

    def before(self, step: int, *, first: bool = False) -> None:
        """``first``: of this process, which may go on from a checkpoint behind a change."""
        passed = [since for since in self.changes if since <= step]
        if not passed or (step not in passed and not first):
            return
        if not first:  # then nothing has been started
            self._meter.stop()
        self._barrier()
        if self._links is not None:
            self._links.set_rates([self.changes[max(passed)]] * len(self._links.rates))
        self._barrier()
        if not first:
            self._meter.start()
