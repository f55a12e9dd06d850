"""Thresholds of all tensors of a batch: samples, DGC's and RedSync's search, SIDCo's fits (c/thresholds.c).

Nothing is read back. RedSync and DGC compare thresholds with order statistics instead of counting: at least
c entries pass a threshold exactly if the c-th largest does. Sums have the order of the C kernels.
SIDCo's later stages add up the excess of all entries, where C has put the survivors side by side, and
logarithms are the device's: its thresholds equal C's to 2^-40 before they are rounded to float32.

"Keys": the bits of magnitudes, which order as they do."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import triton.language as tl
from torch import Tensor
from triton import jit

from dgc_repro.kernel.batch import Batch, starts
from dgc_repro.kernel.batch import Numbers as Array
from dgc_repro.kernel.chosen import Late
from dgc_repro.kernel.gpu import dense
from dgc_repro.kernel.gpu.chosen import kths
from dgc_repro.kernel.gpu.launch import (
    Numbers,
    floats,
    hashed,
    kernel,
    launch,
    load_tile,
    magnitude,
    store_tile,
    tile,
    tiles,
)
from dgc_repro.kernel.thresholds import FOLD, Keys

TILE = 1024
NUMBERS = 8  # of each chunk, see `_moments`


def sample(x: Batch, drawn: Numbers, offsets: Array, keys: Keys, to: Tensor) -> None:
    """drawn[s] values of every tensor, one tensor after another, at the places of `thresholds.samples`."""
    launch(
        to, _sample, tiles(drawn, TILE), drawn, x.sizes, x, offsets.view(np.uint64), keys, starts(drawn),
        to, TILE=TILE,
    )  # fmt: skip


@kernel
def _sample(owner, first, drawn, sizes, x, offsets, keys, starts, values, TILE: tl.constexpr):
    s, t = tile(owner, first)
    i = t * TILE + tl.arange(0, TILE)
    m, n = tl.load(drawn + s), tl.load(sizes + s)
    there, width = i < m, n // m
    random = hashed(i.to(tl.uint32), tl.load(keys + s).to(tl.uint32))
    place = tl.load(offsets + s).to(tl.int64) + i * width
    place += ((random >> 9).to(tl.int64) * width) >> 23
    place = tl.where(place >= n, place - n, place)
    value = tl.load(floats(x, s) + place, mask=there, other=0.0)
    tl.store(values + tl.load(starts + s) + i, value, mask=there)


def lowered(
    x: Batch, ks: Numbers, fewest: Numbers, limits: Tensor, share: float, rounds: int
) -> Tensor:
    """Limits (keys) that are lowered to a share of themselves until `fewest` entries reach them, in so many
    rounds at most, and not below the k-th largest key."""
    state, num = kths(x, ks, fewest), len(x)
    launch(limits, _lower, (1,) * num, limits, state, num, SHARE=share, ROUNDS=rounds)
    return limits


@jit
def _key(threshold):
    """The key of a magnitude, rounded to float32."""
    return magnitude(threshold.to(tl.float32))


@jit
def _value(key):
    return key.to(tl.float32, bitcast=True).to(tl.float64)


@kernel
def _lower(owner, first, limits, state, num, SHARE: tl.constexpr, ROUNDS: tl.constexpr):
    s, _ = tile(owner, first)
    kth, wanted = tl.load(state + s), tl.load(state + num + s)
    key = tl.load(limits + s)
    threshold = _value(key)
    share = tl.full((), SHARE, tl.float64)
    for _ in range(ROUNDS):
        threshold = tl.where(key > wanted, threshold * share, threshold)
        key = _key(threshold)
    tl.store(limits + s, tl.maximum(key, kth))


def searched(
    x: Batch, ks: Numbers, search: Numbers, halvings: int, *, zeros: bool
) -> tuple[Tensor, Tensor]:
    """RedSync's limits (keys), and how many entries at most reach them: where search[s] is 1 and the search
    between mean and largest magnitude finds a limit that k to 2 k entries reach, that; else the k-th key.
    Without ``zeros`` a zero reaches it only in a tensor of zeros."""
    num, device = len(x), x.device
    beyond = tuple([min(2 * k + 1, n) for k, n in zip(ks, x.sizes, strict=True)])
    state, work = kths(x, ks, beyond), _moments_of(x, None, second=False, logs=False)
    limits = torch.empty(num, dtype=torch.int32, device=device)
    wanted = torch.empty(num, dtype=torch.int64, device=device)
    counts, at = _chunks(x.sizes)
    launch(
        limits, _search, (1,) * num, x.sizes, ks, search, counts, at, sum(counts), work, state, num, limits,
        wanted, HALVINGS=halvings, ZEROS=zeros, WIDTH=1024,
    )  # fmt: skip
    return limits, wanted


@kernel
def _search(
    owner, first, sizes, ks, search, counts, starts, num_chunks, sums, state, num, limits, wanted,
    HALVINGS: tl.constexpr, ZEROS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    s, _ = tile(owner, first)
    count, start = tl.load(counts + s), tl.load(starts + s)
    n, k = tl.load(sizes + s), tl.load(ks + s)
    _fold(sums, start, count, WIDTH)
    largest = _largest(sums + 4 * num_chunks, start, count, WIDTH)
    mean = tl.load(sums + start, mask=count > 0, other=0.0) / n.to(tl.float64)
    kth, beyond = tl.load(state + s), tl.load(state + num + s)
    beyond = tl.where(2 * k + 1 > n, -1, beyond)
    low, high = mean * 0.0, mean * 0.0 + 1.0
    found = kth * 0 - 1
    looking = (tl.load(search + s) > 0) & (k < n) & (largest < float("inf"))
    for _ in range(HALVINGS):
        ratio = (low + high) / 2
        limit = (
            _key(mean + ratio * (largest - mean)) + 1
        )  # |x| > t is |x| >= the number that follows t
        few = limit > kth
        found = tl.where(looking & (found < 0) & (limit <= kth) & (limit > beyond), limit, found)
        low, high = tl.where(few, low, ratio), tl.where(few, ratio, high)
    limit, most = tl.where(found < 0, kth, found), tl.where(found < 0, k, n)
    if not ZEROS:
        most = tl.where((largest != 0) & (limit == 0), n, most)
        limit = tl.where(largest != 0, tl.maximum(limit, 1), limit)
    tl.store(limits + s, limit)
    tl.store(wanted + s, most)


def one_signed(x: Batch, sign: int, to: Sequence[Tensor]) -> tuple[Batch, Tensor]:
    """Every tensor with zeros in place of its values of one sign: of the other than ``sign`` (1 or -1), or of
    ``sign`` where the tensor has no value of it. And the sign that is left: i32[tensors]."""
    signed = Batch(x.names, to)
    signs = torch.full((len(x),), sign, dtype=torch.int32, device=x.device)
    _keep(x, signs, signed)
    largest = dense.summed(signed, dense.PEAKS)[1]
    signs = torch.where(largest == 0, -signs, signs)  # of a NaN `largest` is one
    _keep(x, signs, signed)
    return signed, signs


def _keep(x: Batch, signs: Tensor, to: Batch) -> None:
    launch(signs, _keep_sign, tiles(x.sizes, TILE), x.sizes, x, signs, to, TILE=TILE)


@kernel
def _keep_sign(owner, first, sizes, x, signs, to, TILE: tl.constexpr):
    s, t = tile(owner, first)
    n = tl.load(sizes + s)
    value = load_tile(floats(x, s), t, n, 0.0, TILE)
    kept = (value * tl.load(signs + s).to(tl.float32) > 0) | (value != value)
    store_tile(floats(to, s), t, n, tl.where(kept, value, 0.0), TILE)


def averaged(found: Late, x: Batch, signs: Tensor) -> Late:
    """The same entries of x, all of a tensor with the mean of their values, which have one sign."""

    def write(counts: Numbers) -> tuple[Tensor, Tensor]:
        sums = _moments_of(found.values_of(x), None, second=False, logs=False)
        of_chunks, at = _chunks(counts)
        launch(
            sums, _average, (1,) * len(counts), counts, starts(counts), of_chunks, at, sums, signs,
            found.values, WIDTH=1024,
        )  # fmt: skip
        return found.values, found.indices

    return Late(found.sizes, found.unread, write)


@kernel
def _average(
    owner, first, sizes, starts, chunks, chunks_at, sums, signs, values, WIDTH: tl.constexpr
):
    s, _ = tile(owner, first)
    n, at = tl.load(sizes + s), tl.load(chunks_at + s)
    count = tl.load(chunks + s)
    _fold(sums, at, count, WIDTH)
    total = tl.load(sums + at, mask=count > 0, other=0.0)
    mean = total / tl.maximum(n, 1).to(tl.float64) * tl.load(signs + s).to(tl.float64)
    to = values + tl.load(starts + s)
    for begin in range(0, n, WIDTH):
        i = begin + tl.arange(0, WIDTH)
        tl.store(to + i, tl.where(i < n, mean.to(tl.float32), 0.0), mask=i < n)


def fitted(
    x: Batch, ks: Numbers, fit: str, stages: Numbers, first_share: float
) -> tuple[Tensor, Tensor]:
    """SIDCo's limits (keys), and how many entries at most reach them: thresholds that are fitted in so many
    stages, or the k-th key where nothing fits."""
    num, device = len(x), x.device
    state = kths(x, ks)
    reals = torch.zeros(
        2 * num, dtype=torch.float64, device=device
    )  # threshold; log of later shares
    whole = torch.zeros(3 * num, dtype=torch.int32, device=device)  # ends; smallest; largest
    counts, at = _chunks(x.sizes)
    for stage in range(max(stages)):
        logs = fit == "gamma" and stage == 0
        second = fit != "exponential" and not logs
        work = _moments_of(x, reals, second=second, logs=logs)
        launch(
            work, _fit, (1,) * num, ks, x.sizes, stages, counts, at, sum(counts), work, reals, whole, num,
            stage, first_share, FIRST=stage == 0, SECOND=second, LOGS=logs, WIDTH=1024,
        )  # fmt: skip
    limits = torch.empty(num, dtype=torch.int32, device=device)
    wanted = torch.empty(num, dtype=torch.int64, device=device)
    launch(limits, _settle, (1,) * num, ks, x.sizes, reals, whole, state, num, limits, wanted)
    return limits, wanted


def _chunks(sizes: Numbers) -> tuple[Numbers, Numbers]:
    counts = tiles(sizes, FOLD)
    return counts, starts(counts)


def _moments_of(x: Batch, above: Tensor | None, *, second: bool, logs: bool) -> Tensor:
    """Moments of the magnitudes above a limit, of each chunk: rows of f64, see `_moments`."""
    counts = tiles(x.sizes, FOLD)
    sums = torch.empty(NUMBERS * sum(counts), dtype=torch.float64, device=x.device)
    launch(
        sums, _moments, counts, x.sizes, x, sums if above is None else above, sums, sum(counts),
        ABOVE=above is not None, SECOND=second, LOGS=logs, TILE=FOLD,
    )  # fmt: skip
    return sums


@jit
def _halves(a, SIZE: tl.constexpr):
    """Value i and value i + SIZE / 2."""
    return tl.split(tl.permute(tl.reshape(a, (2, SIZE // 2)), (1, 0)))


@jit
def _folded(a, SIZE: tl.constexpr):
    """The sum of all values by halves, f64[1]."""
    if SIZE > 1:
        one, other = _halves(a, SIZE)
        total = _folded(one + other, SIZE // 2)
    else:
        total = a
    return total


@jit
def _multiplied(a, SIZE: tl.constexpr, LEFT: tl.constexpr):
    """Products by halves: LEFT are left."""
    if SIZE > LEFT:
        one, other = _halves(a, SIZE)
        product = _multiplied(one * other, SIZE // 2, LEFT)
    else:
        product = a
    return product


@jit
def _mantissa(a):
    """In [1/2, 1), of a positive normal number; and its exponent."""
    bits = a.to(tl.int64, bitcast=True)
    exponent = (bits >> 52) - 1022
    bits = (bits & 0x000FFFFFFFFFFFFF) | 0x3FE0000000000000
    return bits.to(tl.float64, bitcast=True), exponent


@kernel
def _moments(
    owner, first, sizes, x, above, sums, num_chunks, ABOVE: tl.constexpr, SECOND: tl.constexpr,
    LOGS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Of a chunk: the sum of the excess, of its square, the product of the magnitudes (mantissa, exponent),
    the largest magnitude, how many are above the limit, and the smallest of these."""
    s, t = tile(owner, first)
    i = t * TILE + tl.arange(0, TILE)
    # Not `load_tile`: sums by halves of a tile in fours need up to 2.2 kB of stack.
    value = tl.load(floats(x, s) + i, mask=i < tl.load(sizes + s), other=0.0)
    size = tl.abs(value)
    limit = tl.load(above + s) if ABOVE else tl.zeros((), tl.float64)
    inside = size > limit.to(tl.float32)
    excess = tl.where(inside, size.to(tl.float64) - limit, 0.0)
    one = tl.arange(0, 1)
    to = sums + tl.program_id(0) + one
    tl.store(to, _folded(excess, TILE))
    if SECOND:
        tl.store(to + num_chunks, _folded(excess * excess, TILE))
    count = tl.sum(inside.to(tl.int32), 0)
    if LOGS:
        part, exponent = _mantissa(tl.where(inside, size.to(tl.float64), 0.5))
        product, rest = _mantissa(_multiplied(part, TILE, 8))
        total = tl.sum(exponent, 0) + tl.sum(rest, 0) + TILE - count
        product, last = _mantissa(_multiplied(product, 8, 1))
        tl.store(to + 2 * num_chunks, product)
        tl.store(to + 3 * num_chunks, (last + total).to(tl.float64))
    key = magnitude(value)
    tl.store(sums + 4 * num_chunks + tl.program_id(0), _value(tl.max(key, 0)))
    tl.store(sums + 5 * num_chunks + tl.program_id(0), count.to(tl.float64))
    smallest = tl.min(tl.where(inside, key, 0x7F800000), 0)
    tl.store(sums + 6 * num_chunks + tl.program_id(0), _value(smallest))


