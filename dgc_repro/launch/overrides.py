"""What Hydra takes for granted of overrides, checked before it composes anything."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterator, Sequence
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Sweep, ValueType
from hydra.errors import HydraException, OverrideParseException
from omegaconf import DictConfig, OmegaConf

from dgc_repro.errors import UserError
from dgc_repro.launch.networks import with_profiles
from dgc_repro.launch.paths import conf_dir, conf_dirs, keys_of, options
from dgc_repro.launch.typed import nearest
from dgc_repro.names import renamed

NOT_KEYS = (
    "artifact",
    "policy_scale",
    "wandb",
)  # folders of conf/ whose names are not keys of a run


@contextlib.contextmanager
def composing() -> Iterator[None]:
    """Inside, `config_of` finds the config files."""
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        yield


def config_of(overrides: Sequence[str]) -> DictConfig:
    """The composed config; users' folders and networks in files are found too."""
    _, *added = conf_dirs()
    search = [f"hydra.searchpath=[{','.join(f'file://{folder}' for folder in added)}]"]
    return compose("config", [*(search if added else []), *with_profiles(overrides)])


def resolved(config: DictConfig) -> dict[str, Any]:
    """Plain containers, interpolations resolved once, before any rank starts."""
    plain: dict[str, Any] = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)  # type: ignore[assignment]
    plain.pop("hydra", None)
    return plain


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
        if read.is_delete() or not (conf_dir() / group).is_dir():
            continue
        if read.value_type == ValueType.GLOB_CHOICE_SWEEP:
            continue
        given = read.value()
        for name in getattr(given, "list", [given]) if isinstance(given, Sweep) else [given]:
            if not isinstance(name, str | list | dict) and not hasattr(name, "text"):
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
        return f"{group.replace('/', '.')}: no {name!r}; {nearest(name, options(group))}"
    if found := re.search(r"Could not override '([^']+)'", text):
        return f"{found[1]}: no such key; {_nearest_key(found[1])}"
    if found := re.search(r"Missing mandatory value: (\S+)", causes):
        return f"{getattr(error, 'full_key', None) or found[1]}: has no value; give one"
    return " ".join(text.split())


def _nearest_key(key: str) -> str:
    """The likeliest key; one that exists belongs to another member of its group."""
    if now := renamed(key):
        return now
    group = key.partition(".")[0]
    members = sorted(
        path.stem for path in (conf_dir() / group).glob("*.yaml") if key in keys_of(path)
    )
    if members:
        return f"it is a setting of {', '.join(f'{group}={member}' for member in members)}"
    groups = [path.name for path in conf_dir().iterdir() if path.is_dir()]
    return nearest(key, [*known_keys(), *(name for name in groups if name not in NOT_KEYS)])


def known_keys() -> list[str]:
    """All dotted keys of the default config and of every group member."""
    keys = {
        key
        for path in conf_dir().rglob("*.yaml")
        if path.relative_to(conf_dir()).parts[0] not in NOT_KEYS
        for key in keys_of(path)
    }
    return sorted(keys)
