"""What thresholds are made of: samples, order statistics and moments of the magnitudes of every tensor.

Every sum has one order, whatever the kernel: `FOLD` values at a time are folded in halves in float64
(value i and value i + FOLD / 2, and so on), then the results of all chunks are. So the kernels in C
and those of tensors give the same bits, and a threshold computed from them is the same number.

Magnitudes are compared as integers, the bits of a float32 without its sign ("keys"), which order as the
magnitudes do; a NaN lies above infinity.

Letters: n = values of a tensor, k = entries wanted, m = values of a sample.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dgc_repro.kernel import counter, native
from dgc_repro.kernel.batch import Batch, Numbers, Stretches, integers, narrow, starts
from dgc_repro.kernel.cached import cached
from dgc_repro.kernel.select import Scratch, magnitude_bits

FOLD = 4096  # values that are folded into one (c/thresholds.c)
PRODUCT = 512  # mantissas of [1/2, 1) that may be multiplied before they are split again
SMALLEST_SAMPLE = 512
LARGEST = 0x7FFFFFFF  # above every number: a NaN
INFINITE = 0x7F800000
ABOVE = 64
"""Of a sample, so many at least should lie above the threshold: an estimate of k then scatters by
1 / 8 of it at most (one standard deviation)."""

Keys = npt.NDArray[np.int32]
Reals = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]

_MOMENTS = np.dtype(
    [("total", "f8"), ("squares", "f8"), ("mantissa", "f8"), ("exponent", "i8"), ("count", "i8"),
     ("largest", "i4")],
    align=True,
)  # fmt: skip  # `moments_t` of c/thresholds.c
_sample = native.Function("dgc_sample_all")
_kth = native.Function("dgc_kth_all")
_moments = native.Function("dgc_moments_all")


@dataclass(frozen=True, slots=True)
class Moments:
    """Of each tensor's magnitudes above a limit: how many there are, the sums of their excess over it and of
    its square, and the sum of their logarithms (where asked for). ``largest``: of all magnitudes."""

    count: Numbers
    total: Reals
    squares: Reals
    log_total: Reals
    largest: Reals

    def of(self, places: Numbers) -> Moments:
        """Those of some tensors."""
        return Moments(*(getattr(self, field)[places] for field in self.__slots__))


def keys_of(magnitudes: Reals) -> Keys:
    """The keys of magnitudes, rounded to float32. They may lie beyond float32's range."""
    with np.errstate(over="ignore", invalid="ignore"):
        return magnitudes.astype(np.float32).view(np.int32) & np.int32(LARGEST)


def magnitudes_of(keys: Keys) -> Reals:
    """The magnitudes that have these keys."""
    with np.errstate(invalid="ignore"):  # a NaN
        return keys.view(np.float32).astype(np.float64)


def rounded(magnitudes: Reals) -> Reals:
    """The nearest magnitudes of float32."""
    return magnitudes_of(keys_of(magnitudes))


def sample_size(n: int, k: int, share: float) -> int:
    """How many values to look at for a threshold that k of n pass; n where it is not worth sampling."""
    wanted = max(math.ceil(share * n), math.ceil(ABOVE * n / max(k, 1)), SMALLEST_SAMPLE)
    return wanted if 2 * wanted <= n else n


@dataclass(frozen=True)
class Sample:
    """What thresholds are estimated from. ``values``: a sample of each tensor, or all of it where that is not
    worth it; ``ranks``: of the threshold among their magnitudes; ``drawn``: which are samples."""

    values: Batch
    ranks: tuple[int, ...]
    drawn: Mask

    def limits(self) -> Any:
        """The key of the threshold of each tensor: see `limits`."""
        return limits(self.values, self.ranks)


def estimates(x: Batch, ks: tuple[int, ...], share: float, keys: Keys, scratch: Scratch) -> Sample:
    """What thresholds that about k of n values pass are estimated from."""
    m, ranks, drawn = _sizes(x.sizes, ks, share)
    return Sample(samples(x, m, keys, scratch), ranks, drawn)


