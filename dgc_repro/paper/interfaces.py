"""Bytes that network interfaces counted, beside the ledger of the exchange: runs of ``launch=netlab``."""

from __future__ import annotations

from pathlib import Path

from dgc_repro.errors import UserError
from dgc_repro.paper.records import summary_of

KEYS = ("net/tx_bytes", "net/expected_tx_bytes", "comm/total_wire_bytes")


def counted_line(folder: Path) -> str | None:
    """Interface against ledger of a run folder, as a line to print; None where no interface was read."""
    try:
        summary = summary_of(folder)
    except UserError:
        return None
    if not summary.get(KEYS[0]) or not summary.get(KEYS[1]):
        return None
    from dgc_repro.paper.frame import amount  # imports pandas

    difference = 100 * (summary[KEYS[0]] / summary[KEYS[1]] - 1)
    counted, expected, ledger = (amount([summary[key]]) for key in KEYS)
    return (
        f"network: {counted} sent a worker by its interface, {expected} by the ledger with headers "
        f"({difference:+.2f} %; {ledger} without)"
    )
