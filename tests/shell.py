"""Commands in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

TIMEOUT_S = 200  # of one command: a busy machine starts Python ten times slower than an idle one


def run(
    *command: str, cwd: Path | None = None, path: Path | str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end. ``path``: PYTHONPATH, this process's where it is None."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    if path is not None:
        environment["PYTHONPATH"] = str(path)
    return subprocess.run(
        command,
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def succeed(*command: str, cwd: Path | None = None, path: Path | str | None = None) -> str:
    """Return the output of a command that must succeed."""
    done = run(*command, cwd=cwd, path=path)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def program(code: str, cwd: Path | None = None) -> str:
    """Return the output of a Python program that must succeed."""
    return succeed(sys.executable, "-c", textwrap.dedent(code), cwd=cwd)
