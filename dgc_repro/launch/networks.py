"""The network that a config names, as costs of collectives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

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


class Modelled(NamedTuple):
    """Costs for the links of a run: between all workers, between nodes, inside a node; None where no network
    is named."""

    between_all: Cost | None = None
    between_nodes: Cost | None = None
    inside_node: Cost | None = None


def modelled(config: Config, step: Callable[[], int]) -> Modelled:
    """A network may have the run stand for another one, of more workers and longer messages. ``step``: of
    the run, now. Raises UserError where network and workers do not fit."""
    network = named_network(config)
    if network is None:
        return Modelled()
    workers = network.as_workers or config["launch"]["workers"]
    node_size = config["launch"]["workers_per_node"] or 1
    scale = network.message_scale
    by_rate: dict[int, tuple[Costs, Costs, Costs]] = {}
    for since in (0, *(since for since, _ in network.changes())):
        everybody = costs(network, workers, since)
        try:  # with nothing inside a node, rates may be one for each worker
            inside = everybody if node_size == 1 else everybody.inside(node_size)
            by_rate[since] = (everybody, everybody.between(node_size), inside)
        except ValueError as error:
            raise UserError(f"launch.{error}") from error

    def cost(which: int) -> Cost:
        def seconds(collective: str, payload_bytes: int) -> float:
            since = max(since for since in by_rate if since <= step())
            return by_rate[since][which].seconds(collective, scale * payload_bytes)

        return seconds

    return Modelled(*map(cost, range(3)))
