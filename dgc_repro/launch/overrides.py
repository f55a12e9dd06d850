"""What Hydra takes for granted of overrides, checked before it composes anything."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any

from hydra import compose
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Sweep, ValueType
from hydra.errors import HydraException, OverrideParseException
from omegaconf import DictConfig, OmegaConf

from dgc_repro.errors import UserError
from dgc_repro.launch.networks import with_profiles
from dgc_repro.launch.paths import composing, config_loader, flat_keys, is_group, options
from dgc_repro.launch.typed import made, nearest, nearest_key
from dgc_repro.model.low_rank import LowRank
from dgc_repro.names import renamed

NOT_KEYS = ("hydra", "paper", "queue", "wandb")
"""Files and groups of configs whose names are not keys of a run."""
OF_SWEEPS = ("hydra", "optimized_metric")
"""Config keys that are not settings of a run."""
EXTRAS = {
    **dict.fromkeys(("joblib", "optuna"), "sweep"),
    **dict.fromkeys(("submitit_local", "submitit_slurm"), "slurm"),
}
"""By the name of a Hydra plugin, the extra that installs it."""


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
        off = made(LowRank, low_rank, "model.low_rank")
        for field in fields(LowRank):
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
