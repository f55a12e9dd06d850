"""How quantized and sparse payloads are combined (`exchange.aggregation`), and what each way moves.

`gather`: everybody gets everybody's payload. `sharded`: compressor/sharded.py. `gtopk`:
compressor/gtopk.py. `auto`: what moves the fewest bytes for this method, these tensors and this number
of workers; of equals the one that comes first here, which changes less.

Bytes are worker 0's on the wire in a step, as the ledger counts them where all tensors are exchanged
at once.

Letters: n = values, N = workers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from dgc_repro.compressor.gtopk import GTopK, turns
from dgc_repro.compressor.interface import Compressor, Context
from dgc_repro.compressor.residual import expands
from dgc_repro.compressor.sharded import Encoder, Sharded, Shards, compressed
from dgc_repro.compressor.sparsifier import Sparsifier, coded, select_all
from dgc_repro.errors import UserError
from dgc_repro.exchange.ledger import moved_by
from dgc_repro.exchange.packing import places
from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.layout import Kind
from dgc_repro.kernel.workspace import Workspace
from dgc_repro.payload import BatchPayload

GATHER, SHARDED, GTOPK, AUTO = "gather", "sharded", "gtopk", "auto"
WAYS = (GATHER, SHARDED, GTOPK, AUTO)
SAMPLE = 1 << 22  # values; larger tensors are estimated from a sample of so many
LENGTH_BYTES = 8

Parts = list[Kind]
"""Lengths and types of what travels in one buffer."""


def packed_bytes(parts: Parts) -> int:
    """Bytes of a buffer of these parts."""
    return places(parts)[1]


def gather_bytes(rows: Sequence[Parts], workers: int, *, ragged: bool) -> float:
    """An allgather of buffers of these parts, all filled up to the longest; of ``ragged`` ones the
    lengths of the parts travel first."""
    lengths = LENGTH_BYTES * len(rows[0]) if ragged else 0
    return (max(map(packed_bytes, rows)) + lengths) * moved_by("allgather", workers)


def sharded_bytes(pieces: Sequence[Parts], averages: Sequence[Parts], *, ragged: bool) -> float:
    """An all-to-all of the pieces, by owner (worker 0's own one stays), and an allgather of the
    averages, by owner."""
    lengths = LENGTH_BYTES * len(pieces[0]) if ragged else 0
    others = sum(packed_bytes(piece) + lengths for piece in pieces[1:])
    return others + gather_bytes(averages, len(pieces), ragged=ragged)


def gtopk_bytes(parts: Parts, workers: int) -> float:
    """A buffer to every partner in every round."""
    sends = sum(len(turn.to) for turn in turns(0, workers))
    return float(packed_bytes(parts) * sends)


@dataclass(frozen=True)
class Choice:
    """A way, and the bytes of every way that the method can go."""

    way: str
    wire_bytes: dict[str, float]

    def __str__(self) -> str:
        if not self.wire_bytes:
            return "left as it is, it goes no other way"
        sizes = ", ".join(f"{way} {size / 1e6:.4g} MB" for way, size in self.wire_bytes.items())
        return f"{self.way} ({sizes} a worker and step)"


def ways(method: Compressor) -> list[str]:
    """The ways a method can go; none where its payloads are not gathered at all. A method that sets
    ``gather_only``, or keeps a state, goes no other way; nobody owns shards of one that ``expands``."""
    if getattr(method, "gather_only", False) or method.init(torch.zeros(2)):
        return [GATHER]
    owned = [] if expands(method) else [SHARDED]
    if isinstance(method, Sparsifier):
        return [GATHER, *owned] if method.ragged else [GATHER, GTOPK, *owned]
    if isinstance(method, Encoder):
        return [GATHER, *owned]
    return []


def wire_bytes(method: Compressor, sizes: Mapping[str, int], workers: int) -> dict[str, float]:
    """What each way moves that the method can go as it is set. ``sizes``: values of the tensors that
    are exchanged, by name.

    Exact for methods whose payload's size does not depend on the values, in tensors up to `SAMPLE`
    values, but for how a selection falls into shards: random numbers stand for gradients. Larger
    tensors are so many values in proportion."""
    known = []
    for way in ways(method):
        with contextlib.suppress(ValueError):  # refused for one of its settings
            around(method, way)
            known.append(way)
    if len(known) < 2:  # nothing to choose: what travels is not looked into
        return {}
    by_size = {n: Sent.of(method, n, workers, cut=SHARDED in known) for n in set(sizes.values())}
    ragged = getattr(method, "ragged", False)
    whole = [kind for n in sizes.values() for kind in by_size[n].whole]
    found = {}
    for way in known:
        if way == GATHER:
            found[way] = gather_bytes([whole], workers, ragged=ragged)
        elif way == GTOPK:
            found[way] = gtopk_bytes(whole, workers)
        else:
            pieces: list[Parts] = [[] for _ in range(workers)]
            averages: list[Parts] = [[] for _ in range(workers)]
            for name, n in sizes.items():
                shards = Shards.of(method, n, name, workers)
                for rank in range(workers):
                    shard = shards.owned_by(rank)
                    pieces[rank] += by_size[n].pieces[shard]
                    averages[rank] += by_size[n].averages[shard]
            selects = isinstance(method, Sparsifier)
            found[way] = sharded_bytes(pieces, averages, ragged=selects)
    return found


def choose(method: Compressor, sizes: Mapping[str, int], workers: int) -> Choice:
    """The way that moves the fewest bytes for tensors of so many values, by name; the same on all
    ranks."""
    moved = wire_bytes(method, sizes, workers)
    return Choice(min(moved, key=lambda way: moved[way]) if moved else GATHER, moved)


def aggregated(
    method: Compressor,
    way: str,
    sizes: Mapping[str, int],
    workers: int,
    notes: list[str] | None = None,
) -> Compressor:
    """The method, or what combines its payloads in this way. ``sizes``: values of the tensors that
    are exchanged, by name, for ``auto``, which leaves a line in ``notes``. Raises UserError where they
    do not go together."""
    if way not in WAYS:
        raise UserError(f"exchange.aggregation: one of {', '.join(WAYS)}, got {way!r}")
    if way == AUTO:
        choice = choose(method, sizes, workers)
        way = choice.way
        line = f"exchange.aggregation=auto: {method}: {choice}"
        if notes is not None and line not in notes:
            notes.append(line)
    if way == GATHER:
        return method
    is_expanded = way == SHARDED and expands(method)
    if way not in ways(method) and not is_expanded:
        needs = (
            "a method that encodes or selects, and keeps no state"
            if way == SHARDED
            else "a sparsifier that sends a fixed number of entries"
        )
        raise UserError(
            f"exchange.aggregation: {way} needs {needs}; {_as_it_is(method)}; use "
            "exchange.aggregation=gather or auto"
        )
    try:
        return around(method, way)
    except ValueError as error:
        raise UserError(
            f"exchange.aggregation: {way}: {error} (exchange.aggregation=gather)"
        ) from error


def around(method: Compressor, way: str) -> Compressor:
    """What combines the payloads of a method that can go this way. Raises ValueError for a setting of
    it that does not suit."""
    if way == GATHER:
        return method
    return Sharded(method) if way == SHARDED else GTopK(method)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Sent:
    """What a method sends of one tensor: the ``whole``, and by shard ``pieces`` of it and compressed
    ``averages`` (empty where it is not cut)."""

    whole: Parts
    pieces: list[Parts]
    averages: list[Parts]

    @classmethod
    def of(cls, method: Compressor, n: int, workers: int, *, cut: bool) -> Sent:
        """For random values."""
        values = torch.randn(min(n, SAMPLE), generator=torch.Generator().manual_seed(0))
        context = Context("model", 0, 0, 0, workers, 0, (0, 0), Workspace())
        batch = Batch(("model",), [values])
        whole = _parts(compressed(method, batch, context))
        pieces: list[Parts] = []
        averages: list[Parts] = []
        if cut:
            shards = Shards.of(method, values.numel(), "model", workers)
            bounds = [shards.bounds(shard) for shard in range(workers)]
            of_size = {
                size: _parts(compressed(method, batch.slices([0], [size]), context))
                for size in {end - start for start, end in bounds}
            }
            averages = [of_size[end - start] for start, end in bounds]
            pieces = averages
            if isinstance(method, Sparsifier):
                pieces = _pieces(method, batch, bounds, context)
        share = max(1.0, n / SAMPLE)
        return cls(
            _scaled(whole, share),
            [_scaled(piece, share) for piece in pieces],
            [_scaled(average, share) for average in averages],
        )


def _scaled(parts: Parts, share: float) -> Parts:
    """Of a tensor that many times as large; headers and the scale of a whole tensor stay one."""
    return [(n if n < 2 else round(n * share), dtype) for n, dtype in parts]


def _as_it_is(method: Compressor) -> str:
    """Why a method goes no other way, or which ways it goes."""
    title = type(method).__name__
    if getattr(method, "gather_only", False):
        return f"{title}, as it is set, goes no other way than its own"
    if method.init(torch.zeros(2)):
        return f"{title} keeps a state"
    known = ways(method)
    return f"{title} goes by {', '.join(known)}" if known else f"{title} is no such method"


def _pieces(
    method: Sparsifier, batch: Batch, bounds: Sequence[tuple[int, int]], context: Context
) -> list[Parts]:
    """What was selected of one tensor, by shard."""
    stretches = [((start,), (end,)) for start, end in bounds]
    pieces = select_all(method, batch, context).cut(stretches)
    return [_parts(coded(method, batch.names, piece)) for piece in pieces]


def _parts(payload: BatchPayload) -> Parts:
    """Of a batch of one tensor."""
    return list(payload.layout.kinds[0])
