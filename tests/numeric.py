"""What tests of compressors and kernels share: surroundings, values, and pieces of numpy references."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from dgc_repro.compressor.gathering import average
from dgc_repro.compressor.interface import Compressor, Context
from dgc_repro.compressor.sharded import Shards
from dgc_repro.exchange.world import World
from dgc_repro.kernel import counter, lowrank, native
from dgc_repro.kernel.batch import Batch
from dgc_repro.payload import BatchPayload
from dgc_repro.payload.interface import as_batch
from dgc_repro.selfcheck.values import EPS, context, heavy_tailed  # noqa: F401

Array = NDArray[Any]
both_kernels = pytest.mark.usefixtures("kernels")  # C, then tensor operations (conftest.py)
needs_c = pytest.mark.skipif(native.library() is None, reason="no C kernels here")


@contextmanager
def without_c() -> Iterator[None]:
    """Tensor operations serve."""
    with patch.object(native, "library", lambda: None):
        yield


@contextmanager
def threads(count: int) -> Iterator[None]:
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(1)


@dataclass
class Ran:
    """How a step of one tensor ended. ``own``: what was sent; ``method``: with its states."""

    mean: Tensor
    own: Any
    method: Compressor


def run(
    compressor: Compressor, x: Tensor, where: Context | None = None, *, set_up: bool = False
) -> Ran:
    """A step of two workers that both send the same. ``set_up``: the compressor has its states already."""
    where, world = where or context(), World(1, size=2)
    where = replace(where, slot=(0, 0))
    method = compressor if set_up else copy.deepcopy(compressor)
    batch = Batch((where.name,), [x.contiguous()])
    if not set_up:
        method.setup(batch, world)
    out = Batch(batch.names, [torch.empty_like(x)])
    return Ran(out.tensors[0], driven(method.step([batch], out, world, where), world)[0], method)


def driven(step: Any, world: World) -> Any:
    """What a step returns, served."""
    running = iter(step)
    try:
        while True:
            wait = next(running)
            world.begin()
            wait()
    except StopIteration as end:
        return end.value


def batch(*tensors: Tensor) -> Batch:
    return Batch(tuple(map(str, range(len(tensors)))), tensors)


def scratch(label: str, size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A workspace that keeps nothing."""
    return torch.empty(size, dtype=dtype, device=device)


def encoded(method: Any, x: Tensor, where: Context | None = None) -> Any:
    """What a method sends for a tensor."""
    where = where or context()
    return method.encode_batch(Batch((where.name,), [x]), where)


def each_dense(own: Any, like: Batch | Sequence[int] = ()) -> list[Tensor]:
    """What was sent of each tensor of a batch, decoded: f32[n]. ``like``: the batch, or its sizes, where a
    payload lacks them."""
    sizes = like.sizes if isinstance(like, Batch) else tuple(like)
    values = [torch.zeros(n) for n in sizes or own.layout.sizes]
    names = like.names if isinstance(like, Batch) else ("",) * len(values)
    if isinstance(like, Batch):
        values = [v.view(t.shape) for v, t in zip(values, like.tensors, strict=True)]
    if isinstance(own, BatchPayload):
        own.copy_to_(Batch(own.names, values), 1.0)
    else:
        own.subtract_from_(Batch(names, values))
        values = [0 - left for left in values]
    return [one.view(-1) for one in values]


def dense(own: Any, *size: int) -> Tensor:
    """The same of one tensor."""
    (values,) = each_dense(own, size)
    return values


def averaged(payloads: Sequence[Any], buffer: Any) -> Any:
    """The mean of what workers have sent, in a tensor or a batch."""
    average(payloads, as_batch(buffer))
    return buffer


def by_owner(shards: Shards) -> list[tuple[int, int]]:
    """Each rank's stretch."""
    return [shards.bounds(shards.owned_by(rank)) for rank in range(shards.workers)]


# Values.


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def gaussian(size: int, seed: int = 0) -> Tensor:
    return normal(seed, size)


def finite_kinds(size: int) -> Iterator[Tensor]:
    """Values of every size that has broken a kernel."""
    x = heavy_tailed(size, size)
    yield x
    yield x.clamp(-1, 1) * 3e38
    yield x * 1e-37
    yield x * 1e-41
    yield torch.zeros(size)
    yield torch.full((size,), -0.37)
    mixed = x.clone()
    mixed[::3], mixed[1::5] = 0.0, -0.0
    yield mixed
    # Halves of a step, where rounding to even shows.
    source = torch.Generator().manual_seed(size)
    yield (torch.randint(-14, 15, (size,), generator=source) / 2).float()