@jit
def _fold(sums, start, count, WIDTH: tl.constexpr):
    """The sum of `count` numbers by halves, left where the first one was."""
    half = count * 0 + 1
    while half < count:
        half *= 2
    left = count
    while half > 1:
        half = half // 2
        for at in range(0, left - half, WIDTH):
            i = at + tl.arange(0, WIDTH)
            there = i + half < left
            one = tl.load(sums + start + i, mask=there, other=0.0)
            other = tl.load(sums + start + half + i, mask=there, other=0.0)
            tl.store(sums + start + i, one + other, mask=there)
        tl.debug_barrier()
        left = tl.minimum(left, half)


@jit
def _largest(numbers, start, count, WIDTH: tl.constexpr):
    found = tl.zeros((WIDTH,), tl.float64)
    for at in range(0, count, WIDTH):
        i = at + tl.arange(0, WIDTH)
        number = tl.load(numbers + start + i, mask=i < count, other=0.0)
        found = tl.where((number > found) | (number != number), number, found)
    nan = tl.sum((found != found).to(tl.int32), 0) > 0
    return tl.where(nan, float("nan"), tl.max(found, 0))


@jit
def _smallest(numbers, start, count, WIDTH: tl.constexpr):
    found = tl.zeros((WIDTH,), tl.float64) + float("inf")
    for at in range(0, count, WIDTH):
        i = at + tl.arange(0, WIDTH)
        found = tl.minimum(found, tl.load(numbers + start + i, mask=i < count, other=float("inf")))
    return tl.min(found, 0)


