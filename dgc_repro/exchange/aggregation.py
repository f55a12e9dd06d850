"""How quantized and sparse payloads are combined (`exchange.aggregation`).

`gather`: everybody gets everybody's payload. `sharded`: each worker averages a shard (compressor/sharded.py).
"""

from __future__ import annotations

from dgc_repro.compressor.interface import Compressor, keeps_state
from dgc_repro.compressor.residual import expands
from dgc_repro.compressor.sharded import Encoder, Sharded
from dgc_repro.compressor.sparsifier import Sparsifier
from dgc_repro.errors import UserError

GATHER, SHARDED = WAYS = ("gather", "sharded")


def aggregated(method: Compressor, way: str) -> Compressor:
    """The method, or what combines its payloads in this way. Raises UserError where the two do not fit."""
    if way not in WAYS:
        raise UserError(f"exchange.aggregation: one of {', '.join(WAYS)}, got {way!r}")
    if way == GATHER:
        return method
    if refusal := _refusal(method):
        raise UserError(
            "exchange.aggregation: sharded needs a method that encodes or selects, and keeps no state; "
            f"{refusal}; use exchange.aggregation=gather"
        )
    try:
        return Sharded(method)  # type: ignore[arg-type]
    except ValueError as error:
        raise UserError(
            f"exchange.aggregation: sharded: {error} (exchange.aggregation=gather)"
        ) from error


def _refusal(method: Compressor) -> str:
    """Why the payloads of a method have no shards; empty where they have. `Sharded` itself refuses one that
    `expands`, and some settings."""
    title = type(method).__name__
    if expands(method):
        return ""
    if getattr(method, "gather_only", False):
        return f"{title}, as it is set, goes no other way than its own"
    if keeps_state(method):
        return f"{title} keeps a state"
    return "" if isinstance(method, Sparsifier | Encoder) else f"{title} is no such method"
