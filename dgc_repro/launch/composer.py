"""Compose many configs that differ in values alone: the runs of an artifact or of a list.

Hydra takes 0.1 s for a config. Here it composes each set of group choices (``model=lstm compressor=topk``)
once; values (``optimizer.lr=0.1``), read by Hydra's parser, are then set in a copy of that. The result equals
Hydra's, the order of keys included. Hydra composes whatever is not simple, so that its errors are its own.

What Hydra has made of the choices is kept in the user's cache for the next command, as JSON in a file that
is named by a hash of all config files and of the code that composes. A file that is damaged or belongs to
another user is ignored.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import hydra
import omegaconf
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException
from omegaconf import AnyNode, DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from dgc_repro import names
from dgc_repro.checksums import Damaged, read_sealed, sealed
from dgc_repro.errors import UserError
from dgc_repro.files import MIB, parsed_json, replace
from dgc_repro.kernel.native import cache_folders
from dgc_repro.launch import overrides, paths
from dgc_repro.launch.overrides import OF_SWEEPS, config_of, resolved, settled

REFERENCE = re.compile(r"\$\{(\w[\w.]*)\}")
"""An interpolation that names a key by its whole path."""
MISSING = "???"
MOST_LEVELS = 16  # of references that lead to references
MOST_FILES, MOST_BYTES = 4, 8 * MIB
"""Of the cache: the newest files are kept, and a larger one is not written."""
NAME = "configs-{}.json"
CODE = (names, overrides, paths)
"""With this module, the code that a config depends on."""
Bases = dict[str, dict[str, Any] | None]
"""By group choices, one a line, the config in plain containers with its interpolations; None where values
have to be set by Hydra."""
_KEPT: dict[str, Bases] = {}


class NotSimple(Exception):
    """Hydra has to compose this config."""


class Composer:
    """Composes configs, inside `composing`, from what the config files are when it is made."""

    def __init__(self) -> None:
        self._state = _state()
        if not self._state or self._state not in _KEPT:
            _KEPT.clear()
            _KEPT[self._state] = _read(self._state)
        self._bases = _KEPT[self._state]
        self._num_read = len(self._bases)
        loader: Any = GlobalHydra.instance().config_loader()
        self._is_group = functools.cache(loader.repository.group_exists)

    def __call__(self, overrides: Sequence[str]) -> dict[str, Any]:
        """Return the resolved config of these overrides. Raises what Hydra raises, and UserError."""
        try:
            found = self.simple(overrides)
        except (NotSimple, HydraException, OmegaConfBaseException, ValueError):
            return resolved(config_of(overrides))
        return settled(found)

    def simple(self, overrides: Sequence[str]) -> dict[str, Any]:
        """Return the config with its interpolations resolved. Raises NotSimple, and what Hydra raises."""
        parsed = [_parsed(text) for text in overrides]
        if any(one.is_sweep_override() or _is_of_others(one) for one in parsed):
            raise NotSimple
        choices: list[Override] = []
        values: list[Override] = []
        for one in parsed:
            is_choice = self._is_group(one.key_or_group) and not isinstance(one.value(), dict)
            (choices if is_choice else values).append(one)
        config = _copy(self._base([str(one.input_line) for one in choices]))
        for one in values:
            _set(config, one)
        try:
            return {key: _filled(node, config) for key, node in config.items()}
        except NotSimple:  # a resolver, or a relative name
            made = OmegaConf.create(config)
            return OmegaConf.to_container(made, resolve=True, throw_on_missing=True)  # type: ignore[return-value]

    def _base(self, choices: Sequence[str]) -> dict[str, Any]:
        """What Hydra makes of these choices. Raises NotSimple, and what Hydra raises."""
        key = "\n".join(choices)
        if key not in self._bases:
            self._bases[key] = _plain(config_of(choices))
        if (base := self._bases[key]) is None:
            raise NotSimple
        return base

    def close(self) -> None:
        """Write what is new to the cache, where there is one and no config file has changed meanwhile."""
        if self._state and len(self._bases) > self._num_read and _state() == self._state:
            _write(self._state, self._bases)
            self._num_read = len(self._bases)


def _is_of_others(override: Override) -> bool:
    """Whether an override is no setting of a run, or names a network that is none of ours: it may be in a
    file of a run folder's."""
    key = str(override.key_or_group)
    if key == "network":
        return not (paths.conf_dir() / "network" / f"{override.value()}.yaml").is_file()
    return re.split("[./]", key)[0] in OF_SWEEPS


@functools.cache
def _parsed(text: str) -> Override:
    return OverridesParser.create().parse_override(text)


def _plain(config: DictConfig) -> dict[str, Any] | None:
    """The settings of a run in plain containers, unresolved. None where a node has a type: Hydra converts
    and checks its values."""
    kept = {key: config._get_node(key) for key in config if key not in OF_SWEEPS}
    if not all(map(_is_untyped, kept.values())):
        return None
    plain: dict[str, Any] = OmegaConf.to_container(config, resolve=False)  # type: ignore[assignment]
    return {str(key): plain[str(key)] for key in kept}


