"""The config files, of ours and of users, and their keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from dgc_repro.errors import UserError
from dgc_repro.names import conf_dir as _conf_dir

conf_dir = _conf_dir
_ADDED: list[Path] = []


def add_conf_dirs(folders: Sequence[Path]) -> None:
    """Search users' own folders of configs after ours (``--config-dir``, a paper's own ``conf/``). Raises
    UserError where one is missing."""
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"--config-dir: no folder {folder}")
        if folder.resolve() not in _ADDED:
            _ADDED.append(folder.resolve())


def conf_dirs_apart(arguments: Sequence[str]) -> tuple[list[Path], list[str]]:
    """The folders of ``--config-dir``, and the other arguments."""
    folders, others, rest = [], [], iter(arguments)
    for argument in rest:
        flag, equals, folder = argument.partition("=")
        if flag in ("--config-dir", "-cd"):
            folders.append(Path(folder if equals else next(rest, "<none>")))
        else:
            others.append(argument)
    return folders, others


def conf_dirs() -> list[Path]:
    """Every folder that is searched."""
    return [conf_dir(), *_ADDED]


def options(group: str) -> list[str]:
    """The members of a group."""
    return sorted({path.stem for root in conf_dirs() for path in (root / group).glob("*.yaml")})


def option(group: str, name: str) -> dict[str, Any]:
    """What a group's YAML says, as it stands there."""
    path = conf_dir() / group / f"{name}.yaml"
    node: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return node


def keys_of(path: Path, root: Path | None = None) -> set[str]:
    """The dotted keys that a file of conf/, or of another root, sets."""
    group = path.relative_to(root or conf_dir()).parent.as_posix().replace("/", ".")
    text = path.read_text(encoding="utf-8")
    is_global = "# @package _global_" in text
    return set(
        flat_keys(yaml.safe_load(text) or {}, "" if is_global or group == "." else f"{group}.")
    )


def flat_keys(node: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Dotted names of the leaves."""
    for key, value in node.items():
        if key in ("defaults", "_target_", "hydra"):
            continue
        if isinstance(value, Mapping):
            yield from flat_keys(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"
