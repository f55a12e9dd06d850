"""Networks in files: ``network=<name>`` of conf/network, ``network=<path>.yaml``, or a name that
``calibrate`` has written under ``<paths.runs>/networks/``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from dgc_repro.errors import UserError
from dgc_repro.launch.components import component
from dgc_repro.launch.paths import options
from dgc_repro.launch.typed import nearest

KEY = "network="
TARGET = "_target_"
FOLDER = "networks"


def with_profiles(arguments: Sequence[str]) -> list[str]:
    """The overrides, with ``network=<file>`` replaced by what the file says, one key after another, so
    that a later ``network.rate=...`` wins. Raises UserError."""
    found: list[str] = []
    for argument in arguments:
        chosen = argument.removeprefix(KEY) if argument.startswith(KEY) else ""
        path = _file(chosen, _runs(arguments)) if chosen else None
        found += [argument] if path is None else _overrides(path)
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
    stated = {TARGET: "dgc_repro.network.profile.Network"} | written
    component(stated, "network")
    return {key: value for key, value in written.items() if key != TARGET}


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


def _runs(arguments: Sequence[str]) -> Path:
    given = [a.partition("=")[2] for a in arguments if a.startswith("paths.runs=")]
    return Path(given[-1]) if given else Path("runs")


def _overrides(path: Path) -> list[str]:
    settings = read_profile(path)
    return ["network=none", *(f"network.{key}={quoted(value)}" for key, value in settings.items())]


def quoted(value: Any) -> str:
    """A value as Hydra's grammar reads it."""
    match value:
        case None:
            return "null"
        case bool() | int() | float():
            return str(value).lower()
        case Mapping():
            return "{" + ",".join(f"{key}:{quoted(entry)}" for key, entry in value.items()) + "}"
        case list() | tuple():
            return "[" + ",".join(quoted(entry) for entry in value) + "]"
    text = str(value).replace("\\", "\\\\").replace("'", "\\'")
    return f"'{text}'"
