"""The k largest magnitudes of each tensor of a batch, exactly, or all that reach a limit (c/select.c).

Histograms, each over the next bits of the magnitudes (`WIDTHS`), give the k-th largest magnitude of each
tensor; then the entries above it, and the first of those equal to it, are counted in tiles and written in
order. Nothing is read back, but how many entries reach a limit: the payload's size. The host reads it when it
is needed (`Unread`)."""

from __future__ import annotations

from collections.abc import Callable

import torch
import triton.language as tl
from torch import Tensor
from triton import __version__, jit

from dgc_repro.kernel.batch import Batch, starts
from dgc_repro.kernel.gpu.launch import (
    Numbers,
    Unread,
    floats,
    kernel,
    launch,
    load_tile,
    magnitude,
    scan,
    tile,
    tiles,
)

TILE = 2048
PER_PROGRAM = 8  # tiles of a histogram
SMALL, LARGE = (8, 8, 8, 7), (11, 10, 10)
WIDTHS = SMALL if tuple(map(int, __version__.split(".")[:2])) < (3, 8) else LARGE
"""Bits of each histogram, of the 31 bits of a magnitude from the highest on. Triton 3.6 and 3.7 do one
population count a value for every 32 bins: 64 for 2,048 bins, 8 for 256. Triton 3.8 and 3.9 add to shared
memory, once a value whatever the number of bins, so that fewer passes over the tensor are better. Compiled
code was counted (for sm_75 and sm_80); no time was measured."""


def topk(x: Batch, ks: Numbers, values: Tensor, indices: Tensor) -> None:
    """The ks[s] entries of largest magnitude of every tensor s (at most as many as it has; of equal ones
    those with the lower index), one tensor after another. values: f32[sum of ks]; indices: i32, as many."""
    state = kths(x, ks)
    found, counts = _counted(x, state)
    _written(x, state, found, counts, ks, values, indices)


def kths(x: Batch, *ks: Numbers) -> Tensor:
    """The key of the k-th largest magnitude of every tensor, for one ks after another, and then how many of
    the entries equal to it are among the k largest: i32[2 * len(ks) * tensors]. Each k at most n."""
    every = tuple([k for of_one in ks for k in of_one])
    count, device = len(every), x.device
    bins, shift = 1 << max(WIDTHS), sum(WIDTHS)
    work = torch.zeros((len(WIDTHS) * bins + 2) * count, dtype=torch.int32, device=device)
    state: Tensor
    *hists, state = work.split([bins * count] * len(WIDTHS) + [2 * count])
    for number, width in enumerate(WIDTHS):
        shift -= width
        launch(
            work, _histogram, tiles(x.sizes, TILE * PER_PROGRAM), x.sizes, x, state, hists[number],
            len(x), RANKS=len(ks), SHIFT=shift, WIDTH=width, BINS=bins, TILE=TILE, TILES=PER_PROGRAM,
        )  # fmt: skip
        launch(
            work, _pick, (1,) * count, every, state, hists[number], count, FIRST=number == 0,
            WIDTH=width, BINS=bins,
        )  # fmt: skip
    return state


def reaching(
    x: Batch, limits: Tensor, wanted: Tensor | Numbers, expected: Numbers
) -> tuple[Unread, Callable[[Numbers], tuple[Tensor, Tensor]]]:
    """How many entries `kernel.chosen.reaching` chooses of each tensor, and what gives, for these numbers,
    the values and indices of the entries. limits: i32[tensors]; wanted: i64[tensors]. ``expected``: the
    numbers of fake tensors."""
    num, device = len(x), x.device
    state = torch.cat([limits, torch.empty_like(limits)])
    chosen = torch.empty(num, dtype=torch.int64, device=device)
    found, counts = _counted(x, state)
    launch(
        found, _fill, (1,) * num, counts, starts(counts), found, sum(counts), wanted, state, num, chosen,
        WIDTH=1024,
    )  # fmt: skip

    def write(sizes: Numbers) -> tuple[Tensor, Tensor]:
        values = torch.empty(sum(sizes), dtype=torch.float32, device=device)
        indices = torch.empty(sum(sizes), dtype=torch.int32, device=device)
        _written(x, state, found, counts, sizes, values, indices)
        return values, indices

    return Unread(chosen, expected), write


def _counted(x: Batch, state: Tensor) -> tuple[Tensor, Numbers]:
    """How many keys of each tile are above the limit, and how many equal to it; the tiles of each tensor."""
    counts = tiles(x.sizes, TILE)
    found = torch.empty(2, sum(counts), dtype=torch.int32, device=x.device)
    launch(found, _count, counts, x.sizes, x, state, found, sum(counts), TILE=TILE)
    return found, counts


