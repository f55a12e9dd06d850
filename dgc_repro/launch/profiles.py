"""Networks in files: ``network=<name>`` of conf/network, ``network=<path>.yaml``, or a name that
``calibrate`` has written under ``<paths.runs>/networks/``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from hydra.core.config_store import ConfigStore

from dgc_repro.errors import UserError
from dgc_repro.launch.components import component
from dgc_repro.launch.paths import option, options
from dgc_repro.launch.typed import nearest

KEY = "network="
TARGET = "_target_"
FOLDER = "networks"


def with_profiles(overrides: Sequence[str]) -> list[str]:
    """The overrides, with a file of ``network=<file>`` as a member of the group. Raises UserError."""
    runs = [Path(o.partition("=")[2]) for o in overrides if o.startswith("paths.runs=")]
    found = []
    for override in overrides:
        chosen = override.removeprefix(KEY) if override.startswith(KEY) else ""
        path = _file(chosen, (runs or [Path("runs")])[-1]) if chosen else None
        found.append(override if path is None else f"{KEY}{_member(path)}")
    return found


def read_profile(path: Path) -> dict[str, Any]:
    """A profile's settings, checked. Raises UserError."""
    try:
        written = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"network: cannot read {path} ({error.strerror})") from error
    except yaml.YAMLError as error:
        raise UserError(f"network: {path} is no YAML ({' '.join(str(error).split())})") from error
    if not isinstance(written, dict):
        raise UserError(f"network: {path} holds no profile; write one as conf/network/*.yaml are")
    settings = {key: value for key, value in written.items() if key != TARGET}
    component({TARGET: "dgc_repro.network.profile.Network", **settings}, "network")
    return settings


def _file(chosen: str, runs: Path) -> Path | None:
    """The file that is meant; None for a member of conf/network, and for what only Hydra can read."""
    known = options("network")
    if chosen in known or "," in chosen or "(" in chosen:
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
    name = f"file_{re.sub(r'[^A-Za-z0-9]', '_', str(path))}"
    settings = option("network", "none") | read_profile(path)
    ConfigStore.instance().store(name, settings, group="network")
    return name
