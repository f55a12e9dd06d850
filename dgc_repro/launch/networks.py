"""The network that a config names, as costs of collectives; and networks in files: ``network=<name>`` of
conf/network, ``network=<path>.yaml``, or a name that ``calibrate`` has written under
``<paths.runs>/networks/``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore

from dgc_repro import files
from dgc_repro.errors import UserError
from dgc_repro.exchange.collective import Cost
from dgc_repro.launch.components import component
from dgc_repro.launch.paths import PROVIDER, option, options
from dgc_repro.launch.typed import nearest
from dgc_repro.network.cost import Costs
from dgc_repro.network.profile import Network

Config = Mapping[str, Any]
KEY = "network="
TARGET = "_target_"
FOLDER = "networks"


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

    def seconds(collective: str, payload_bytes: int) -> float:
        since = max(since for since in by_rate if since <= step())
        return by_rate[since].seconds(collective, scale * payload_bytes)

    return seconds


def with_profiles(overrides: Sequence[str]) -> list[str]:
    """The overrides, with a file of ``network=<file>`` as a member of the group. Raises UserError."""
    runs = [Path(o.partition("=")[2]) for o in overrides if o.startswith("paths.runs=")]
    found = []
    for override in overrides:
        chosen = override.removeprefix(KEY)
        if chosen == override or set("([{'") & set(chosen):  # another key, or what only Hydra reads
            found.append(override)
            continue
        paths = {name: _file(name, (runs or [Path("runs")])[-1]) for name in chosen.split(",")}
        members = [name if path is None else _member(path) for name, path in paths.items()]
        found.append(KEY + ",".join(members))
    return found


def read_profile(path: Path) -> dict[str, Any]:
    """A profile's settings, checked. Raises UserError."""
    try:
        written = files.parsed_yaml(files.text(path.resolve()))
    except OSError as error:
        raise UserError(f"network: cannot read {path} ({error.strerror})") from error
    except ValueError as error:
        raise UserError(f"network: {path} is no YAML ({' '.join(str(error).split())})") from error
    if not isinstance(written, dict):
        raise UserError(f"network: {path} holds no profile; write one as conf/network/*.yaml are")
    settings = {key: value for key, value in written.items() if key != TARGET}
    component({TARGET: "dgc_repro.network.profile.Network", **settings}, "network")
    return settings


def _file(chosen: str, runs: Path) -> Path | None:
    """The file that is meant; None for a member of conf/network."""
    known = options("network")
    if chosen in known or not chosen:
        return None
    if chosen.endswith((".yaml", ".yml")):
        if not Path(chosen).is_file():
            raise UserError(f"network: no file {chosen}; python -m dgc_repro calibrate writes one")
        return Path(chosen)
    path = runs / FOLDER / f"{chosen}.yaml"
    if path.is_file():
        return path
    own = sorted(path.stem for path in (runs / FOLDER).glob("*.yaml"))
    raise UserError(f"network: no {chosen!r}; {nearest(chosen, [*known, *own])}")


def _member(path: Path) -> str:
    """The name under which Hydra finds the file's settings from now on."""
    name = re.sub(r"[^A-Za-z0-9]", "_", str(path))
    settings = option("network", "none") | read_profile(path)
    ConfigStore.instance().store(name, settings, "network", provider=PROVIDER)
    return name
