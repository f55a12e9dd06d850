"""The processes of a command: what they import, a rank's priority, and its failures."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from commands import PATHS, PATIENCE_SECONDS
from tiny_run import TINY

from dgc_repro.launch.rank_process import AUTOGROUP, work
from dgc_repro.launch.ranks import FAILED, FAILURE_FILE, LOG_FILE

RANK = f"""
import sys
from pathlib import Path
from dgc_repro.launch import worker

def work(*_):
    print(Path("{AUTOGROUP}").read_text(), flush=True)
    return 0, None

worker.work, sys.argv = work, ["dgc_repro", "folder"]
worker.main()
"""
HEAVY = {"matplotlib", "scipy", "pandas", "pyarrow", "sklearn", "torchvision", "wandb"}
"""Libraries for tables and figures. They take a second that a training does not need."""
PROGRAM = """
import sys
from dgc_repro.__main__ import main

for command in sys.argv[1:]:
    sys.argv = ["dgc_repro", *command.split()]
    try:
        main()
    except SystemExit as end:
        assert not end.code, command
print("\\nimported:", *sys.modules)
"""


def imported(folder: Path, *commands: str) -> set[str]:
    """The modules that a new process has imported after these commands."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *commands],
        cwd=folder, env=os.environ | PATHS, capture_output=True, text=True,
        timeout=PATIENCE_SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return set(done.stdout.rpartition("imported:")[2].split())


def test_completion_help_and_recommendations_need_no_torch(tmp_path: Path) -> None:
    found = imported(tmp_path, "-sc install=bash", "reproduce --help", "recommend network=nvlink")
    assert "dgc_repro.predict.recommend" in found
    assert "torch" not in found


def test_a_training_imports_no_heavy_libraries(tmp_path: Path) -> None:
    """`model=cnn` and digits need none of them."""
    found = imported(tmp_path, " ".join([*TINY, "model=cnn", "train.epochs=1"]))
    assert {"torch", "dgc_repro.launch.worker", "dgc_repro.launch.sweep"} <= found
    assert HEAVY.isdisjoint(module.partition(".")[0] for module in found)


@pytest.mark.skipif(
    not AUTOGROUP.is_file(), reason="this kernel does not group processes by session"
)
@pytest.mark.parametrize("leads", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_a_nice_rank_lowers_its_own_session(leads: bool) -> None:
    """The session of a rank in a shell, which it does not lead, has other processes too."""
    script = RANK if leads else f"import os\nif os.fork():\n    os.wait()\n    os._exit(0)\n{RANK}"
    rank = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True,
        start_new_session=True, preexec_fn=lambda: os.nice(7) and None,
    )  # fmt: skip
    assert rank.stdout.split()[-2:] == ["nice", str(min(19, os.nice(0) + 7)) if leads else "0"]


@pytest.mark.parametrize("module", ["worker", "rendezvous"])
def test_a_module_that_cannot_be_imported_is_a_failure_of_the_rank(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as torch with a library that is missing; both modules import it."""
    name = f"dgc_repro.launch.{module}"
    monkeypatch.delitem(sys.modules, "dgc_repro.launch.worker", raising=False)
    monkeypatch.setitem(sys.modules, name, None)  # type: ignore[arg-type]  # an import then fails
    with (tmp_path / LOG_FILE).open("w") as log:
        assert work(tmp_path, log) == (FAILED, True)
    line = (tmp_path / FAILURE_FILE).read_text()
    assert line.startswith(f"ModuleNotFoundError: import of {name} halted")
    assert "Traceback" in (tmp_path / LOG_FILE).read_text()
