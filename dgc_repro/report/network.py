"""What interfaces have counted, beside the ledger: runs of ``launch=netlab``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

COUNTED, EXPECTED, LEDGER = "net/tx_bytes", "net/expected_tx_bytes", "comm/total_wire_bytes"


def counted(summary: Mapping[str, Any]) -> str | None:
    """Interface against ledger, per worker, and their difference; None where no interface was read."""
    if not summary.get(COUNTED) or not summary.get(EXPECTED):
        return None
    difference = 100 * (summary[COUNTED] / summary[EXPECTED] - 1)
    return (
        f"{megabytes(summary[COUNTED])} sent a worker by its interface, "
        f"{megabytes(summary[EXPECTED])} by the ledger with headers ({difference:+.2f} %; "
        f"{megabytes(summary[LEDGER])} without)"
    )


def counted_line(folder: Path) -> str | None:
    """The same of a run folder, as a line to print."""
    try:
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    text = counted(summary)
    return None if text is None else f"network: {text}"


def megabytes(size: float) -> str:
    """Bytes as MB with three digits or more."""
    return f"{size / 1e6:.2f} MB" if size < 1e8 else f"{size / 1e6:.0f} MB"
