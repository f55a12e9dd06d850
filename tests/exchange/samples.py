"""Small compressors for tests: one of each kind of collective, one that fails, one that sends nonsense."""

from __future__ import annotations

import copy
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from dgc_repro import Dense, TopK
from dgc_repro.compressor.interface import Compressor, Context, PerTensor, Step
from dgc_repro.compressor.sparsifier import Selecting
from dgc_repro.exchange.world import World
from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.select import Selection


@dataclass(frozen=True)
class AllKinds(Compressor):
    """Asks for the largest values, and for means in two other types; what it returns is their sum."""

    def step(self, xs: Sequence[Batch], out: Batch, world: World, context: Context) -> Step:
        flats = [torch.cat([tensor.view(-1) for tensor in x.tensors]) for x in xs]
        largest, half, double = (
            [flat.to(dtype, copy=True) for flat in flats]
            for dtype in (torch.float32, torch.bfloat16, torch.float64)
        )
        waits = [world.largest(largest), world.mean(half, half[0]), world.mean(double, double[0])]
        yield from waits
        total = (largest[0].double() + half[0].double() + double[0]).float()
        for tensor, piece in zip(out.tensors, total.split(out.sizes), strict=True):
            tensor.copy_(piece.view(tensor.shape))
        return [None for _ in xs]


@dataclass(frozen=True)
class AtLeast(Selecting):
    """Sends what is at least ``least``: how much that is differs between workers."""

    ragged: ClassVar[bool] = True
    least: float = 0.0

    def select(self, tensor: Tensor, context: Context) -> Selection:
        flat = tensor.view(-1)
        places = torch.nonzero(flat.abs() >= self.least).view(-1)
        return Selection(flat[places], places.to(torch.int32), flat.numel())


class OneLess(PerTensor):
    """Sends all values; rank 1 sends one less of each tensor."""

    def compress(self, tensor: Tensor, context: Context) -> Sequence[Tensor]:
        return [tensor.flatten()[context.rank :]]

    def decompress(self, parts: Sequence[Tensor], shape: torch.Size) -> Tensor:
        return parts[0].view(shape)


@dataclass(frozen=True)
class Fragile(Dense):
    """Fails on a NaN before it asks for anything, as a decomposition does."""

    def step(self, xs: Sequence[Batch], out: Batch, world: World, context: Context) -> Step:
        if not all(bool(tensor.isfinite().all()) for x in xs for tensor in x.tensors):
            raise ArithmeticError("did not converge")
        return (yield from super().step(xs, out, world, context))


@dataclass(frozen=True)
class Broken(Dense):
    """Fails once in some step, before it asks for anything or, ``late``, after it has."""

    at: int
    late: bool = False

    def step(self, xs: Sequence[Batch], out: Batch, world: World, context: Context) -> Step:
        sent: Sequence[Any] = ()
        fails = context.step == self.at and vars(self).setdefault("sound", True)
        if self.late or not fails:
            sent = yield from super().step(xs, out, world, context)
        if fails:
            vars(self)["sound"] = False
            raise ZeroDivisionError("broken on purpose")
        return sent


class SendsBroken(TopK):
    """Top-k whose payload is damaged on one rank (`damages`)."""

    what: str = ""
    on_rank: int = -1
    ragged: bool = False  # type: ignore[assignment]

    def encode(self, x: Batch, context: Context) -> Any:
        own = super().encode(x, context)
        if context.rank != self.on_rank:
            return own
        header, words = (own.layout.view(own.buffer, 0, part) for part in (0, 1))
        if self.what == "header":
            header.fill_(12345)
        elif self.what == "places":
            words.fill_(-1)
        elif self.what == "count":
            header += 1
        elif self.what == "length":
            fewer = copy.copy(own.layout)
            fewer.k = fewer.k - 1
            vars(fewer).pop("sent_lengths", None)  # as it is cached
            own = replace(own, layout=fewer)
        return own


def damages(what: str, ragged: bool, on_rank: int) -> SendsBroken:
    """A compressor that damages its ``header``, its ``places``, the ``count`` in the header, or the
    ``length`` of its values."""
    made = SendsBroken(0.2)
    vars(made).update(what=what, ragged=ragged, on_rank=on_rank)
    return made


def gradient(name: str, shape: Sequence[int], worker: int, step: int) -> Tensor:
    """A worker's gradient, the same in every world and process."""
    seed = zlib.crc32(f"{name} {worker} {step}".encode())
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