def kinds(size: int) -> Iterator[Tensor]:
    """The same, and values that are not finite."""
    yield from finite_kinds(size)
    for value in (torch.nan, torch.inf, -torch.inf):
        broken = heavy_tailed(size, size)
        broken[size // 2] = value
        yield broken


def random_steps(size: int, workers: int, steps: int) -> list[list[Tensor]]:
    """Gradients of each step and worker, f32[size]."""
    source = np.random.default_rng(5)
    drawn = source.standard_normal((steps, workers, size)).astype(np.float32)
    return [list(map(torch.from_numpy, step)) for step in drawn]


# References.


def doubles(steps: Sequence[Sequence[Tensor]]) -> list[list[Array]]:
    """What each worker has in each step, in float64."""
    return [[own.double().numpy() for own in step] for step in steps]


def assert_close(found: Sequence[Tensor], expected: Sequence[Array], within: float) -> None:
    """Each tensor has the values of its reference."""
    for tensor, wanted in zip(found, expected, strict=True):
        np.testing.assert_allclose(tensor.double().numpy(), wanted, rtol=0, atol=within)


def largest(x: Array, k: int) -> Array:
    """The places of the k largest magnitudes, ascending; of equal ones the lower."""
    return np.sort(np.argsort(-np.abs(x), kind="stable")[:k])


def topk(x: Array, k: int) -> Array:
    """The k entries of largest magnitude, ties to the lower index; 0 elsewhere."""
    sent = np.zeros_like(x)
    kept = largest(x, k)
    sent[kept] = x[kept]
    return sent


def in_steps(x: Array, bits: int, block: int) -> Array:
    """Uniform codes of each block, decoded: s round(x / s), s = max|x| / Q."""
    out = np.zeros_like(x)
    for start in range(0, len(x), block):
        row = x[start : start + block]
        scale = np.abs(row).max() / (2 ** (bits - 1) - 1)
        if scale > 0:
            out[start : start + block] = scale * np.round(row / scale)
    return out


def first_q(rank: int, side: int, *path: str, name: str = "w") -> Array:
    """The factor of a matrix that a low-rank method begins with in `laws.simulation`: f64[side, rank]."""
    key = context(path=path, name=name, seed=7).key(shared=True)
    drawn = lowrank.normals(rank * side, key, torch.device("cpu"))
    return drawn.view(rank, side).double().numpy().T


def hashed_bits(index: Array, key: int) -> Array:
    """kernel/counter.py in unsigned arithmetic: lowbias32 of index and key, the key twice. u32."""
    with np.errstate(over="ignore"):
        k = np.uint32(key & 0xFFFFFFFF)
        h = index.astype(np.uint32) ^ k
        h = (h ^ (h >> np.uint32(16))) * np.uint32(0x7FEB352D)
        h = (h ^ (h >> np.uint32(15)) ^ (k * np.uint32(0x7FEB352D))) * np.uint32(0x846CA68B)
        return h ^ (h >> np.uint32(16))


def hashed_uniform(index: Array, key: int) -> Array:
    """The counter's uniform numbers: f64 in (0, 1)."""
    return ((hashed_bits(index, key) >> np.uint32(9)).astype(np.float64) + 0.5) * 2.0**-23


def sampled_places(n: int, m: int, key: int) -> Array:
    """The sample of m of n that the key draws."""
    width, offset = n // m, (counter.key(key) & 0xFFFFFFFF) * n // 2**32
    drawn = (hashed_bits(np.arange(m), key) >> np.uint32(9)).astype(np.int64)
    return (offset + np.arange(m) * width + drawn * width // 2**23) % n


def same_but_for_nan(first: Tensor, second: Tensor) -> bool:
    """Equal bits; a NaN equals any NaN (no standard says which one comes out of a sum)."""
    nan = first.isnan() & second.isnan()
    ours, theirs = first.masked_fill(nan, 0), second.masked_fill(nan, 0)
    return torch.equal(ours, theirs) and torch.equal(ours.signbit(), theirs.signbit())
