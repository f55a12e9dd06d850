"""Tall, thin matrix products, orthogonal rows, random directions: what low-rank methods are made of.

In C for the CPU (c/lowrank.c), where every sum has one order whatever the alignment of its operands
and the number of threads, and each product reads or writes the large matrix once. On a GPU, Triton kernels do
the same for all matrices in one launch (gpu/lowrank.py). Elsewhere matrix
products of torch's. All three round in orders of their own: they are within the rounding of a sum of the same
terms, not equal bit for bit. Replicas agree because all of them compute the same from the same averaged
factors: all ranks need one kind of processor and kernel (drift ends a run once an epoch).
Without Triton, leave torch.backends.cuda.matmul.allow_tf32 off on a GPU:
factors cut to 11 bits would make an error feedback owe something else than was not sent.

Letters: m = matrix, f32[rows, cols]; r = rank; p = f32[r, rows]; q = f32[r, cols]: factors lie row by
row, as both products read them. A batch has a buffer for the p of all its matrices, one after another, and
one for q.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dgc_repro.kernel import counter, native
from dgc_repro.kernel.batch import Batch, integers, starts
from dgc_repro.kernel.cached import cached
from dgc_repro.kernel.native import INT64, POINTER, Function

_DEPENDENT = 2.0**-22
"""A row of which less than this share is left, without its part along the rows before, is one of
them but for float32's rounding."""
MOST_IN_ONE_LAUNCH = 64  # the highest rank for kernel/gpu: it keeps factors in shared memory
_MOST_CHUNKS, _LEAST_ROWS = 16, 64  # as in c/lowrank.c
_PARALLEL_FROM = 65536  # values: as in c/common.h

_scale_rows = Function("dgc_scale_rows_all")
_times = Function("dgc_times_all")
_orthonormal = Function("dgc_orthonormal_all")
_transposed_times = Function("dgc_transposed_times_all")
_outer = Function("dgc_outer_all")


class _Table(ctypes.Structure):
    """`matrices_t` of c/lowrank.c."""

    _fields_ = (
        ("count", INT64),
        *((name, POINTER) for name in ("n", "rows", "cols", "p_at", "q_at", "partial_at")),
    )


class Matrices:
    """The matrices of a batch, all of rank r. ``sizes``: rows and columns of each."""

    def __init__(self, sizes: tuple[tuple[int, int], ...], r: int) -> None:
        self.sizes = sizes
        self.r = r
        self.p_sizes = tuple([r * rows for rows, _ in sizes])
        self.q_sizes = tuple([r * cols for _, cols in sizes])
        self._partial_at, self.num_partial = self._partials()

    @staticmethod
    @cached()
    def of(sizes: tuple[tuple[int, int], ...], r: int) -> Matrices:
        """The same object each time."""
        return Matrices(sizes, r)

    def each_p(self, p: Tensor) -> list[Tensor]:
        """f32[r, rows] of every matrix, as views of one buffer."""
        return [part.view(self.r, -1) for part in p.split(self.p_sizes)]

    def each_q(self, q: Tensor) -> list[Tensor]:
        """f32[r, cols] of every matrix, as views of one buffer."""
        return [part.view(self.r, -1) for part in q.split(self.q_sizes)]

    def each(self, batch: Batch) -> list[Tensor]:
        """The tensors as matrices."""
        return [x.view(size) for x, size in zip(batch.tensors, self.sizes, strict=True)]

    @cached_property
    def table(self) -> _Table:
        """For the C kernels."""
        rows, cols = tuple([m for m, _ in self.sizes]), tuple([n for _, n in self.sizes])
        columns = (
            tuple([m * n for m, n in self.sizes]), rows, cols, starts(self.p_sizes),
            starts(self.q_sizes), self._partial_at,
        )  # fmt: skip
        self._kept = [integers(column) for column in columns]  # they must outlive the table
        return _Table(len(rows), *(ctypes.addressof(column) for column in self._kept))

    def _partials(self) -> tuple[tuple[int, ...], int]:
        """Where each matrix keeps sums of `transposed_times`, and how many values that takes together. Large
        matrices are handled one after another and share a place."""
        needed = [_num_partial(*size, self.r) for size in self.sizes]
        large = [rows * cols >= _PARALLEL_FROM for rows, cols in self.sizes]
        end = max((n for n, shared in zip(needed, large, strict=True) if shared), default=0)
        places = []
        for n, shared in zip(needed, large, strict=True):
            places.append(0 if shared else end)
            end += 0 if shared else n
        return tuple(places), end


