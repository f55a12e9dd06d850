"""Why an allreduce of sparse gradients becomes dense: supports of partial sums along a ring.

In the first half of a ring allreduce (reduce-scatter), the partial sum of one N-th of the gradient
travels from worker to worker, each adding its own. After m workers its support is the union of m
supports. Of independent supports of density d that has density 1 - (1 - d)^m.

``RandomSupports`` draws supports; ``RealSupports`` takes the largest entries of real gradients of N
workers, tensor by tensor, which overlap. It also adds up k-bit codes of them: N codes of magnitude
up to L = 2^(k-1) - 1 add up to at most N L, which needs log2 N more bits.

Paper: EECE695D, distributed training part 2 (lecture), questions on compressed allreduce.
Bytes: an entry is 4 bytes of value and 4 of place, a dense value 4. A ring of sparse partial sums
sends d_m n / N entries in hop m (m = 1 ... N-1), then N - 1 times d_N n / N; an allgather of the N
payloads N - 1 times k entries; a dense ring 2 (N - 1) / N n values.

Letters: n = values, N = workers, m = workers summed, k = entries a worker sends, d = k / n.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from dgc_repro.checked import Count, checked
from dgc_repro.study.given import (
    GRADIENTS,
    NOTHING,
    FromTwo,
    Gradients,
    Row,
)

Mask = NDArray[np.bool_]
ENTRY_BYTES, VALUE_BYTES = 8, 4
DENSITY, CODES = "density", "codes"
RANDOM, GRADIENT, FED = "random", "gradient", "error-fed"


@checked
class RandomSupports:
    """Independent supports. ``values``: n; ``workers``: the numbers N; ``factors``: n / k."""

    values: Count
    workers: FromTwo
    factors: FromTwo
    takes = NOTHING

    def __post_init__(self) -> None:
        if self.values < max(self.factors):
            raise ValueError(
                f"values: a whole number from {max(self.factors)}, the largest factor, got {self.values}"
            )

    def run(self, seed: int) -> list[Row]:
        rows: list[Row] = []
        for factor in self.factors:
            generator = np.random.default_rng([seed, factor])
            k = round(self.values / factor)
            masks = np.zeros((max(self.workers), self.values), dtype=np.bool_)
            for mask in masks:
                mask[generator.choice(self.values, k, replace=False, shuffle=False)] = True
            for count in self.workers:
                rows += ring_rows(RANDOM, factor, masks[:count], (self.values,), (k,))
        return rows


@checked
class RealSupports:
    """Supports of the largest entries of real gradients, and sums of their codes. ``workers``: the
    numbers N, up to as many as there are gradients; ``factors``: n / k; ``bits``: of a code.
    ``steps``: of training before the gradients are taken (launch/study.py)."""

    workers: FromTwo
    factors: FromTwo
    bits: FromTwo
    steps: Count
    takes = GRADIENTS

    def run(self, seed: int, gradients: Gradients) -> list[Row]:
        held = len(gradients.values)
        if max(self.workers) > held:
            raise ValueError(f"workers: at most the {held} that have gradients, got {self.workers}")
        kind = FED if gradients.fed else GRADIENT
        rows: list[Row] = []
        for factor in self.factors:
            kept = tuple(min(n, max(1, round(n / factor))) for n in gradients.sizes)
            masks = np.stack(
                [top_support(worker, gradients.sizes, kept) for worker in gradients.values]
            )
            for count in self.workers:
                rows += ring_rows(kind, factor, masks[:count], gradients.sizes, kept)
        for bits in () if gradients.fed else self.bits:
            rows += code_rows(gradients, self.workers, bits)
        return rows


def ring_rows(
    kind: str, factor: int, masks: Mask, sizes: Sequence[int], kept: Sequence[int]
) -> Iterator[Row]:
    """Density after 1, 2, 4, ... and all hops of a ring of N = len(masks), and the bytes it sends."""
    count, n = masks.shape
    densities = ring_densities(masks)
    payload = sum(kept) * ENTRY_BYTES
    dense = 2 * (count - 1) / count * n * VALUE_BYTES
    sparse = ENTRY_BYTES * n / count * (sum(densities[:-1]) + (count - 1) * densities[-1])
    hops = sorted({2**i for i in range(int(math.log2(count)) + 1)} | {count})
    for summed in hops:
        yield {
            "what": DENSITY,
            "kind": kind,
            "factor": factor,
            "bits": 0,
            "workers": count,
            "summed": summed,
            "value": densities[summed - 1],
            "theory": independent_density(sizes, kept, summed),
            "ring_over_dense": sparse / dense,
            "gather_over_dense": (count - 1) * payload / dense,
        }


def ring_densities(masks: Mask) -> list[float]:
    """Density of the partial sums after 1 ... N workers: the c-th N-th of the values starts at worker
    c and goes round. masks: bool[N, n]."""
    count, n = masks.shape
    edges = np.linspace(0, n, count + 1).astype(int)
    chunks = [slice(int(a), int(b)) for a, b in itertools.pairwise(edges)]
    sums = np.zeros(n, dtype=np.bool_)
    found = []
    for hop in range(count):
        for c, chunk in enumerate(chunks):
            sums[chunk] |= masks[(c + hop) % count, chunk]
        found.append(float(np.count_nonzero(sums)) / n)
    return found


def independent_density(sizes: Sequence[int], kept: Sequence[int], summed: int) -> float:
    """1 - (1 - d)^m, tensor by tensor, of m independent supports."""
    filled = (n * (1 - (1 - k / n) ** summed) for n, k in zip(sizes, kept, strict=True))
    return math.fsum(filled) / sum(sizes)


def top_support(values: NDArray[np.float32], sizes: Sequence[int], kept: Sequence[int]) -> Mask:
    """bool[n]: the k largest magnitudes of each tensor."""
    found = np.zeros(values.size, dtype=np.bool_)
    start = 0
    for n, k in zip(sizes, kept, strict=True):
        part = np.abs(values[start : start + n])
        found[start + np.argpartition(part, n - k)[n - k :]] = True
        start += n
    return found


def code_rows(gradients: Gradients, workers: Sequence[int], bits: int) -> Iterator[Row]:
    """How many bits the largest sum of N codes needs more than one code."""
    codes = codes_of(gradients, bits)
    top = 2 ** (bits - 1) - 1
    for count in workers:
        largest = int(np.abs(codes[:count].sum(axis=0)).max())
        yield {
            "what": CODES,
            "kind": GRADIENT,
            "factor": 0,
            "bits": bits,
            "workers": count,
            "summed": count,
            "value": max(0.0, math.log2(largest / top)) if largest else 0.0,
            "theory": math.log2(count),
            "ring_over_dense": 0.0,
            "gather_over_dense": 0.0,
        }


def codes_of(gradients: Gradients, bits: int) -> NDArray[np.int64]:
    """i64[N, n]: nearest of 2^bits - 1 levels, one scale a tensor that all workers share (else their
    codes could not be added)."""
    top = 2 ** (bits - 1) - 1
    codes = np.zeros(gradients.values.shape, dtype=np.int64)
    start = 0
    for n in gradients.sizes:
        part = gradients.values[:, start : start + n].astype(np.float64)
        scale = np.abs(part).max()
        if scale > 0:
            codes[:, start : start + n] = np.rint(part / scale * top)
        start += n
    return codes