@cached()
def _sizes(
    sizes: tuple[int, ...], ks: tuple[int, ...], share: float
) -> tuple[tuple[int, ...], tuple[int, ...], Mask]:
    pairs = list(zip(sizes, ks, strict=True))
    m = tuple([n if k >= n else sample_size(n, k, share) for n, k in pairs])
    ranks = tuple(
        [-(-of_one * min(k, n) // max(n, 1)) for of_one, (n, k) in zip(m, pairs, strict=True)]
    )
    return m, ranks, np.array(m, dtype=np.int64) < np.array(sizes, dtype=np.int64)


def samples(x: Batch, m: tuple[int, ...], keys: Keys, scratch: Scratch) -> Batch:
    """m values of each tensor, from places that depend on the key alone; itself where m = n. Else 2 m <= n.

    One of each n // m neighbours, at a hashed place among them, the first at a hashed place of the
    tensor: every entry is as likely as any other, and no period of the tensor is met."""
    drawn = tuple([0 if of_one == n else of_one for of_one, n in zip(m, x.sizes, strict=True)])
    if not any(drawn):
        return x
    wanted = np.array(drawn, dtype=np.int64)
    first = np.array(starts(drawn), dtype=np.int64)
    buffer = scratch("sample", sum(drawn), torch.float32, x.device)
    found = Stretches(x, buffer, np.where(wanted == 0, -1, first), m)
    hashed = counter.keys_of(keys).view(np.uint32).tolist()
    of_each = [h * n >> 32 for h, n in zip(hashed, x.sizes, strict=True)]
    offsets = np.array(of_each, dtype=np.int64)
    if x.native:
        _sample(
            len(x), x.lengths, x.pointers, wanted.ctypes.data, offsets.ctypes.data,
            keys.ctypes.data, buffer.data_ptr(), first.ctypes.data,
        )  # fmt: skip
    elif x.on_gpu:
        from dgc_repro.kernel.gpu import thresholds as gpu

        gpu.sample(x, drawn, offsets, keys, buffer)
    else:
        for i, of_one in enumerate(drawn):
            if of_one:
                places = _places(x.sizes[i], of_one, of_each[i], int(keys[i]), x.device)
                found.tensors[i].copy_(x.tensors[i].view(-1)[places])
    return found


def _places(n: int, m: int, offset: int, key: int, device: torch.device) -> Tensor:
    """Of the sample of a tensor: i64[m]."""
    width = n // m
    places = torch.arange(m, device=device)
    hashed = counter.bits(places.to(torch.int32), counter.on_device(key, device))
    places = offset + places * width + (((hashed.long() >> 9) & 0x7FFFFF) * width >> 23)
    return torch.where(places >= n, places - n, places)


def kths(x: Batch, ks: tuple[int, ...], active: Mask | None = None) -> Keys:
    """The key of the k-th largest magnitude of each tensor, k from 1 to n; 0 of an empty one and of those
    that are not ``active``."""
    found = np.zeros(len(x), dtype=np.int32)
    lengths = _lengths(x, active)
    if x.native:
        _kth(len(x), lengths.ctypes.data, x.pointers, integers(ks), found.ctypes.data)
        return found
    for i in np.flatnonzero(lengths).tolist():
        bits = magnitude_bits(x.tensors[i].view(-1))
        found[i] = int(torch.topk(bits, ks[i], sorted=False).values.min())
    return found


def limits(x: Batch, ks: tuple[int, ...]) -> Any:
    """`kths` as an array; on a GPU as a tensor there, found for all tensors together."""
    if not (x.on_gpu and narrow(x)):
        return kths(x, ks)
    from dgc_repro.kernel.gpu import chosen as gpu

    return gpu.kths(x, ks)[: len(x)]


def moments(
    x: Batch, scratch: Scratch, above: Reals | None = None, *, squares: bool = False, logs: bool = False,
    active: Mask | None = None,
) -> Moments:  # fmt: skip
    """Moments of the magnitudes above a limit for each tensor (a float32 number, at least 0); NaN is in none
    of them.

    ``squares``, ``logs``: whether these sums are wanted. ``active``: which tensors are read; the moments of
    the others are those of an empty tensor."""
    limits = np.zeros(len(x), dtype=np.float32) if above is None else above.astype(np.float32)
    lengths = _lengths(x, active)
    found = np.zeros(len(x), dtype=_MOMENTS)
    if x.native:
        at, size = _chunks(x.sizes)
        chunks = scratch("chunks", size, torch.float64, x.device)
        _moments(
            len(x), lengths.ctypes.data, x.pointers, limits.ctypes.data, squares, logs, chunks.data_ptr(),
            at.ctypes.data, found.ctypes.data,
        )  # fmt: skip
    else:
        found["mantissa"] = 1.0
        for i in np.flatnonzero(lengths).tolist():
            found[i] = _moments_of(x.tensors[i].view(-1), float(limits[i]), squares, logs)
    log_total = np.zeros(len(x))
    if logs:
        log_total = found["exponent"] * math.log(2) + each(math.log, found["mantissa"])
    return Moments(
        found["count"], found["total"], found["squares"], log_total, magnitudes_of(found["largest"])
    )


@cached()
def _chunks(sizes: tuple[int, ...]) -> tuple[Numbers, int]:
    """Where `moments` notes the chunks of each tensor, and how many numbers these are."""
    numbers = tuple([3 * -(-n // FOLD) for n in sizes])
    return np.array(starts(numbers), dtype=np.int64), sum(numbers)


def _lengths(x: Batch, active: Mask | None) -> Numbers:
    return x.counts if active is None else np.where(active, x.counts, 0)


def each(function: Callable[[float], float], numbers: Reals) -> Reals:
    """A function of the standard library, whose last bit does not depend on the processor's vectors."""
    return np.array([function(number) for number in numbers.tolist()], dtype=np.float64)


def _moments_of(
    x: Tensor, above: float, squares: bool, logs: bool
) -> tuple[float, float, float, int, int, int]:
    """What C finds of one tensor, a row of `_MOMENTS`."""
    size = -(-x.numel() // FOLD) * FOLD
    rows = torch.nn.functional.pad(x.abs(), (0, size - x.numel())).view(-1, FOLD)
    inside = rows > above
    excess = torch.where(inside, rows.double() - above, 0.0)
    total = float(_folded(excess))
    second = float(_folded(excess * excess)) if squares else 0.0
    mantissa, exponent = _product(rows, inside) if logs else (1.0, 0)
    return total, second, mantissa, exponent, int(inside.sum()), int(magnitude_bits(x).max())


def _folded(rows: Tensor) -> Tensor:
    """The sum of f64[chunks, FOLD] by halves: of each chunk, then of the chunks."""
    while rows.shape[1] > 1:
        half = rows.shape[1] // 2
        rows = rows[:, :half] + rows[:, half:]
    sums = rows.view(-1)
    half = 1 << (sums.numel() - 1).bit_length()
    while sums.numel() > 1:
        half //= 2
        rest = sums[half:]
        sums = torch.cat([sums[: rest.numel()] + rest, sums[rest.numel() : half]])
    return sums


def _product(rows: Tensor, inside: Tensor) -> tuple[float, int]:
    """The product of the values inside as mantissa and exponent: sums of logarithms without one."""
    values, exponents = torch.frexp(torch.where(inside, rows.double(), 0.5))
    exponent = int(exponents.sum()) + inside.numel() - int(inside.sum())
    multiplied = 1
    while values.shape[1] > 1:
        half = values.shape[1] // 2
        values = values[:, :half] * values[:, half:]
        multiplied *= 2
        if multiplied >= PRODUCT:
            values, exponents = torch.frexp(values)
            exponent += int(exponents.sum())
    left = values.reshape(-1)
    half = 1 << (left.numel() - 1).bit_length()
    while left.numel() > 1:
        half //= 2
        rest = left[half:]
        both, exponents = torch.frexp(left[: rest.numel()] * rest)
        exponent += int(exponents.sum())
        left = torch.cat([both, left[rest.numel() : half]])
    return float(left), exponent