def _num_partial(rows: int, cols: int, r: int) -> int:
    """Values in which `transposed_times` keeps sums over some rows of a matrix."""
    height = -(-max(_LEAST_ROWS, -(-rows // _MOST_CHUNKS)) // 8) * 8
    chunks = -(-rows // height)
    return chunks * r * cols if chunks > 1 else 0


def normals(size: int, key: int, device: torch.device) -> Tensor:
    """Independent standard normal numbers, f32[size]: Box and Muller's transform of hashed uniforms.

    In float64, so that devices whose logarithm and cosine differ in the last bit round to the same.
    """
    counters = torch.arange(2 * size, dtype=torch.int32, device=device)
    hashed = counter.uniform(counters, counter.on_device(key, device))
    radius, angle = hashed.double().view(2, size)
    return (torch.sqrt(-2 * torch.log(radius)) * torch.cos(2 * math.pi * angle)).float()


def directions(last: Batch, of: Matrices, keys: Callable[[], counter.Numbers], out: Tensor) -> None:
    """out = the rows of every q in ``last``, each times a power of two, so that the sum of |q| in a row is at
    most 1.

    Only directions matter, and so a product with m can neither overflow nor leave float32's range
    where the squares of m would. A row that is zero (the first step; a gradient of lower rank) or not
    finite has none: it gets a random one from the key of its matrix (i32[matrices]).
    """
    if gpu := _on_gpu(last, of):
        gpu.directions(last, of, keys(), out)
        return
    lost = np.ones(len(last), dtype=np.uint8)
    if last.native:
        _scale_rows(ctypes.byref(of.table), of.r, last.pointers, out.data_ptr(), lost.ctypes.data)
    if lost.any():
        drawn_from, each = keys(), of.each_q(out)
        for i in lost.nonzero()[0].tolist():
            _drawn(last.tensors[i], int(drawn_from[i]), each[i])


def _on_gpu(x: Batch, of: Matrices) -> Any:
    """kernel/gpu/lowrank.py, where it can work on these matrices."""
    if not (x.on_gpu and of.r <= MOST_IN_ONE_LAUNCH):
        return None
    from dgc_repro.kernel.gpu import lowrank as gpu

    return gpu


def _drawn(q: Tensor, key: int, out: Tensor) -> None:
    """The same for one q (f32[r, cols])."""
    r, cols = q.shape
    largest = q.abs().amax(1, keepdim=True)
    lost = (largest == 0) | ~torch.isfinite(largest)
    whole = torch.where(lost, normals(q.numel(), key, q.device).view(r, cols), q)
    exponents = torch.frexp(whole.abs().amax(1, keepdim=True)).exponent + (cols - 1).bit_length()
    out.copy_(whole.double() * _power_of_two(-exponents))


def _power_of_two(exponents: Tensor) -> Tensor:
    """2 to these integers as f64, exactly: from the bits, as `exp2` need not be."""
    return ((exponents.long().clamp(-1000, 1000) + 1023) << 52).view(torch.float64)


def times(m: Batch, of: Matrices, q: Tensor, p: Tensor) -> None:
    """p = q m^T: what every m does to its directions q."""
    if m.native:
        _times(ctypes.byref(of.table), of.r, m.pointers, q.data_ptr(), p.data_ptr())
        return
    if gpu := _on_gpu(m, of):
        gpu.times(m, of, q, p)
        return
    for own, its_q, its_p in zip(of.each(m), of.each_q(q), of.each_p(p), strict=True):
        torch.mm(its_q, own.t(), out=its_p)


def orthonormal(p: Tensor, of: Matrices, work: Tensor, out: Tensor) -> None:
    """out = the rows of every p made orthonormal, in their order; a row that depends on those before it
    becomes zero, and so does a zero row. work: f64, as many as p, overwritten.

    Gram and Schmidt's process in float64, twice a row (once leaves what cancellation has lost).
    """
    if native.usable(p):
        _orthonormal(
            ctypes.byref(of.table), of.r, p.data_ptr(), _DEPENDENT, work.data_ptr(), out.data_ptr()
        )
        return
    if gpu := _on_gpu(Batch(("p",), [p]), of):
        gpu.orthonormal(p, of, _DEPENDENT, work, out)
        return
    for own, its_work, unit in zip(of.each_p(p), of.each_p(work), of.each_p(out), strict=True):
        _orthonormal_rows(own, its_work, unit)


def _orthonormal_rows(p: Tensor, work: Tensor, out: Tensor) -> None:
    exponents = torch.frexp(p.abs().amax(1, keepdim=True)).exponent
    torch.mul(p.double(), _power_of_two(-exponents), out=work)
    for k in range(len(p)):
        row, others = work[k], work[:k]
        before = row.norm()
        for _ in range(2 if k else 0):
            row.sub_(others.t() @ (others @ row))
        after = row.norm()
        gone = after <= _DEPENDENT * before  # false of a NaN, which stays one
        row.copy_(torch.where(gone, 0.0, row / after))
    out.copy_(work)


def transposed_times(m: Batch, of: Matrices, p: Tensor, partial: Tensor, q: Tensor) -> None:
    """q = p m of every m. partial: f32[of.num_partial], overwritten."""
    if m.native:
        _transposed_times(
            ctypes.byref(of.table), of.r, m.pointers, p.data_ptr(), q.data_ptr(), partial.data_ptr()
        )
        return
    if gpu := _on_gpu(m, of):
        gpu.transposed_times(m, of, p, q)
        return
    for own, its_p, its_q in zip(of.each(m), of.each_p(p), of.each_q(q), strict=True):
        torch.mm(its_p, own, out=its_q)


def outer(x: Batch, of: Matrices, p: Tensor, q: Tensor, weight: float, *, accumulate: bool) -> None:
    """Every x = or += weight * p^T q, in one pass over x."""
    if x.native:
        _outer(
            ctypes.byref(of.table), of.r, x.pointers, p.data_ptr(), q.data_ptr(), weight, accumulate
        )
        return
    if gpu := _on_gpu(x, of):
        gpu.outer(x, of, p, q, weight, accumulate=accumulate)
        return
    for own, its_p, its_q in zip(of.each(x), of.each_p(p), of.each_q(q), strict=True):
        own.addmm_(its_p.t(), its_q, beta=1.0 if accumulate else 0.0, alpha=weight)
