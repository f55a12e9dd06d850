"""Dion: two thin factors of each matrix's momentum travel, and workers apply an orthonormalized update.

Paper: Ahn, Xu, Abreu, Fan, Magakyan, Sharma, Zhan, Langford, "Dion: Distributed orthonormalized updates",
2025 (arXiv:2504.05295), with its compressed synchronization of data-parallel gradients and decoupled
momentum; checked against the authors' code (microsoft/dion, `dion_reference.py`). The other half is
optimizer=dion.
Asks: for a matrix the mean of P, then that of R: 4 r rows + 4 r cols bytes. For a matrix whose factors would
be no smaller, r (rows + cols) >= rows cols, the mean of its momentum: 4 rows cols bytes. For any other tensor
the mean of the tensor: 4 n bytes. Keeps Q, 4 r min(rows, cols) bytes a matrix.

    M_i = M_i + G_i;  P = orthonormal(Mean(M_i Q));  R_i = M_i^T P;  R = Mean(R_i)
    M_i = M_i - (1 - mu) P R_i^T;  Q = R with columns of norm 1;  answer = P Q^T

The residual of the `ErrorFeedback` around this is M_i, and (1 - mu) P R_i^T is what was sent of it. A wide
matrix, rows < cols, is taken as its transpose, as in the authors' code: P belongs to the longer side. At full
rank, M = mu (M + G) is the momentum of SGD. One power iteration a step brings the answer close to U V^T of
the singular value decomposition M = U S V^T; where M keeps its direction, the answer becomes U V^T.

Differs: a worker subtracts its own P R_i^T, the paper P R^T with the mean R. The mean over workers is the
same, and so is every update. By the paper's rule the difference between M_i and the other workers' never
decays: if data differ between workers, it grows in proportion to the steps. Here its part in the span of P
decays.
A column of P that depends on those before it becomes zero, and a zero column of Q is drawn anew, as PowerSGD
does (compressor/powersgd.py). The authors' code adds 1e-8 to norms, and such a column gets any direction. The
first Q is drawn as PowerSGD's. The authors' code takes no convolution kernels; here a kernel is a matrix of
output channels x the rest. With FSDP2 each shard of a matrix is orthonormalized by itself.

Letters: r = ceil(rank_fraction min(rows, cols)), mu = momentum. P, Q and R lie in memory as r rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, NamedTuple

import torch
from torch import Tensor

from dgc_repro.checked import Share, checked, within
from dgc_repro.compressor.dense import Dense
from dgc_repro.compressor.interface import (
    Compressor,
    Context,
    Step,
    apart,
    together,
)
from dgc_repro.kernel import lowrank
from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.cached import cached
from dgc_repro.kernel.lowrank import Matrices
from dgc_repro.kernel.segments import Segments
from dgc_repro.payload import LowRank

if TYPE_CHECKING:
    from dgc_repro.exchange.world import World


class Kind(NamedTuple):
    """Matrices that are exchanged alike. ``is_whole``: they are sent as they are, not as factors."""

    rank: int
    is_wide: bool
    is_whole: bool


@checked
class Dion(Compressor):
    """``rank_fraction``: columns of the factors over the shorter side of a matrix; 1 compresses nothing.
    ``momentum``: mu, of each worker; it is the residual. State of a matrix: ``q``, f32[r, min(rows, cols)];
    zeros before it was drawn. The answer for a matrix is a direction, not a mean: optimizer=dion applies
    it. Embeddings, the head and vectors do not belong here: a `PerLayer` sends them uncompressed
    (`names_of_others` of optimizer/muon.py)."""

    rank_fraction: Share = 0.25
    momentum: Annotated[float, within(0, below=1)] = 0.95
    needs_feedback = True

    def check_fits(self, shapes: Sequence[torch.Size]) -> None:
        """Refuse tensors of which none is a matrix. Raises ValueError."""
        if not any(self.kind(shape) for shape in shapes):
            raise ValueError(
                "rank_fraction: no tensor here is a matrix, nothing would be orthonormalized "
                "(exchange.unit=model makes one vector of all); use exchange.unit=layer or another method"
            )

    def kind(self, shape: torch.Size) -> Kind | None:
        """How a tensor of this shape is sent; None: as it is, and its answer is the mean."""
        if len(shape) < 2 or shape.numel() == 0:
            return None
        rows, cols = _rows_and_cols(shape)
        rank = math.ceil(self.rank_fraction * min(rows, cols))
        return Kind(rank, rows < cols, rank * (rows + cols) >= rows * cols)

    def setup(self, like: Batch, world: World) -> None:
        shapes = {
            name: (kind.rank, min(_rows_and_cols(tensor.shape)))
            for name, tensor in zip(like.names, like.tensors, strict=True)
            if (kind := self.kind(tensor.shape)) is not None
        }
        q = Segments.zeros(tuple(shapes), list(shapes.values()), like.device)
        self.keep("q", [q] * world.local)  # all workers have the same

    def step(self, xs: Sequence[Batch], out: Batch, world: World, context: Context) -> Step:
        steps, names = [], []
        for kind, places in _parts(self, tuple([x.shape for x in out.tensors])).items():
            to = out.part(places)
            some = [to if x is out else x.part(places) for x in xs]
            inside = replace(context, name=str(kind))  # other buffers, the same random numbers
            names.append(to.names)
            take = Dense().step if kind is None else partial(self._directions, kind)
            steps.append(take(some, to, world, inside))
        return apart(names, (yield from together(steps)))

    def _directions(
        self, kind: Kind, xs: Sequence[Batch], out: Batch, world: World, context: Context
    ) -> Step:
        """Of matrices of one kind."""
        sizes = tuple([_rows_and_cols(tensor.shape) for tensor in out.tensors])
        tall = Matrices.of(tuple([(max(size), min(size)) for size in sizes]), kind.rank)
        of, (last, *_) = Matrices.of(sizes, kind.rank), self.kept("q", out.names)
        num_p, num_q, f32 = sum(tall.p_sizes), sum(tall.q_sizes), torch.float32
        workers = range(len(xs))

        def scratch(label: str, size: int, worker: int = 0, dtype: torch.dtype = f32) -> Tensor:
            return context.at(worker).scratch(label, size, dtype, out.device)

        def times(m: Batch, factor: Tensor, to: Tensor, *, transposed: bool) -> None:
            """to = M factor, or M^T factor, of every M, tall."""
            if transposed == kind.is_wide:
                lowrank.times(m, of, factor, to)
            else:
                sums = scratch("partial", of.num_partial)
                lowrank.transposed_times(m, of, factor, sums, to)

        q, unit_p, unit = scratch("q", num_q), scratch("unit p", num_p), scratch("unit", num_q)
        ps = [scratch("p", num_p, worker) for worker in workers]
        rs = [scratch("r", num_q, worker) for worker in workers]
        keys = partial(context.keys, out.names, shared=True)
        lowrank.directions(last, tall, keys, q)
        if kind.is_whole:
            m = Batch(out.names, context.buffers("whole", out))
            buffer = partial(_flat, context)
            yield world.average(xs, m, buffer)
            times(m, q, ps[0], transposed=False)
        else:
            for x, p in zip(xs, ps, strict=True):
                times(x, q, p, transposed=False)  # P = M Q
            yield world.mean(ps, ps[0])
        work = scratch("work", num_p, dtype=torch.float64)
        lowrank.orthonormal(ps[0], tall, work, unit_p)
        for x, r in zip(xs, rs, strict=True):
            times(x, unit_p, r, transposed=True)  # R_i = M_i^T P
        mean_r = scratch("mean r", num_q)
        if kind.is_whole:
            times(m, unit_p, mean_r, transposed=True)
        else:
            yield world.mean(rs, mean_r)

        each = tall.each_q(unit)
        for r, its_unit in zip(tall.each_q(mean_r), each, strict=True):
            norms = torch.linalg.vector_norm(r, dim=1, keepdim=True, dtype=torch.float64)
            its_unit.copy_(torch.where(norms == 0, 0.0, r / norms))
        torch._foreach_copy_(list(last.tensors), list(each))
        pairs = [(unit_p, unit), *((unit_p, r.mul_(1 - self.momentum)) for r in rs)]
        factors, *sent = [pair[::-1] if kind.is_wide else pair for pair in pairs]
        lowrank.outer(out, of, *factors, 1.0, accumulate=False)
        return [LowRank(of, *own) for own in sent]


@cached()
def _parts(method: Dion, shapes: tuple[torch.Size, ...]) -> dict[Kind | None, tuple[int, ...]]:
    """The places of the tensors of each kind."""
    kinds = [method.kind(shape) for shape in shapes]
    return {kind: tuple(i for i, one in enumerate(kinds) if one == kind) for kind in kinds}


def _flat(context: Context, size: int, like: Tensor) -> Tensor:
    return context.scratch("flat", size, like.dtype, like.device)


def _rows_and_cols(shape: torch.Size) -> tuple[int, int]:
    return shape[0], shape.numel() // shape[0]
