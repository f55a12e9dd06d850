"""Compress twice: each worker averages the shard it owns, and everybody gets the averages compressed.

Paper: Tang et al., "DoubleSqueeze: parallel stochastic gradient descent with double-pass
error-compensated compression", ICML 2019 (arXiv:1905.05957), algorithm 1; the same as Zheng, Huang
and Kwok, "Communication-efficient distributed blockwise momentum SGD with error-feedback"
(dist-EF-SGD), NeurIPS 2019 (arXiv:1905.10936), algorithm 2, with one parameter server. Here every
worker is the server of one shard, as in Tang et al., "1-bit Adam", ICML 2021 (arXiv:2102.02888),
whose implementation (DeepSpeed) calls the owner's residual "server error".
Asks: to swap shards (all but the one kept), then to gather the compressed averages.
With P bytes for the whole tensor: P (N - 1) / N, then a payload of P / N, which the allgather
carries N - 1 times: 2 P (N - 1) / N on the wire, where gathering takes P (N - 1). What a
sparsifier chose falls unevenly into the shards: its lengths travel first, 8 bytes a part (24 a shard
and 24 an average).
Differs: the papers' worker residual is `ErrorFeedback` around this; without it only the second
compression is fed back. A quantizer with one scale a tensor has one a shard. A sparsifier chooses
among the whole tensor, as it does alone, and the owner chooses again among its shard. Refused where the
owner's residual would grow without bound (compressor/residual.py).

    worker w:   d_w = C(x_w), cut into shards                       (own = d_w)
    owner of s: p = mean_w d_w[s] + e;   mean[s] = C(p);   e' = p - mean[s]

Letters: n = values, N = workers, s = a shard, e = the owner's residual, in units of the mean.
"""

from __future__ import annotations

import zlib
from collections.abc import Generator, Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from dgc_repro.checked import checked
from dgc_repro.compressor.gathering import average, gathered_ragged, read
from dgc_repro.compressor.interface import Compressor, Context, Step, keeps_state
from dgc_repro.compressor.residual import check_residual
from dgc_repro.compressor.sparsifier import Sparsifier, select_all
from dgc_repro.kernel import batch as kernels
from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.cached import cached
from dgc_repro.kernel.segments import Segments
from dgc_repro.payload import BatchPayload, Parted, Sparse

if TYPE_CHECKING:
    from dgc_repro.exchange.world import Wait, World

ROW = 4096  # values that are not parted, where the method has no ``block`` or ``bucket``
OWNER = "owner_residual"
WITHOUT = "use it without Sharded"


@runtime_checkable
class Encoder(Protocol):
    """A method without state whose payload's layout depends on the tensors' sizes alone."""

    def encode_batch(self, batch: Batch, context: Context) -> BatchPayload:
        """What is sent for the tensors of a batch."""


