"""Overrides and settings: what Hydra takes for granted of overrides, checked before it composes anything, and
settings of a config to the dataclass that they are for. Messages name the config's key. Needs no torch.

``network=<name>`` names a member of conf/network, a file ``<path>.yaml``, or a file that ``calibrate`` has
written under ``<paths.runs>/networks/``.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from hydra import compose
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Sweep, ValueType
from hydra.errors import HydraException, OverrideParseException
from omegaconf import DictConfig, OmegaConf

from dgc_repro import files
from dgc_repro.checked import refuse
from dgc_repro.errors import UserError
from dgc_repro.launch.paths import (
    PROVIDER,
    composing,
    config_loader,
    flat_keys,
    is_group,
    option,
    options,
)
from dgc_repro.names import renamed
from dgc_repro.network.profile import Network

T = TypeVar("T")
NOT_KEYS = ("hydra", "paper", "queue", "wandb")
"""Files and groups of configs whose names are not keys of a run."""
OF_SWEEPS = ("hydra", "optimized_metric")
"""Config keys that are not settings of a run."""
EXTRAS = {
    **dict.fromkeys(("joblib", "optuna"), "sweep"),
    **dict.fromkeys(("submitit_local", "submitit_slurm"), "slurm"),
}
"""By the name of a Hydra plugin, the extra that installs it."""
TARGET = "_target_"
NETWORK, NETWORKS = "network=", "networks"
"""The override that chooses a network, and the folder below paths.runs with files of networks."""


# -- settings --


def nearest(name: str, known: Iterable[str], shown: Sequence[str] | None = None) -> str:
    """A clause that names the likeliest intended name; without one, all of them or those that are
    ``shown``."""
    choices = sorted(known)
    close = difflib.get_close_matches(name, choices, n=1, cutoff=0.5)
    if close:
        return f"did you mean {close[0]}?"
    return f"there are: {', '.join(choices if shown is None else shown) or 'none'}"


def nearest_key(key: str, known: Iterable[str]) -> str:
    """A clause that names the likeliest intended one of many keys, or the three that are most like it."""
    choices = sorted(known)
    alike = difflib.get_close_matches(key, choices, n=3, cutoff=0) or choices[:3]
    if difflib.get_close_matches(key, alike, cutoff=0.6):
        return f"did you mean {alike[0]}?"
    return f"the nearest keys are {', '.join(alike)}; --help lists all"


def mapping(node: Any, place: str) -> Mapping[str, Any]:
    """The node, if it has settings by name. Raises UserError otherwise."""
    if not isinstance(node, Mapping):
        raise UserError(
            f"{place}: has settings by name ({place}.<key>=<value>), got {node!r} in their place"
        )
    return node


def made(factory: type[T], node: Any, place: str) -> T:
    """The dataclass with the settings of a node. Raises UserError naming the key that is wrong."""
    settings = mapping(node, place)
    fields = {field.name: field for field in dataclasses.fields(factory) if field.init}  # type: ignore[arg-type]
    for name in settings:
        if name not in fields:
            likely = renamed(f"{place}.{name}") or nearest(str(name), fields)
            raise UserError(f"{place}.{name}: no such key; {likely}")
    for name, field in fields.items():
        has_default = not field.default is field.default_factory is dataclasses.MISSING
        if name not in settings and not has_default:
            raise UserError(f"{place}.{name}: has no value; give one")
    try:
        refuse(factory, settings)  # a user's own dataclass may not check itself (checked.py)
        return factory(**settings)
    except UserError:
        raise
    except ValueError as error:
        raise UserError(f"{place}.{error}") from error
    except Exception as error:
        text = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"{place}: these settings do not work together ({text})") from error


# -- overrides --


def config_of(overrides: Sequence[str]) -> DictConfig:
    """The composed config, inside `composing`; networks in files are found too."""
    return compose("config", with_profiles(overrides))


def resolved(config: DictConfig) -> dict[str, Any]:
    """A run's settings in plain containers, interpolations resolved once, before any rank starts. Raises
    UserError."""
    return settled(OmegaConf.to_container(config, resolve=True, throw_on_missing=True))  # type: ignore[arg-type]


def settled(plain: dict[str, Any]) -> dict[str, Any]:
    """A run's settings without what is no setting of a run. The settings of ``model.low_rank`` are checked
    and left out where it is off. Raises UserError."""
    model = plain.get("model")
    low_rank = model.get("low_rank") if isinstance(model, dict) else None
    if isinstance(low_rank, dict) and low_rank.get("from_epoch") is None:
        from dgc_repro.model.low_rank import LowRank  # imports torch: seconds

        off = made(LowRank, low_rank, "model.low_rank")
        for field in dataclasses.fields(LowRank):
            if getattr(off, field.name) != field.default:
                raise UserError(
                    f"model.low_rank.{field.name}: does nothing without model.low_rank.from_epoch; give it, "
                    f"got {getattr(off, field.name)} alone"
                )
        del plain["model"]["low_rank"]
    return {key: value for key, value in plain.items() if key not in OF_SWEEPS}


def plain_value(config: DictConfig, key: str) -> Any:
    """The value of a key, in plain containers; None where there is none."""
    value = OmegaConf.select(config, key)
    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value


def composed(overrides: Sequence[str]) -> dict[str, Any]:
    """The resolved config of a run with these overrides. Raises what Hydra raises."""
    with composing():
        return resolved(config_of(overrides))


@functools.cache
def key_of(override: str) -> str:
    """The dotted key or group that an override sets. Raises OverrideParseException."""
    return str(OverridesParser.create().parse_override(override).key_or_group)


def sets(overrides: Sequence[str], key: str) -> bool:
    """Whether one of the overrides sets this very key."""
    return key in map(key_of, overrides)


def apart(overrides: Sequence[str], *keys: str) -> tuple[list[str], list[str]]:
    """The overrides of these keys and of the keys below them, and the others."""
    own = [o for o in overrides if any(f"{key_of(o)}.".startswith(f"{key}.") for key in keys)]
    return own, [override for override in overrides if override not in own]


def check_overrides(overrides: Sequence[str]) -> None:
    """Raise OverrideParseException for an override that Hydra cannot read, UserError for one without a key
    and for a group that is given something else than the name of a member."""
    parser = OverridesParser.create()
    for override in overrides:
        if not override.lstrip("+~").partition("=")[0].strip():
            raise UserError(f"{override}: settings are written key=value")
        try:
            read = parser.parse_override(override)
        except OverrideParseException:
            raise
        except HydraException as error:  # a character that is in no word, without the override
            raise OverrideParseException(override, str(error)) from error
        group = read.key_or_group
        if group == "hydra" and not read.is_delete():
            raise UserError(f"hydra: its settings are hydra.<key>=<value>, got {override}")
        if not is_group(group):
            continue
        if read.is_delete():
            if not isinstance(read.value(), str | None):
                raise UserError(f"{group}: ~{group} takes a name or nothing, got {override}")
            continue
        if read.value_type == ValueType.GLOB_CHOICE_SWEEP:
            continue
        given = read.value()
        if isinstance(given, dict) and given and (read.is_add() or read.is_force_add()):
            continue  # ~group +group={_target_: ...}: a component without a file
        for name in getattr(given, "list", [given]) if isinstance(given, Sweep) else [given]:
            names = name if isinstance(name, list) else [name]
            if not all(isinstance(one, str) or hasattr(one, "text") for one in names):
                raise UserError(f"{group}: a name, got {name!r}; {nearest('', options(group))}")


def in_one_line(error: Exception) -> str:
    """Hydra's and OmegaConf's complaints, with the nearest valid name."""
    text = str(error)
    if isinstance(error, OverrideParseException):
        key, reason = error.override.split("=", 1)[0].lstrip("+~"), text.partition("\n")[0]
        return f"{key}: cannot read {error.override} ({reason}); quote special characters"
    causes = " ".join(
        filter(None, (text, str(error.__cause__ or ""), str(error.__context__ or "")))
    )
    if found := re.search(r"Could not (?:find|load) '([^']+)'", text):
        group, _, name = found[1].rpartition("/")
        if group.startswith("hydra/"):
            known = re.findall(r"^\t(\w+)$", text, re.M)
            extra = f"pip install 'dgc_repro[{EXTRAS[name]}]'" if name in EXTRAS else ""
            return f"{group}: no {name!r}; {extra or nearest(name, known)}"
        return f"{group.replace('/', '.')}: no {name!r}; {nearest(name, options(group))}"
    if found := re.search(r"Could not override '([^']+)'", text):
        return f"{found[1]}: no such key; {_nearest_key(found[1])}"
    if found := re.search(r"Error merging override ([^=]+)=(.*)", text, re.S):
        key, given = found[1].lstrip("+"), " ".join(found[2].split())
        return f"{key}: takes another kind of value (a name, a number or a list), got {given}"
    if found := re.search(r"Multiple values for (\S+)\. To|already at '([^']+)'", text):
        return f"{found[1] or found[2]}: it is there already; drop the +"
    if found := re.search(r"Missing mandatory value: (\S+)", causes):
        return f"{getattr(error, 'full_key', None) or found[1]}: has no value; give one"
    return " ".join(text.split())


def _nearest_key(key: str) -> str:
    """The likeliest key; one that exists belongs to another member of its group."""
    if now := renamed(key):
        return now
    by_member = dict(_keys_by_member(config_loader()))
    group = f"{key.partition('.')[0]}="
    members = sorted(m for m, keys in by_member.items() if key in keys and m.startswith(group))
    if members:
        return f"it is a setting of {', '.join(members)}"
    groups = {member.partition("=")[0].partition("/")[0] for member in by_member} - {""}
    return nearest_key(key, [*sorted(set().union(*by_member.values())), *groups])


def _keys_by_member(loader: Any, group: str = "") -> Iterator[tuple[str, set[str]]]:
    """The dotted keys that each member of a group sets, such as ``compressor=uniform``."""
    for name in loader.get_group_options(group):
        if name not in NOT_KEYS:
            found = loader.repository.load_config(f"{group}/{name}".lstrip("/"))
            node: Any = OmegaConf.to_container(found.config, resolve=False)
            is_global = found.header.get("package") == "_global_" or not group
            prefix = "" if is_global else f"{group.replace('/', '.')}."
            yield f"{group}={name}", {*flat_keys(node, prefix)}
    for name in loader.list_groups(group):
        if name not in NOT_KEYS:
            yield from _keys_by_member(loader, f"{group}/{name}".lstrip("/"))


def known_keys() -> list[str]:
    """All dotted keys of the default config and of every group member."""
    return sorted(set().union(*(keys for _, keys in _keys_by_member(config_loader()))))


# -- networks in files --


def with_profiles(overrides: Sequence[str]) -> list[str]:
    """The overrides, with a file of ``network=<file>`` as a member of the group. Raises UserError."""
    runs = [Path(o.partition("=")[2]) for o in overrides if o.startswith("paths.runs=")]
    found = []
    for override in overrides:
        chosen = override.removeprefix(NETWORK)
        if chosen == override or set("([{'") & set(chosen):  # another key, or what only Hydra reads
            found.append(override)
            continue
        paths = {name: _file(name, (runs or [Path("runs")])[-1]) for name in chosen.split(",")}
        members = [name if path is None else _member(path) for name, path in paths.items()]
        found.append(NETWORK + ",".join(members))
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
    made(Network, settings, "network")
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
    path = runs / NETWORKS / f"{chosen}.yaml"
    if path.is_file():
        return path
    own = sorted(path.stem for path in (runs / NETWORKS).glob("*.yaml"))
    raise UserError(f"network: no {chosen!r}; {nearest(chosen, [*known, *own])}")


def _member(path: Path) -> str:
    """The name under which Hydra finds the file's settings from now on."""
    name = re.sub(r"[^A-Za-z0-9]", "_", str(path))
    settings = option("network", "none") | read_profile(path)
    ConfigStore.instance().store(name, settings, "network", provider=PROVIDER)
    return name