@jit
def _sum(numbers, start, count, WIDTH: tl.constexpr):
    """Of whole numbers, which are exact in any order."""
    total = tl.zeros((WIDTH,), tl.float64)
    for at in range(0, count, WIDTH):
        i = at + tl.arange(0, WIDTH)
        total += tl.load(numbers + start + i, mask=i < count, other=0.0)
    return tl.sum(total, 0)


@jit
def _logs(mantissas, exponents, start, count, WIDTH: tl.constexpr):
    """The logarithm of the product of all chunks."""
    half = count * 0 + 1
    while half < count:
        half *= 2
    left = count
    exponent = tl.zeros((WIDTH,), tl.int64)
    while half > 1:
        half = half // 2
        for at in range(0, left - half, WIDTH):
            i = at + tl.arange(0, WIDTH)
            there = i + half < left
            one = tl.load(mantissas + start + i, mask=there, other=1.0)
            other = tl.load(mantissas + start + half + i, mask=there, other=1.0)
            product, own = _mantissa(one * other)
            exponent += tl.where(there, own, 0)
            tl.store(mantissas + start + i, product, mask=there)
        tl.debug_barrier()
        left = tl.minimum(left, half)
    whole = _sum(exponents, start, count, WIDTH) + tl.sum(exponent, 0).to(tl.float64)
    last = tl.load(mantissas + start, mask=count > 0, other=1.0)
    return whole * 0.6931471805599453 + tl.log(last)


