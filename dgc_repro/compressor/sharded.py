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
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from dgc_repro.checked import checked
from dgc_repro.compressor.interface import Compressor, Context, Measurable, State
from dgc_repro.compressor.residual import check_residual
from dgc_repro.compressor.sparsifier import Sparsifier, check_exact, coded
from dgc_repro.exchange.payload import Gathered, Payload, Pieces
from dgc_repro.exchange.requests import AllToAll, Exchange, Gather, GatherRagged, Outcome
from dgc_repro.kernel.select import Selection

ROW = 4096  # values that are not parted, where the method has no ``block`` or ``bucket``
OWNER = "owner_residual"
WITHOUT = "use it without Sharded"


@runtime_checkable
class Encoder(Protocol):
    """A method without state whose payload's layout depends on the tensor's size alone."""

    def encode(self, tensor: Tensor, context: Context) -> Payload:
        """What is sent for a tensor. tensor: f32, contiguous, any shape."""


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

    def by_owner(self) -> list[tuple[int, int]]:
        """Each rank's stretch."""
        return [self.bounds(self.owned_by(rank)) for rank in range(self.workers)]


@checked
class Sharded:
    """``method``: an `Encoder` or a `Sparsifier`. State: ``owner_residual``, f32[values of the shard
    this worker owns], empty before the first step (only an exchange knows who owns what)."""

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

    def exchange(self, tensor: Tensor, state: State, context: Context) -> Exchange:
        shards = Shards.of(self.method, tensor.numel(), context.name, context.world_size)
        sparse = hasattr(self.method, "select")  # isinstance of a protocol is slow
        cut = self._selected if sparse else self._encoded
        own, pieces = cut(tensor, shards, context)
        # What comes to me are everybody's pieces of my shard, laid out as my own one.
        received = yield AllToAll(
            pieces, (pieces[context.rank],) * context.world_size, ragged=sparse
        )
        start, end = shards.by_owner()[context.rank]
        residual = self._residual(state, end - start, tensor.device)
        fed = context.spare(OWNER, residual)
        Gathered(received).mean(fed).add_(residual)
        average = self._compressed(fed, context.within("owner"))
        averages = yield (GatherRagged if sparse else Gather)(average, layouts=pieces)
        average.subtract_from_(fed)
        mean = averages.joined(context.result(tensor), shards.by_owner())
        return Outcome(mean.view(tensor.shape), own, {OWNER: fed})

    def energy(self, tensor: Tensor, context: Context) -> Tensor:
        """Of what this worker would send; needs a `Measurable` method."""
        assert isinstance(self.method, Measurable), "the builder refuses what cannot be measured"
        return self.method.energy(tensor, context)

    def _compressed(self, flat: Tensor, context: Context) -> Payload:
        if hasattr(self.method, "select"):
            return coded(self.method, self.method.select(flat, context))
        return self.method.encode(flat, context)

    def _encoded(
        self, tensor: Tensor, shards: Shards, context: Context
    ) -> tuple[Payload, tuple[Payload, ...]]:
        """The payload of every shard: together, and by owner."""
        flat = tensor.view(-1)
        by_shard: list[Payload] = []
        full: list[tuple[int, int]] = []  # of shards that are not empty: the first ones
        for shard in range(shards.workers):
            start, end = shards.bounds(shard)
            if end == start and shard > len(full):
                by_shard.append(by_shard[-1])  # one empty payload serves all
                continue
            by_shard.append(self._compressed(flat[start:end], context.within(f"shard{shard}")))
            if end > start:
                full.append((start, end))
        if context.finite is not None and all(flat[a:b] in context.finite for a, b in full):
            context.found_finite(flat)
        own = Pieces(tuple(by_shard[: len(full)]), tuple(full))
        pieces = [by_shard[shards.owned_by(rank)] for rank in range(shards.workers)]
        return own, tuple(pieces)

    def _selected(
        self, tensor: Tensor, shards: Shards, context: Context
    ) -> tuple[Payload, tuple[Payload, ...]]:
        """What was selected: as a whole, and by owner of the places."""
        assert hasattr(self.method, "select")
        chosen: Selection = self.method.select(tensor, context)
        bounds = shards.by_owner()
        edges = torch.tensor(bounds, dtype=chosen.indices.dtype, device=chosen.indices.device)
        places = torch.searchsorted(chosen.indices, edges.view(-1)).tolist()
        pieces = []
        for rank, (start, end) in enumerate(bounds):
            low, high = places[2 * rank : 2 * rank + 2]
            indices = chosen.indices[low:high] - start
            piece = Selection(chosen.values[low:high], indices, end - start)
            pieces.append(coded(self.method, piece))
        return coded(self.method, chosen), tuple(pieces)

    def _residual(self, state: State, size: int, device: torch.device) -> Tensor:
        residual: Tensor = state[OWNER]
        if residual.numel() not in (0, size):
            raise ValueError(
                f"owner residual of {residual.numel()} values, this worker's shard has {size}: the state "
                "is of another number of workers"
            )
        return residual if residual.numel() == size else torch.zeros(size, device=device)