def _is_untyped(node: Any) -> bool:
    if isinstance(node, DictConfig | ListConfig):
        content, of = node._content, node._metadata.object_type
        children = content.values() if isinstance(content, dict) else content
        if isinstance(content, str) or of not in (dict, list, None):
            return False
        return all(map(_is_untyped, children or ()))
    return type(node) is AnyNode


def _copy(node: Any) -> Any:
    if isinstance(node, dict):
        return {key: _copy(value) for key, value in node.items()}
    return [_copy(value) for value in node] if isinstance(node, list) else node


def _set(config: dict[str, Any], override: Override) -> None:
    """Set a value as Hydra does. Raises NotSimple for what is no plain value, for a key that is not there, or
    with ``+`` is, and for a section."""
    *sections, last = str(override.key_or_group).split(".")
    node, value = config, override.value()
    for section in sections:
        node = node.get(section)  # type: ignore[assignment]
        if not isinstance(node, dict):
            raise NotSimple
    wanted = OverrideType.CHANGE if last in node else OverrideType.ADD
    is_odd = override.package is not None or not last.isidentifier()
    if is_odd or override.type is not wanted or isinstance(node.get(last), dict):
        raise NotSimple
    node[last] = _value(value)


def _value(value: Any) -> Any:
    if isinstance(value, list):
        return [_value(one) for one in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise NotSimple


def _filled(node: Any, config: Mapping[str, Any], level: int = 0) -> Any:
    """Return a node with its references resolved. Raises NotSimple for another interpolation, and where a
    value is missing."""
    if isinstance(node, dict):
        return {key: _filled(value, config, level) for key, value in node.items()}
    if isinstance(node, list):
        return [_filled(value, config, level) for value in node]
    if not isinstance(node, str) or ("${" not in node and node != MISSING):
        return node
    if level > MOST_LEVELS or "\\" in node or "${" in REFERENCE.sub("", node) or node == MISSING:
        raise NotSimple
    if whole := REFERENCE.fullmatch(node):
        return _filled(_at(whole[1], config), config, level + 1)
    return REFERENCE.sub(
        lambda found: _word(_filled(_at(found[1], config), config, level + 1)), node
    )


def _at(key: str, config: Mapping[str, Any]) -> Any:
    node: Any = config
    for name in key.split("."):
        if isinstance(node, list) and name.isdecimal() and int(name) < len(node):
            node = node[int(name)]
        elif isinstance(node, dict) and name in node:
            node = node[name]
        else:
            raise NotSimple
    return node


def _word(value: Any) -> str:
    if not isinstance(value, str | int | float):
        raise NotSimple
    return str(value)


def _state() -> str:
    """A hash of all that a config is composed from. Empty where there is more than files: nothing would show
    that it has changed."""
    found = paths.sources()
    if found is None:
        return ""
    code = [Path(str(module.__file__)).read_bytes() for module in CODE]
    code.append(Path(__file__).read_bytes())
    versions = f"{hydra.__version__} {omegaconf.__version__}".encode()
    digest = hashlib.sha256()
    for part in (versions, *code, *found):
        digest.update(b"%d " % len(part) + part)
    return digest.hexdigest()


def _read(state: str) -> Bases:
    """What the cache has for this state; nothing where it has no good file."""
    for folder in cache_folders() if state else ():
        with contextlib.suppress(Damaged, ValueError, LookupError, TypeError, AttributeError):
            record = read_sealed(folder / _name(state))
            bases = parsed_json(record["bases"])
            if record["state"] == state and all(isinstance(one, dict) for one in bases.values()):
                return dict(bases)
    return {}


def _write(state: str, bases: Bases) -> None:
    """Write a file of the cache, and remove old ones. The cache may fail: it is not needed."""
    kept = {key: base for key, base in bases.items() if base is not None and _survives(base)}
    content = sealed({"state": state, "bases": json.dumps(kept)})
    for folder in cache_folders() if len(content) <= MOST_BYTES else ():
        with contextlib.suppress(OSError, UserError):
            replace(folder / _name(state), content)
            for path in sorted(_files(folder), key=_changed)[:-MOST_FILES]:
                path.unlink()
            return


def _survives(base: dict[str, Any]) -> bool:
    """Whether a config reads from JSON as it was written: keys that are no words, for example, do not."""
    try:
        return repr(parsed_json(json.dumps(base))) == repr(base)
    except (TypeError, ValueError):
        return False


def _name(state: str) -> str:
    return NAME.format(state[:16])


def _files(folder: Path) -> Iterator[Path]:
    return folder.glob(NAME.format("?" * 16))


def _changed(path: Path) -> int:
    return path.lstat().st_mtime_ns
