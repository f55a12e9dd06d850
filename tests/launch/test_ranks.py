"""A rank: its priority, where that of its session is the one that the kernel may go by, and its failures."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from commands import PATIENCE_SECONDS

from dgc_repro.launch.rank import AUTOGROUP, work
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


@pytest.mark.skipif(
    not AUTOGROUP.is_file(), reason="this kernel does not group processes by session"
)
@pytest.mark.parametrize("leads", [True, False])
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
