"""Tab completion of the command ``dgc-repro``: ``eval "$(dgc-repro -sc install=bash)"`` (docs/sweeps.md).

Without torch, so that a completion takes about as long as Hydra does.
"""

from __future__ import annotations

import contextlib
import os
import sys

import hydra
from omegaconf import DictConfig

from dgc_repro.errors import UserError
from dgc_repro.launch.paths import add_conf_dirs, conf_dir, conf_dirs_apart, use_user_configs


def main() -> None:
    """What Hydra's shell functions call, and what installs them."""
    with contextlib.suppress(UserError):  # a folder that is only half typed
        add_conf_dirs(conf_dirs_apart(os.environ.get("COMP_LINE", "").split())[0])
    use_user_configs()
    if sys.argv[0].endswith(".py"):  # python -m dgc_repro: shells complete by the name of a command
        sys.argv[0] = "dgc-repro"

    def nothing(config: DictConfig) -> None:
        """Is not called."""

    hydra.main(str(conf_dir()), "config", "1.3")(nothing)()
