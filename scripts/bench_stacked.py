"""PowerSGD's products over ResNet101's matrices: one after another, and stacked by shape.

torch's PowerSGD hook copies matrices of one shape into a stack and multiplies the stack (torch.bmm),
which starts fewer operations. The package's kernels read each matrix where it lies. Both make the same
factors: P = M Q, P orthonormal, Q = M^T P, and P Q^T as what comes of one worker. What an exchange does
with the thin factors besides (scaling Q, keeping it) is left out of both.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from bench_layers import shapes
from bench_measure import Row, Spread, seconds
from torch import Tensor

from dgc_repro.compressor.powersgd import PowerSGD
from dgc_repro.kernel import lowrank

RANK = 4
WARMUP = 2
COLUMNS = {"products": "case", "x copy_": "copies_x", "ms": "ms"}


@dataclass(frozen=True)
class Matrices:
    """Matrices with their factors, and where results go: ``p`` f32[r, rows], ``q`` f32[r, cols]."""

    m: Sequence[Tensor]
    p: Sequence[Tensor]
    q: Sequence[Tensor]
    result: Sequence[Tensor]

    @classmethod
    def of(cls, tensors: Sequence[torch.Size]) -> Matrices:
        """Those of a model that are sent as factors, filled with the same random numbers each time."""
        found = [PowerSGD(RANK).matrix(shape) for shape in tensors]
        sizes = [size for size in found if size is not None]
        random = torch.Generator().manual_seed(0)

        def drawn(*size: int) -> Tensor:
            return torch.randn(size, generator=random)

        return cls(
            [drawn(*size) for size in sizes],
            [torch.empty(RANK, rows) for rows, _ in sizes],
            [drawn(RANK, cols) for _, cols in sizes],
            [torch.empty(size) for size in sizes],
        )

    def by_shape(self) -> list[list[int]]:
        """Places of matrices of one shape."""
        groups: dict[torch.Size, list[int]] = defaultdict(list)
        for place, matrix in enumerate(self.m):
            groups[matrix.shape].append(place)
        return list(groups.values())


def as_sent(of: Matrices) -> Callable[[], None]:
    """The package's kernels, matrix by matrix; tensor operations where there is no compiler."""
    work = [torch.empty(p.shape, dtype=torch.float64) for p in of.p]
    partial = [torch.empty(lowrank.num_partial(*m.shape, RANK)) for m in of.m]

    def run() -> None:
        for i, m in enumerate(of.m):
            lowrank.times(m, of.q[i], of.p[i])
            lowrank.orthonormal(of.p[i], work[i], of.p[i])
            lowrank.transposed_times(m, of.p[i], partial[i], of.q[i])
            lowrank.outer(of.result[i], of.p[i], of.q[i], 1.0, accumulate=False)

    return run


def one_by_one(of: Matrices) -> Callable[[], None]:
    """torch.mm, matrix by matrix."""

    def run() -> None:
        for m, p, q, result in zip(of.m, of.p, of.q, of.result, strict=True):
            torch.mm(q, m.t(), out=p)
            p.copy_(torch.linalg.qr(p.t())[0].t())
            torch.mm(p, m, out=q)
            torch.mm(p.t(), q, out=result)

    return run


def stacked(of: Matrices) -> Callable[[], None]:
    """torch.bmm of stacks, copied there and back."""
    groups = of.by_shape()
    stacks = [_stack_of(group, of) for group in groups]

    def run() -> None:
        for group, (m, p, q, result) in zip(groups, stacks, strict=True):
            torch.stack([of.m[i] for i in group], out=m)
            torch.stack([of.q[i] for i in group], out=q)
            torch.bmm(q, m.transpose(1, 2), out=p)
            p.copy_(torch.linalg.qr(p.transpose(1, 2))[0].transpose(1, 2))
            torch.bmm(p, m, out=q)
            torch.bmm(p.transpose(1, 2), q, out=result)
            for place, i in enumerate(group):
                of.p[i].copy_(p[place])
                of.q[i].copy_(q[place])
                of.result[i].copy_(result[place])

    return run


def copies(of: Matrices) -> Callable[[], None]:
    """What stacking alone takes: the matrices into their stacks, the results out of theirs."""
    groups = of.by_shape()
    stacks = [_stack_of(group, of) for group in groups]

    def run() -> None:
        for group, (m, _, _, result) in zip(groups, stacks, strict=True):
            torch.stack([of.m[i] for i in group], out=m)
            for place, i in enumerate(group):
                of.result[i].copy_(result[place])

    return run


def _stack_of(group: Sequence[int], of: Matrices) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    m, p, q, result = (
        torch.zeros(len(group), *one[group[0]].shape) for one in (of.m, of.p, of.q, of.result)
    )
    return m, p, q, result


WAYS: Mapping[str, Callable[[Matrices], Callable[[], None]]] = {
    "one by one, as sent": as_sent,
    "one by one, torch.mm": one_by_one,
    "stacked by shape, torch.bmm": stacked,
    "of it: into stacks and out": copies,
}


def measure(tensors: Sequence[torch.Size], repeats: int, threads: int) -> list[Row]:
    """A row for each way; every measurement follows a copy_ of as many values."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        of = Matrices.of(tensors)
        source = torch.ones(sum(matrix.numel() for matrix in of.m))
        target = torch.zeros_like(source)
        ways = {name: make(of) for name, make in WAYS.items()}
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        for _ in range(WARMUP + repeats):
            for name, run in ways.items():
                one = seconds(lambda: target.copy_(source))
                found[name].append((seconds(run), one))
    finally:
        torch.set_num_threads(before)
    return [_row(name, pairs[WARMUP:]) for name, pairs in found.items()]


def _row(name: str, pairs: Sequence[tuple[float, float]]) -> Row:
    ratio = Spread.of([run / copy for run, copy in pairs])
    milliseconds = Spread.of([1e3 * run for run, _ in pairs]).median
    return {"case": name, **ratio.columns("copies_x"), "ms": milliseconds}


def resnet101() -> list[torch.Size]:
    """Of all of its tensors."""
    return list(shapes().values())
