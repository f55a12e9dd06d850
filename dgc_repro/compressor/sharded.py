"""Compress twice: each worker averages the shard it owns, and everybody gets the averages compressed.

Paper: Tang et al., "DoubleSqueeze: parallel stochastic gradient descent with double-pass
error-compensated compression", ICML 2019 (arXiv:1905.05957), algorithm 1; the same as Zheng, Huang
and Kwok, "Communication-efficient distributed blockwise momentum SGD with error-feedback"
(dist-EF-SGD), NeurIPS 2019 (arXiv:1905.10936), algorithm 2, with one parameter server. Here every
worker is the server of one shard, as in Tang et al., "1-bit Adam", ICML 2021 (arXiv:2102.02888),
whose implementation (DeepSpeed) calls the owner's residual "server error".
Asks: `AllToAll` of the own shards (all but the one kept), then `Gather` of the compressed averages.
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
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from dgc_repro.checked import checked
from dgc_repro.compressor.interface import Compressor, Context, Measured, State, energies_of
from dgc_repro.compressor.residual import check_residual
from dgc_repro.compressor.sparsifier import Sparsifier, check_exact, coded, select_all
from dgc_repro.kernel import batch as kernels
from dgc_repro.kernel.batch import Batch, Unchecked
from dgc_repro.payload import BatchPayload, Gathered, Parted
from dgc_repro.payload.requests import AllToAll, Exchange, Gather, GatherRagged, Outcome

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
class Sharded(Measured):
    """``method``: an `Encoder` or a `Sparsifier`. State: ``owner_residual``, f32[values of the shard
    this worker owns], empty before the first step (the owner is known in an exchange only)."""

    method: Encoder | Sparsifier

    def __post_init__(self) -> None:
        if getattr(self.method, "gather_only", False):
            raise ValueError(
                f"method: {type(self.method).__name__}, as it is set, cannot be parted into shards; "
                f"{WITHOUT}"
            )
        if isinstance(self.method, Compressor) and self.method.init(torch.zeros(2)):
            raise ValueError(
                f"method: {type(self.method).__name__} keeps a state from step to step, which shards do not "
                f"carry on; {WITHOUT}"
            )
        check_residual(self.method, "method", WITHOUT)
        check_exact(self.method)

    def init(self, tensor: Tensor) -> State:
        return {OWNER: torch.zeros(0, dtype=torch.float32, device=tensor.device)}

    def exchange_batch(self, batch: Batch, states: Sequence[State], context: Context) -> Exchange:
        workers = context.world_size
        shards = [
            Shards.of(self.method, n, name, workers)
            for n, name in zip(batch.sizes, batch.names, strict=True)
        ]
        stretches = [_stretches(shards, rank) for rank in range(workers)]
        sparse = isinstance(self.method, Sparsifier)
        cut = self._selected if sparse else self._encoded
        own, pieces = cut(batch, shards, stretches, context)
        result, residuals = context.results(batch), []
        starts, ends = stretches[context.rank]
        for state, start, end in zip(states, starts, ends, strict=True):
            residuals.append(self._residual(state, end - start, batch.device))
        names = batch.names
        del batch
        # What comes to me are everybody's pieces of my shards, laid out as my own ones.
        received = yield AllToAll(
            pieces, (pieces[context.rank],) * workers, ragged=sparse, names=names
        )
        to = Batch(names, context.spares(OWNER, residuals))
        Gathered(received).mean(to)
        fed = kernels.add(to, residuals, to.tensors)
        average = compressed(self.method, fed, context.within("owner"))
        averages = yield (GatherRagged if sparse else Gather)(average, layouts=pieces)
        average.subtract_from_(fed)
        mean = averages.once(partial(_joined, stretches), result)
        return Outcome(mean.tensors, own, [{OWNER: tensor} for tensor in fed.tensors])

    def energies(self, batch: Batch, context: Context) -> Tensor:
        """Of what this worker would send; needs a `Measurable` method."""
        return energies_of(self.method, batch, context)

    def _encoded(
        self,
        batch: Batch,
        shards: Sequence[Shards],
        stretches: Sequence[Stretches],
        context: Context,
    ) -> tuple[Parted, tuple[BatchPayload, ...]]:
        """The payload of every shard: together, and by owner."""
        unchecked = Unchecked()
        pieces = []
        for rank, (starts, ends) in enumerate(stretches):
            some = batch.slices(starts, ends)
            labels = tuple([f"shard{one.owned_by(rank)}" for one in shards])
            pieces.append(compressed(self.method, some, context.within(labels)))
            unchecked |= some.unchecked
            batch.unchecked.peaks += some.unchecked.peaks
        batch.unchecked.difference_update(set(batch.names) - unchecked)
        own = Parted(tuple(pieces), lambda whole: [whole.slices(*ends) for ends in stretches])
        return own, tuple(pieces)

    def _selected(
        self,
        batch: Batch,
        shards: Sequence[Shards],
        stretches: Sequence[Stretches],
        context: Context,
    ) -> tuple[BatchPayload, tuple[BatchPayload, ...]]:
        """What was selected: as a whole, and by owner of the places."""
        assert isinstance(self.method, Sparsifier)
        chosen = select_all(self.method, batch, context)
        whole = coded(self.method, batch.names, chosen, context)
        parts = chosen.cut(stretches)
        pieces = [
            coded(self.method, batch.names, part, context.within(f"shard of {rank}"))
            for rank, part in enumerate(parts)
        ]
        return whole, tuple(pieces)

    def _residual(self, state: State, size: int, device: torch.device) -> Tensor:
        residual: Tensor = state[OWNER]
        if residual.numel() not in (0, size):
            raise ValueError(
                f"owner residual of {residual.numel()} values, this worker's shard has {size}: the state "
                "is of another number of workers"
            )
        return residual if residual.numel() == size else torch.zeros(size, device=device)


def compressed(
    method: Encoder | Sparsifier | Compressor, batch: Batch, context: Context
) -> BatchPayload:
    """What a method sends for the tensors of a batch."""
    if isinstance(method, Sparsifier):
        return coded(method, batch.names, select_all(method, batch, context), context)
    assert isinstance(method, Encoder)
    return method.encode_batch(batch, context)


Stretches = tuple[tuple[int, ...], tuple[int, ...]]
"""Where a stretch of each tensor begins and ends."""


def _stretches(shards: Sequence[Shards], rank: int) -> Stretches:
    bounds = [one.bounds(one.owned_by(rank)) for one in shards]
    return tuple([start for start, _ in bounds]), tuple([end for _, end in bounds])


def _joined(stretches: Sequence[Stretches], payloads: Sequence[Any], batch: Batch) -> None:
    """batch = the payloads one beside the other, each where its worker's stretches are."""
    for payload, (starts, ends) in zip(payloads, stretches, strict=True):
        payload.copy_to_(batch.slices(starts, ends), 1.0)
