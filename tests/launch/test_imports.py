"""What a training imports: libraries for tables and figures take a second that it does not need."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from commands import PATIENCE_SECONDS
from tiny_run import TINY

HEAVY = {"matplotlib", "scipy", "pandas", "pyarrow", "sklearn", "torchvision", "wandb"}


def imported(log: str) -> list[str]:
    """The modules in a log of Python's ``-X importtime``, each once a process. The log has no module that
    ``importlib.import_module`` has imported, but those that this one imports."""
    return re.findall(r"^import time: .*\| +(\S+)$", log, re.MULTILINE)


def roots(modules: list[str]) -> set[str]:
    return {module.partition(".")[0] for module in modules}


def test_neither_the_command_nor_the_ranks_of_a_training_import_them(tmp_path: Path) -> None:
    """`model=cnn` and digits need none of them."""
    done = subprocess.run(
        [sys.executable, "-m", "dgc_repro", *TINY, "launch=local", "launch.workers=2", "model=cnn"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPROFILEIMPORTTIME": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=True,
    )
    (log,) = tmp_path.glob("runs/*/launch.log")
    ranks = imported(log.read_text())
    assert ranks.count("torch") == ranks.count("dgc_repro.model.sizes") == 2
    assert "dgc_repro.launch.sweep" in imported(done.stderr)
    assert HEAVY & roots([*ranks, *imported(done.stderr)]) == set()
