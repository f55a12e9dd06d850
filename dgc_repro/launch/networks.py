"""The network that a config names, as costs of collectives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dgc_repro.errors import UserError
from dgc_repro.exchange.wire import Cost
from dgc_repro.launch.components import component
from dgc_repro.network.cost import Costs
from dgc_repro.network.profile import Network

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


def refuse_lost_packets(config: Config) -> None:
    """Raise UserError for loss outside a lab: nothing loses packets there, the model neither."""
    loss, kind = config["network"].get("loss"), config["launch"]["kind"]
    if loss and kind != "netlab":
        raise UserError(
            f"network.loss: only a lab loses packets, launch={kind} and the model do not; use "
            f"launch=netlab or network.loss=0, got {loss}"
        )


def refuse_stand_ins(config: Config, who: str) -> None:
    """Raise UserError where a network says that a run stands for another one, and nothing is modelled for
    one run alone: ``who``, in words."""
    network = named_network(config)
    if network is not None and network.stands_in:
        key = "message_scale" if network.as_workers is None else "as_workers"
        raise UserError(
            f"network.{key}: is for a run's modelled time alone, {who}; leave it out, got "
            f"{getattr(network, key)}"
        )


class Modelled:
    """Costs for the links of a run: between all workers, between nodes, inside a node. A network may have
    the run stand for another one, of more workers and longer messages."""

    def __init__(self, config: Config, step: Callable[[], int]) -> None:
        """``step``: of the run, now. Raises UserError where network and workers do not fit."""
        self._network = named_network(config)
        stated = self._network.as_workers if self._network is not None else None
        self._workers = stated or config["launch"]["workers"]
        self._node_size = config["launch"]["workers_per_node"] or 1
        self._step = step
        self._by_rate: dict[int, tuple[Costs, Costs, Costs]] = {}
        if self._network is not None:
            self._changes = [0, *(step for step, _ in self._network.changes())]
            for since in self._changes:
                self._by_rate[since] = self._of(since)

    def between_all(self) -> Cost | None:
        """Of a link between all workers; None where no network is named."""
        return self._cost(0)

    def between_nodes(self) -> Cost | None:
        return self._cost(1)

    def inside_node(self) -> Cost | None:
        return self._cost(2)

    def _cost(self, which: int) -> Cost | None:
        if self._network is None:
            return None
        scale = self._network.message_scale

        def seconds(collective: str, payload_bytes: int) -> float:
            since = max(step for step in self._changes if step <= self._step())
            return self._by_rate[since][which].seconds(collective, scale * payload_bytes)

        return seconds

    def _of(self, step: int) -> tuple[Costs, Costs, Costs]:
        assert self._network is not None
        everybody = costs(self._network, self._workers, step)
        try:
            if self._node_size == 1:  # nothing is inside a node; rates may be one for each worker
                return everybody, everybody, everybody
            return (
                everybody,
                everybody.between(self._node_size),
                everybody.inside(self._node_size),
            )
        except ValueError as error:
            raise UserError(f"launch.{error}") from error
