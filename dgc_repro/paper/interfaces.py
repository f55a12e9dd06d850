"""Bytes that network interfaces counted, beside the ledger of the exchange: runs of ``launch=netlab``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dgc_repro.errors import UserError
from dgc_repro.paper.frame import amount
from dgc_repro.paper.records import summary_of

COUNTED, EXPECTED, LEDGER = "net/tx_bytes", "net/expected_tx_bytes", "comm/total_wire_bytes"


def difference_percent(summary: Mapping[str, Any]) -> float:
    """Bytes that a worker's interface sent, against the ledger with headers; NaN where none was read."""
    if not summary.get(COUNTED) or not summary.get(EXPECTED):
        return math.nan
    return 100 * float(summary[COUNTED] / summary[EXPECTED] - 1)


def counted_line(folder: Path) -> str | None:
    """Interface against ledger of a run folder, as a line to print; None where no interface was read."""
    try:
        summary = summary_of(folder)
    except UserError:
        return None
    difference = difference_percent(summary)
    if math.isnan(difference):
        return None
    counted, expected, ledger = (amount([summary[key]]) for key in (COUNTED, EXPECTED, LEDGER))
    return (
        f"network: {counted} sent a worker by its interface, {expected} by the ledger with headers "
        f"({difference:+.2f} %; {ledger} without)"
    )