@jit
def _log_gamma(x):
    """log Gamma(x), x > 0: Stirling's series at x + 8."""
    product = x * (x + 1) * (x + 2) * (x + 3) * (x + 4) * (x + 5) * (x + 6) * (x + 7)
    y = x + 8
    z = 1.0 / (y * y)
    series = z * (-1.0 / 1680 + z * (1.0 / 1188 - z * (691.0 / 360360)))
    series = (1.0 / 12 + z * (-1.0 / 360 + z * (1.0 / 1260 + series))) / y
    return (y - 0.5) * tl.log(y) - y + 0.9189385332046727 + series - tl.log(product)


@jit
def _minus_1(z):
    """exp(z) - 1 (Kahan)."""
    u = tl.exp(z)
    near = tl.where(u == 1, z, (u - 1) * z / tl.log(u))
    return tl.where(u == 0, -1.0, near)


@kernel
def _fit(
    owner, first, ks, sizes, stages, counts, starts, num_chunks, sums, reals, whole, num, stage,
    first_share, FIRST: tl.constexpr, SECOND: tl.constexpr, LOGS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """A stage. In `whole`: 0 while stages follow, 1 after the last, 2 where nothing fits."""
    s, _ = tile(owner, first)
    count, start = tl.load(counts + s), tl.load(starts + s)
    k, wanted, ended = tl.load(ks + s), tl.load(stages + s), tl.load(whole + s)
    _fold(sums, start, count, WIDTH)
    total = tl.load(sums + start, mask=count > 0, other=0.0)
    number = _sum(sums + 5 * num_chunks, start, count, WIDTH)
    mean = total / number
    if FIRST:
        tl.store(whole + num + s, _key(_smallest(sums + 6 * num_chunks, start, count, WIDTH)))
        tl.store(whole + 2 * num + s, _key(_largest(sums + 4 * num_chunks, start, count, WIDTH)))
        share = k.to(tl.float64) / number
        log_share, log_first = tl.log(share), tl.log(mean * 0.0 + first_share)
        alone = (wanted == 1) | (share >= first_share)
        later = (log_share - log_first) / (wanted - 1).to(tl.float64)
        tl.store(reals + num + s, tl.where(alone, 0.0, later))
        log_share = tl.where(alone, log_share, log_first)
        ended = tl.where((k >= tl.load(sizes + s)) | (k.to(tl.float64) >= number), 2, ended)
    else:
        log_share = tl.load(reals + num + s)
        ended = tl.where((ended == 0) & (stage >= wanted), 1, ended)
    ended = tl.where((ended == 0) & (number == 0), 1, ended)
    nothing = mean * float("nan")
    excess = -mean * log_share
    if LOGS:
        logs = _logs(sums + 2 * num_chunks, sums + 3 * num_chunks, start, count, WIDTH)
        below = tl.log(mean) - logs / number
        shape = (3 - below + tl.sqrt((below - 3) * (below - 3) + 24 * below)) / (12 * below)
        gamma = -mean / shape * (log_share + _log_gamma(shape))
        excess = tl.where(below > 0, tl.where(gamma > 0, gamma, excess), nothing)
    if SECOND:
        _fold(sums + num_chunks, start, count, WIDTH)
        squares = tl.load(sums + num_chunks + start, mask=count > 0, other=0.0)
        variance = squares / number - mean * mean
        ratio = mean * mean / variance
        shape, scale = (1 - ratio) / 2, mean * (ratio + 1) / 2
        tail = tl.where(
            shape == 0, -scale * log_share, scale / shape * _minus_1(-shape * log_share)
        )
        equal = (mean == 0) | (variance <= mean * mean * 1e-12)
        excess = tl.where(equal | (squares == float("inf")), nothing, tail)
    threshold = tl.load(reals + s)
    further = (threshold + tl.where(excess < 0, 0.0, excess)).to(tl.float32).to(tl.float64)
    fits = (further < float("inf")) & (mean < float("inf"))
    tl.store(reals + s, tl.where((ended == 0) & fits, further, threshold))
    tl.store(whole + s, tl.where((ended == 0) & (fits == 0), 2 if FIRST else 1, ended))


@kernel
def _settle(owner, first, ks, sizes, reals, whole, state, num, limits, wanted):
    """The fitted threshold, if something passes it and something does not, else the k-th key."""
    s, _ = tile(owner, first)
    limit = tl.maximum(_key(tl.load(reals + s)), 1)
    smallest, largest = tl.load(whole + num + s), tl.load(whole + 2 * num + s)
    fits = (tl.load(whole + s) != 2) & (limit > smallest) & (limit <= largest)
    tl.store(limits + s, tl.where(fits, limit, tl.load(state + s)))
    tl.store(wanted + s, tl.where(fits, tl.load(sizes + s), tl.load(ks + s)))
