"""The processes of a run that is under way, found by its folder in their command lines."""

from __future__ import annotations

import os
from pathlib import Path


def processes_of(folder: Path) -> dict[int, str]:
    """Command lines that name a folder, by process id."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it has just ended
        if str(folder) in line and int(path.parent.name) != os.getpid():
            found[int(path.parent.name)] = line
    return found


def rank_of(pid: int) -> str | None:
    pairs = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return next((pair[5:].decode() for pair in pairs if pair.startswith(b"RANK=")), None)
