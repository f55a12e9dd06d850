"""Compressors of the kinds that come later, small: a ragged sparse one and one of two rounds."""

from __future__ import annotations

import copy
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dgc_repro.compressor.interface import Context, State
from dgc_repro.compressor.topk import TopK
from dgc_repro.payload import Sparse as SparsePayload
from dgc_repro.payload import Wholes
from dgc_repro.payload.requests import (
    AllToAll,
    Exchange,
    Gather,
    GatherRagged,
    Max,
    Mean,
    Outcome,
)


@dataclass(frozen=True, slots=True)
class Sparse:
    """Values and where they belong; the number of them differs between workers."""

    values: Tensor  # f32[k]
    indices: Tensor  # i32[k]
    flags: Tensor  # u8[any]: a part of one byte an element, to meet odd lengths

    @property
    def parts(self) -> tuple[Tensor, ...]:
        return (self.values, self.indices, self.flags)

    @property
    def num_floats(self) -> float:
        return float(self.values.numel())

    def like(self, parts: Sequence[Tensor]) -> Sparse:
        return Sparse(*parts)

    def add_to_(self, buffer: Tensor, weight: float) -> None:
        buffer.view(-1).index_add_(0, self.indices.long(), self.values, alpha=weight)

    def copy_to_(self, buffer: Tensor, weight: float) -> None:
        buffer.zero_()
        self.add_to_(buffer, weight)

    def subtract_from_(self, buffer: Tensor) -> None:
        self.add_to_(buffer, -1.0)


@dataclass(frozen=True)
class Threshold:
    """Send what is at least ``threshold``: how much that is differs between workers."""

    threshold: float

    def init(self, tensor: Tensor) -> State:
        return {}

    def exchange(self, tensor: Tensor, state: State, context: Context) -> Exchange:
        flat = tensor.reshape(-1)
        indices = torch.nonzero(flat.abs() >= self.threshold).view(-1)
        flags = torch.full((indices.numel() % 3,), 9, dtype=torch.uint8)
        own = Sparse(flat[indices], indices.to(torch.int32), flags)
        payloads = yield GatherRagged(own)
        assert all(bool((payload.flags == 9).all()) for payload in payloads)
        buffer = context.scratch("mean", flat.numel(), torch.float32, flat.device)
        return Outcome(payloads.mean(buffer).view(tensor.shape), own, state)


@dataclass(frozen=True)
class LowRank:
    """Rank 1 by one power iteration, as PowerSGD asks: two `Mean`s, one after the other. A vector
    goes dense in the first round. State: the warm ``q``."""

    def init(self, tensor: Tensor) -> State:
        return {"q": torch.ones(tensor.shape[1])} if tensor.dim() == 2 else {}

    def exchange(self, tensor: Tensor, state: State, context: Context) -> Exchange:
        if tensor.dim() != 2:
            mean = yield Mean(tensor)
            return Outcome(mean, Wholes.of(tensor), state)
        # Not `@`: a BLAS's sums may depend on where in memory the tensor begins (alignment).
        p = yield Mean((tensor * state["q"]).sum(1))
        p = p / p.norm()
        q = (yield Mean((tensor * p.view(-1, 1)).sum(0))).clone()
        return Outcome(torch.outer(p, q), Wholes.of(torch.outer(p, q)), {"q": q})


@dataclass(frozen=True)
class AllKinds:
    """Asks everything once: Max, Mean in two dtypes. The answers are the mean it returns."""

    def init(self, tensor: Tensor) -> State:
        return {}

    def exchange(self, tensor: Tensor, state: State, context: Context) -> Exchange:
        largest = (yield Max(tensor)).clone()
        half = (yield Mean(tensor.to(torch.bfloat16))).clone()
        double = (yield Mean(tensor.double())).clone()
        mean = torch.stack([largest.double(), half.double(), double])
        return Outcome(mean, Wholes.of(tensor), state)


@dataclass(frozen=True)
class Letters:
    """A letter of another length for each worker but the next one; the mean it returns holds the sum
    of each letter that came, by source. Worker s writes ``count(s, d)`` values s + d / 100 to d."""

    ragged: bool = False

    def init(self, tensor: Tensor) -> State:
        return {}

    def exchange(self, tensor: Tensor, state: State, context: Context) -> Exchange:
        own, ranks = context.rank, range(context.world_size)
        payloads = tuple(letter(own, rank, context.world_size) for rank in ranks)
        expected = tuple(letter(rank, own, context.world_size) for rank in ranks)
        if self.ragged:  # nothing is known but who writes
            empty = Sparse(torch.zeros(0), torch.zeros(0, dtype=torch.int32), NO_FLAGS)
            expected = tuple(e if e is None else empty for e in expected)
        received = yield AllToAll(payloads, expected, self.ragged)
        came = [-1.0 if p is None else float(p.values.double().sum()) for p in received]
        # A second round, so that buffers are asked for while the first answers are held.
        again = yield AllToAll(payloads, expected, self.ragged)
        assert all((a is None) == (b is None) for a, b in zip(received, again, strict=True))
        flags = [0 if p is None else p.flags.numel() for p in received]
        return Outcome(torch.tensor([came, flags]), Wholes.of(tensor), state)


NO_FLAGS = torch.zeros(0, dtype=torch.uint8)


def letter(source: int, to: int, workers: int) -> Sparse | None:
    """What worker ``source`` writes to worker ``to``; nothing to the next one."""
    if workers > 1 and to == (source + 1) % workers:
        return None
    count = (3 * source + 2 * to) % 5  # some are empty
    values = torch.full((count,), source + to / 100)
    return Sparse(values, torch.arange(count, dtype=torch.int32), NO_FLAGS.new_full((to,), 9))


@dataclass(frozen=True)
class Fragile:
    """Fails on a NaN before it asks anything, as a decomposition does."""

    def init(self, tensor: Tensor) -> State:
        return {}

    def exchange(self, tensor: Tensor, state: State, context: Context) -> Exchange:
        if not bool(tensor.isfinite().all()):
            raise ArithmeticError("did not converge")
        mean = yield Mean(tensor)
        return Outcome(mean, Wholes.of(tensor), state)


def gradient(name: str, shape: Sequence[int], worker: int, step: int) -> Tensor:
    """A worker's gradient, the same in every world and process."""
    seed = zlib.crc32(f"{name} {worker} {step}".encode())
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@dataclass(frozen=True)
class SendsBroken:
    """Top-k whose payload is damaged on one rank: its ``header``, its ``places``, the ``count`` in
    the header, or the ``length`` of its values."""

    what: str
    ragged: bool
    on_rank: int

    def init(self, tensor: Tensor) -> State:
        return {}

    def exchange(self, tensor: Tensor, state: State, context: Context) -> Exchange:
        own = SparsePayload.one(TopK(0.2).select(tensor, context))
        if context.rank == self.on_rank:
            header, words = (own.layout.view(own.buffer, 0, part) for part in (0, 1))
            if self.what == "header":
                header.fill_(12345)
            elif self.what == "places":
                words[-1] = tensor.numel()
            elif self.what == "count":
                header += 1
            else:
                fewer = copy.copy(own.layout)
                fewer.k = fewer.k - 1
                vars(fewer).pop("sent_lengths", None)  # as it is cached
                own = replace(own, layout=fewer)
        payloads = yield GatherRagged(own) if self.ragged else Gather(own)
        mean = payloads.mean(context.result(tensor))
        return Outcome(mean.view(tensor.shape), own, state)