def _written(
    x: Batch, state: Tensor, found: Tensor, counts: Numbers, sizes: Numbers, values: Tensor, indices: Tensor
) -> None:  # fmt: skip
    scan(found, counts)
    launch(
        found, _write, counts, x.sizes, x, state, len(x), found, sum(counts), starts(sizes), values,
        indices, TILE=TILE,
    )  # fmt: skip


@jit
def _keys(sizes, x, s, t, TILE: tl.constexpr):
    """Values of a tile, their keys (-1 beyond the end), their places."""
    i, n = t * TILE + tl.arange(0, TILE), tl.load(sizes + s)
    value = load_tile(floats(x, s), t, n, 0.0, TILE)
    return value, tl.where(i < n, magnitude(value), -1), i


@kernel
def _histogram(
    owner, first, sizes, x, state, hists, num, RANKS: tl.constexpr, SHIFT: tl.constexpr,
    WIDTH: tl.constexpr, BINS: tl.constexpr, TILE: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """Count the keys that begin with the bits found so far by their next WIDTH bits."""
    s, t = tile(owner, first)
    bins: tl.constexpr = 1 << WIDTH
    for rank in range(RANKS):
        prefix = tl.load(state + rank * num + s)
        counts = tl.zeros((bins,), tl.int32)
        for part in range(TILES):
            _, key, _ = _keys(sizes, x, s, t * TILES + part, TILE)
            # Two shifts: a pass over the highest bits would shift by 31, and the -1 must not match.
            same = (key >= 0) & (((key >> SHIFT) >> WIDTH) == prefix)
            counts += tl.histogram((key >> SHIFT) & (bins - 1), bins, mask=same)
        to = hists + (rank * num + s).to(tl.int64) * BINS + tl.arange(0, bins)
        tl.atomic_add(to, counts, mask=counts > 0, sem="relaxed")


@kernel
def _pick(
    owner, first, ks, state, hists, num, FIRST: tl.constexpr, WIDTH: tl.constexpr, BINS: tl.constexpr
):  # fmt: skip
    """The next bits of the k-th largest key, and its rank among the keys that begin with them."""
    s, _ = tile(owner, first)
    bins: tl.constexpr = 1 << WIDTH
    rank = tl.load(ks + s).to(tl.int32) if FIRST else tl.load(state + num + s)
    bin = bins - 1 - tl.arange(0, bins)
    counts = tl.load(hists + s.to(tl.int64) * BINS + bin)
    upto = tl.cumsum(counts, 0)
    here = (upto - counts < rank) & (upto >= rank)
    chosen = tl.where(rank > 0, tl.max(tl.where(here, bin, 0), 0), bins - 1)
    tl.store(state + s, (tl.load(state + s) << WIDTH) | chosen)
    tl.store(state + num + s, rank - tl.sum(tl.where(here, upto - counts, 0), 0))


@kernel
def _count(owner, first, sizes, x, state, found, num_tiles, TILE: tl.constexpr):
    """How many keys of each tile are above the k-th, and how many equal to it."""
    s, t = tile(owner, first)
    _, key, _ = _keys(sizes, x, s, t, TILE)
    limit = tl.load(state + s)
    tl.store(found + tl.program_id(0), tl.sum((key > limit).to(tl.int32), 0))
    tl.store(found + num_tiles + tl.program_id(0), tl.sum((key == limit).to(tl.int32), 0))


@kernel
def _fill(
    owner, first, counts, starts, found, num_tiles, wanted, state, num, chosen, WIDTH: tl.constexpr
):
    """How many entries equal to the limit are chosen, and how many entries altogether."""
    s, _ = tile(owner, first)
    here, count = found + tl.load(starts + s), tl.load(counts + s)
    above, equal = tl.load(counts + s) * 0, tl.load(counts + s) * 0
    for at in range(0, count, WIDTH):
        i = at + tl.arange(0, WIDTH)
        above += tl.sum(tl.load(here + i, mask=i < count, other=0).to(tl.int64), 0)
        equal += tl.sum(tl.load(here + num_tiles + i, mask=i < count, other=0).to(tl.int64), 0)
    ties = tl.minimum(tl.maximum(tl.load(wanted + s) - above, 0), equal)
    ties = tl.where(equal == 1, 1, ties)
    tl.store(state + num + s, ties.to(tl.int32))
    tl.store(chosen + s, above + ties)


@kernel
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
