"""The config files, of ours and of users, and their keys."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf

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


def conf_dirs_apart(
    arguments: Sequence[str], parser: ArgumentParser | None = None
) -> tuple[list[Path], list[str]]:
    """The folders of ``--config-dir``, and the other arguments. ``parser``: with options of its own."""
    parser = parser or ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument(
        *("--config-dir", "-cd"), action="append", type=Path, default=[], help="your own configs"
    )
    given, others = parser.parse_known_args(list(arguments))
    return given.config_dir, others


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
    is_global = "# @package _global_" in path.read_text(encoding="utf-8")
    prefix = "" if is_global or group == "." else f"{group}."
    return {f"{prefix}{key}" for key in flat_keys(OmegaConf.load(path))}


def flat_keys(config: Any, prefix: str = "") -> list[str]:
    """Dotted names of the leaves; interpolations are not resolved."""
    found = []
    for key in config:
        if key in ("defaults", "_target_", "hydra"):
            continue
        value = config._get_node(key)
        found += (
            flat_keys(value, f"{prefix}{key}.")
            if isinstance(value, DictConfig)
            else [f"{prefix}{key}"]
        )
    return found
