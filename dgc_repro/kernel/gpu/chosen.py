"""The k largest magnitudes of each tensor of a batch, exactly, without reading anything back (c/select.c).

Three histograms, over 11, 10 and 10 bits of the magnitudes, give the k-th largest magnitude of each tensor;
then the entries above it, and the first of those equal to it, are counted in tiles and written in order."""

from __future__ import annotations

import torch
import triton.language as tl
from torch import Tensor
from triton import jit

from dgc_repro.kernel.batch import Batch, starts
from dgc_repro.kernel.gpu.launch import (
    Numbers,
    floats,
    launch,
    magnitude,
    scan,
    tile,
    tiles,
)

TILE = 2048
PER_PROGRAM = 8  # tiles of a histogram
PASSES = ((20, 11), (10, 10), (0, 10))  # lowest bit, number of bits
BINS = 2048


def topk(x: Batch, ks: Numbers, values: Tensor, indices: Tensor) -> None:
    """The ks[s] entries of largest magnitude of every tensor s (at most as many as it has; of equal ones
    those with the lower index), one tensor after another. values: f32[sum of ks]; indices: i32, as many."""
    on, count = x.tensors[0], len(x)
    work = torch.zeros((len(PASSES) * BINS + 2) * count, dtype=torch.int32, device=on.device)
    *hists, state = work.split([BINS * count] * len(PASSES) + [2 * count])
    for number, (shift, width) in enumerate(PASSES):
        launch(
            on, _histogram, tiles(x.sizes, TILE * PER_PROGRAM), x.sizes, x, state, hists[number],
            SHIFT=shift, WIDTH=width, TILE=TILE, TILES=PER_PROGRAM,
        )  # fmt: skip
        launch(
            on, _pick, (1,) * count, ks, state, hists[number], count, FIRST=number == 0, WIDTH=width
        )  # fmt: skip
    counts = tiles(x.sizes, TILE)
    found = torch.empty(2, sum(counts), dtype=torch.int32, device=on.device)
    launch(on, _count, counts, x.sizes, x, state, found, sum(counts), TILE=TILE)
    scan(found, counts)
    launch(
        on, _write, counts, x.sizes, x, state, count, found, sum(counts), starts(ks), values, indices,
        TILE=TILE,
    )  # fmt: skip


@jit
def _keys(sizes, x, s, t, TILE: tl.constexpr):
    """Values of a tile, their keys (-1 beyond the end), their places."""
    i = t * TILE + tl.arange(0, TILE)
    there = i < tl.load(sizes + s)
    value = tl.load(floats(x, s) + i, mask=there, other=0.0)
    return value, tl.where(there, magnitude(value), -1), i


@jit
def _histogram(
    owner, first, sizes, x, state, hists, SHIFT: tl.constexpr, WIDTH: tl.constexpr, TILE: tl.constexpr,
    TILES: tl.constexpr,
):  # fmt: skip
    """Count the keys that begin with the bits found so far by their next WIDTH bits."""
    s, t = tile(owner, first)
    bins: tl.constexpr = 1 << WIDTH
    prefix = tl.load(state + s)
    counts = tl.zeros((bins,), tl.int32)
    for part in range(TILES):
        _, key, _ = _keys(sizes, x, s, t * TILES + part, TILE)
        # Two shifts: a pass over the highest bits would shift by 31, and the -1 must not match.
        same = (key >= 0) & (((key >> SHIFT) >> WIDTH) == prefix)
        counts += tl.histogram((key >> SHIFT) & (bins - 1), bins, mask=same)
    to = hists + s.to(tl.int64) * 2048 + tl.arange(0, bins)
    tl.atomic_add(to, counts, mask=counts > 0, sem="relaxed")


@jit
def _pick(owner, first, ks, state, hists, num, FIRST: tl.constexpr, WIDTH: tl.constexpr):
    """The next bits of the k-th largest key, and its rank among the keys that begin with them."""
    s, _ = tile(owner, first)
    bins: tl.constexpr = 1 << WIDTH
    rank = tl.load(ks + s).to(tl.int32) if FIRST else tl.load(state + num + s)
    bin = bins - 1 - tl.arange(0, bins)
    counts = tl.load(hists + s.to(tl.int64) * 2048 + bin)
    upto = tl.cumsum(counts, 0)
    here = (upto - counts < rank) & (upto >= rank)
    chosen = tl.where(rank > 0, tl.max(tl.where(here, bin, 0), 0), bins - 1)
    tl.store(state + s, (tl.load(state + s) << WIDTH) | chosen)
    tl.store(state + num + s, rank - tl.sum(tl.where(here, upto - counts, 0), 0))


@jit
def _count(owner, first, sizes, x, state, found, num_tiles, TILE: tl.constexpr):
    """How many keys of each tile are above the k-th, and how many equal to it."""
    s, t = tile(owner, first)
    _, key, _ = _keys(sizes, x, s, t, TILE)
    limit = tl.load(state + s)
    tl.store(found + tl.program_id(0), tl.sum((key > limit).to(tl.int32), 0))
    tl.store(found + num_tiles + tl.program_id(0), tl.sum((key == limit).to(tl.int32), 0))


@jit
def _write(
    owner,
    first,
    sizes,
    x,
    state,
    num,
    found,
    num_tiles,
    starts,
    values,
    indices,
    TILE: tl.constexpr,
):
    """Write the chosen entries: those before an entry are all above and the first ties."""
    s, t = tile(owner, first)
    value, key, i = _keys(sizes, x, s, t, TILE)
    limit, ties = tl.load(state + s), tl.load(state + num + s)
    above, equal = (key > limit).to(tl.int32), (key == limit).to(tl.int32)
    above_before = tl.load(found + tl.program_id(0)) + tl.cumsum(above, 0) - above
    equal_before = tl.load(found + num_tiles + tl.program_id(0)) + tl.cumsum(equal, 0) - equal
    chosen = (above > 0) | ((equal > 0) & (equal_before < ties))
    at = tl.load(starts + s) + above_before + tl.minimum(equal_before, ties)
    tl.store(values + at, value, mask=chosen)
    tl.store(indices + at, i.to(tl.int32), mask=chosen)