@dataclass(frozen=True)
class Shards:
    """How n values are parted among N workers: whole rows each, the last ones shorter or empty.

    Owners take turns by tensor, so that small tensors are not all rank 0's.
    """

    n: int
    workers: int
    row: int
    turn: int

    @classmethod
    def of(cls, method: object, n: int, name: str, workers: int) -> Shards:
        row = getattr(method, "block", None) or getattr(method, "bucket", None) or ROW
        return cls(n, workers, row, zlib.crc32(name.encode()) % workers)

    def bounds(self, shard: int) -> tuple[int, int]:
        """Where a shard begins and ends."""
        rows = -(-self.n // self.row)
        size = -(-rows // self.workers) * self.row
        return min(self.n, shard * size), min(self.n, (shard + 1) * size)

    def owned_by(self, rank: int) -> int:
        """The shard of a rank."""
        return (rank - self.turn) % self.workers


@checked
class Sharded(Compressor):
    """``method``: an `Encoder` or a `Sparsifier`. State: ``owner_residual``, f32[values of the shard
    this worker owns]."""

    method: Encoder | Sparsifier

    def __post_init__(self) -> None:
        if getattr(self.method, "gather_only", False):
            raise ValueError(
                f"method: {type(self.method).__name__}, as it is set, cannot be parted into shards; "
                f"{WITHOUT}"
            )
        if isinstance(self.method, Compressor) and keeps_state(self.method):
            raise ValueError(
                f"method: {type(self.method).__name__} keeps a state from step to step, which shards do not "
                f"carry on; {WITHOUT}"
            )
        check_residual(self.method, "method", WITHOUT)

    def setup(self, like: Batch, world: World) -> None:
        owned = []
        for worker in range(world.local):
            starts, ends = self._all_stretches(like, world.size)[world.rank + worker]
            shapes = [(end - start,) for start, end in zip(starts, ends, strict=True)]
            owned.append(Segments.zeros(like.names, shapes, like.device))
        self.keep(OWNER, owned)

    def step(self, xs: Sequence[Batch], out: Batch, world: World, context: Context) -> Step:
        stretches = self._all_stretches(out, world.size)
        is_sparse = isinstance(self.method, Sparsifier)
        sent: list[Any] = []
        pieces: list[Sequence[BatchPayload]] = []  # by worker hosted here and by owner
        for worker, x in enumerate(xs):
            cut = self._selected if is_sparse else self._encoded
            own, of_owners = cut(x, stretches, context.at(worker))
            sent.append(own)
            pieces.append(of_owners)
        received = yield from self._swapped(pieces, world, context, ragged=is_sparse)
        averages, owed = [], self.kept(OWNER, out.names)
        for worker, (residual, came) in enumerate(zip(owed, received, strict=True)):
            here = context.at(worker)
            mean = Batch(out.names, here.buffers("shard", residual))
            average(came, mean)
            kernels.add(mean, residual.tensors, residual.tensors)
            averages.append(compressed(self.method, residual, here.within("owner")))
        layouts = pieces[0]  # shards are of other sizes at other ranks
        if is_sparse:
            every = yield from gathered_ragged(averages, world, context, layouts)
        else:
            every = yield from self._gathered(averages, layouts, world, context)
        for residual, own in zip(owed, averages, strict=True):
            own.subtract_from_(residual)
        _joined(stretches, every, out)
        return sent

    def _all_stretches(self, batch: Batch, workers: int) -> Sequence[Stretches]:
        """Where the shards of each rank lie."""
        method: Any = self.method
        return _stretches_of(method, batch.names, batch.sizes, workers)

    def _encoded(
        self, x: Batch, stretches: Sequence[Stretches], context: Context
    ) -> tuple[Any, Sequence[BatchPayload]]:
        """The payload of every shard: together, and by owner."""
        pieces = []
        for rank, (starts, ends) in enumerate(stretches):
            labels = tuple([f"shard{one}" for one in _shards_of(x.names, rank, context.world_size)])
            some = x.slices(starts, ends)
            pieces.append(compressed(self.method, some, context.within(labels)))
        return Parted(tuple(pieces), lambda whole: [whole.slices(*at) for at in stretches]), pieces

    def _selected(
        self, x: Batch, stretches: Sequence[Stretches], context: Context
    ) -> tuple[Any, Sequence[BatchPayload]]:
        """What was selected: as a whole, and by owner of the places."""
        chosen = select_all(self.method, x, context)
        whole = Sparse.of(x.names, chosen, context.scratch)
        parts = enumerate(chosen.cut(stretches))
        return whole, [
            Sparse.of(x.names, part, context.within(f"shard of {rank}").scratch)
            for rank, part in parts
        ]

    def _swapped(
        self,
        pieces: Sequence[Sequence[BatchPayload]],
        world: World,
        context: Context,
        *,
        ragged: bool,
    ) -> Generator[Wait, None, list[list[Any]]]:
        """Everybody's pieces of the shards that the workers hosted here own, by source."""
        own = [world.rank + worker for worker in range(len(pieces))]
        # What comes is laid out as one's own piece of the shard, but for the lengths.
        comes: list[list[Any]] = [
            [mine[rank]] * world.size for mine, rank in zip(pieces, own, strict=True)
        ]
        slot = (context.slot, context.path, context.name)
        if ragged:
            rows, sizes = [], []
            for mine, rank in zip(pieces, own, strict=True):
                others = [one.lengths for to, one in enumerate(mine) if to != rank]
                numbers = torch.tensor([n for one in others for n in one], dtype=torch.int64)
                rows.append(numbers.view(torch.uint8).to(world.device, non_blocking=True))
                width = 8 * len(mine[rank].lengths)
                sizes.append([0 if to == rank else width for to in range(world.size)])
            wait = world.swap(rows, sizes, sizes, ("lengths", *slot))
            yield wait
            for worker, (by_source, rank) in enumerate(zip(wait.rows, own, strict=True)):
                like = pieces[worker][rank]
                comes[worker] = [
                    like if source == rank else like.announced(row.cpu().numpy().view(np.int64))[0]
                    for source, row in enumerate(by_source)
                ]
        rows = []
        for mine, rank in zip(pieces, own, strict=True):
            parts = [one.row for to, one in enumerate(mine) if to != rank]
            empty = torch.empty(0, dtype=torch.uint8, device=world.device)
            rows.append(torch.cat(parts) if parts else empty)
        to_each, from_each = (
            [
                [0 if at == rank else one.layout.size for at, one in enumerate(of_worker)]
                for of_worker, rank in zip(of_all, own, strict=True)
            ]
            for of_all in (pieces, comes)
        )
        floats = sum(one.num_floats for at, one in enumerate(pieces[0]) if at != world.rank)
        wait = world.swap(rows, to_each, from_each, ("shards", *slot), floats)
        yield wait
        return [
            [
                pieces[worker][rank] if source == rank else read(like, row)
                for source, (like, row) in enumerate(
                    zip(comes[worker], wait.rows[worker], strict=True)
                )
            ]
            for worker, rank in enumerate(own)
        ]

    def _gathered(
        self,
        averages: Sequence[BatchPayload],
        layouts: Sequence[BatchPayload],
        world: World,
        context: Context,
    ) -> Generator[Wait, None, list[Any]]:
        """The averages of all owners, filled up to the longest."""
        longest = max(one.layout.size for one in layouts)
        rows = []
        for worker, payload in enumerate(averages):
            row = payload.row
            if row.numel() < longest:
                filled = context.at(worker).scratch("filled", longest, torch.uint8, row.device)
                filled[: row.numel()] = row
                row = filled
            rows.append(row)
        slot = ("averages", context.slot, context.path, context.name)
        wait = world.gather(rows, slot, averages[0].num_floats)
        yield wait
        return [read(like, row) for like, row in zip(layouts, wait.rows, strict=True)]

    def energies(self, batch: Batch, context: Context) -> Tensor:
        """Of what this worker would send; needs a `Measurable` method."""
        method: Any = self.method
        found: Tensor = method.energies(batch, context)
        return found


def compressed(
    method: Encoder | Sparsifier | Compressor, batch: Batch, context: Context
) -> BatchPayload:
    """What a method sends for the tensors of a batch."""
    if isinstance(method, Sparsifier):
        return Sparse.of(batch.names, select_all(method, batch, context), context.scratch)
    assert isinstance(method, Encoder)
    return method.encode_batch(batch, context)


Stretches = tuple[tuple[int, ...], tuple[int, ...]]
"""Where a stretch of each tensor begins and ends."""


@cached()
def _stretches_of(
    method: Hashable, names: tuple[str, ...], sizes: tuple[int, ...], workers: int
) -> tuple[Stretches, ...]:
    """Where the shards of each rank lie."""
    shards = [Shards.of(method, n, name, workers) for n, name in zip(sizes, names, strict=True)]
    return tuple([_stretches(shards, rank) for rank in range(workers)])


@cached()
def _shards_of(names: tuple[str, ...], rank: int, workers: int) -> tuple[int, ...]:
    """The shard of each tensor that a rank owns."""
    return tuple([Shards.of(None, 0, name, workers).owned_by(rank) for name in names])


def _stretches(shards: Sequence[Shards], rank: int) -> Stretches:
    bounds = [one.bounds(one.owned_by(rank)) for one in shards]
    return tuple([start for start, _ in bounds]), tuple([end for _, end in bounds])


def _joined(stretches: Sequence[Stretches], payloads: Sequence[Any], batch: Batch) -> None:
    """batch = the payloads one beside the other, each where its worker's stretches are."""
    for payload, (starts, ends) in zip(payloads, stretches, strict=True):
        payload.copy_to_(batch.slices(starts, ends), 1.0)
