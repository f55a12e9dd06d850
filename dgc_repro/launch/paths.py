"""Where the configs lie: in the wheel, or beside the package in a checkout."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent.parent


def conf_dir() -> Path:
    """The folder with ``config.yaml`` and the groups."""
    for candidate in (_PACKAGE / "conf", _PACKAGE.parent / "conf"):
        if (candidate / "config.yaml").is_file():
            return candidate
    raise FileNotFoundError(f"no conf/ in {_PACKAGE} or beside it: the installation is incomplete")
