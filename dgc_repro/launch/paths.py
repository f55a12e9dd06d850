"""Where the configs lie: in the wheel, or beside the package in a checkout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

_PACKAGE = Path(__file__).resolve().parent.parent


def conf_dir() -> Path:
    """The folder with ``config.yaml`` and the groups."""
    for candidate in (_PACKAGE / "conf", _PACKAGE.parent / "conf"):
        if (candidate / "config.yaml").is_file():
            return candidate
    raise FileNotFoundError(f"no conf/ in {_PACKAGE} or beside it: the installation is incomplete")


_ADDED: list[Path] = []


def add_conf_dir(folder: Path) -> None:
    """Search a user's own folder of configs after ours (``--config-dir``, a paper's own ``conf/``)."""
    if folder.resolve() not in _ADDED:
        _ADDED.append(folder.resolve())


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
