"""PowerSGD: a matrix is sent as two thin factors, from one step of power iteration a training step.

Paper: Vogels, Karimireddy, Jaggi, "PowerSGD: Practical low-rank gradient compression for distributed
optimization", NeurIPS 2019 (arXiv:1905.13727), algorithm 1; its error feedback is algorithm 2.
Asks: for a matrix the mean of P, then that of Q: 4 r rows + 4 r cols bytes. For any other tensor
the mean of the tensor: 4 n bytes. All P of a batch are averaged as one tensor, and so are
all Q. Keeps Q, 4 r cols bytes a matrix.

    P = M_i Q;  P = Mean(P);  P = orthogonalize(P);  Q_i = M_i^T P;  Q = Mean(Q_i);  mean = P Q^T

Error feedback is the paper's algorithm 2: e_i = M_i - decompress(compress(M_i)), a worker's own matrix
against what it sent, P Q_i^T. That is P P^T M_i, a projection, hence a contraction; and the mean of what
workers sent is P Mean(Q_i)^T, the mean. The authors' code and torch's DDP hook compare with what all receive,
e_i = M_i - P Q^T: what others sent then stands in a worker's residual with a minus. In the mean over workers
the two agree.

Differs: a matrix whose factors would be no smaller than itself, r (rows + cols) >= rows cols, goes
whole, as vectors do (the authors' code cuts r to the smaller side, which sends more for the same).
Orthogonalization runs in float64, twice; a column of P that depends on those before it becomes zero,
and a column of Q that has become zero is drawn anew, so that neither gives a NaN and a tensor whose
gradient was zero for a while is not lost. Columns of Q are scaled by powers of two before use: only
their directions matter, and gradients below 1e-19 would underflow.
Matrices of one shape are not stacked into one product, as torch's hook does: these kernels read each where
it lies in a third of the time that stacks and torch.bmm take on a CPU (measured once, 2 cores of an AMD
EPYC). On a GPU one launch multiplies all matrices, of whatever shapes, where they lie.
Silent: what a matrix is, for a convolution: output channels x the rest, as in the authors' code
(channels-last permutes columns, which changes nothing but which number each of the first Q gets).
The first Q: Box and Muller's normals from (seed, step, name, place in the nest), the same on all workers.

Letters: r = rank, M = matrix of rows x cols, M_i = worker i's. P and Q lie in memory as r x rows and
r x cols: ``p`` and ``q``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dgc_repro.checked import Count, checked
from dgc_repro.compressor.dense import Dense
from dgc_repro.compressor.interface import Compressor, Context, Step, apart
from dgc_repro.kernel import lowrank
from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.cached import cached
from dgc_repro.kernel.lowrank import Matrices
from dgc_repro.kernel.segments import Segments
from dgc_repro.payload import LowRank, Wholes

if TYPE_CHECKING:
    from dgc_repro.exchange.world import World


@checked
class PowerSGD(Compressor):
    """``rank``: columns of the factors, from 1. State of a matrix: ``q``, f32[r, cols]; zeros before it was
    drawn."""

    rank: Count = 4
    needs_feedback = True

    def check_fits(self, shapes: Sequence[torch.Size]) -> None:
        """Refuse a rank at which no tensor of the model would be compressed. Raises ValueError."""
        if any(self.matrix(shape) for shape in shapes):
            return
        sizes = [_rows_and_cols(shape) for shape in shapes if len(shape) > 1 and shape.numel()]
        if not sizes:
            raise ValueError(
                "rank: no tensor here is a matrix, nothing would be compressed "
                "(exchange.unit=model makes one vector of all); use exchange.unit=layer or another method"
            )
        rows, cols = max(sizes, key=_highest_rank)
        highest = _highest_rank((rows, cols))
        raise ValueError(
            f"rank: {self.rank} is above every matrix of the model; the largest, {rows} x {cols}, "
            + (f"takes at most {highest}" if highest else "is no larger than its factors of rank 1")
        )

    def setup(self, like: Batch, world: World) -> None:
        shapes = {
            name: (self.rank, size[1])
            for name, tensor in zip(like.names, like.tensors, strict=True)
            if (size := self.matrix(tensor.shape)) is not None
        }
        q = Segments.zeros(tuple(shapes), list(shapes.values()), like.device)
        self.keep("q", [q] * world.local)  # all workers have the same

    def step(self, xs: Sequence[Batch], out: Batch, world: World, context: Context) -> Step:
        matrices, others = _parts(self, tuple([tensor.shape for tensor in out.tensors]))
        if not matrices:
            return (yield from Dense().step(xs, out, world, context))
        ms, to, vectors = [x.part(matrices) for x in xs], out.part(matrices), out.part(others)
        sizes = tuple([_rows_and_cols(tensor.shape) for tensor in to.tensors])
        of, (last, *_) = Matrices.of(sizes, self.rank), self.kept("q", to.names)
        num_p, num_q, f32 = sum(of.p_sizes), sum(of.q_sizes), torch.float32
        workers = range(len(xs))

        def scratch(label: str, size: int, worker: int = 0, dtype: torch.dtype = f32) -> Tensor:
            return context.at(worker).scratch(label, size, dtype, out.device)

        # P of all matrices and the other tensors travel together.
        firsts = [scratch("p", num_p + sum(vectors.sizes), worker) for worker in workers]
        qs = [scratch("q", num_q, worker) for worker in workers]
        sums = scratch("partial", of.num_partial)
        keys = partial(context.keys, to.names, shared=True)
        lowrank.directions(last, of, keys, qs[0])
        for x, m, first in zip(xs, ms, firsts, strict=True):
            lowrank.times(m, of, qs[0], first[:num_p])  # P = M Q
            if others:
                torch.cat([x.tensors[i].reshape(-1) for i in others], out=first[num_p:])
        wholes = [Wholes(x.part(others)) for x in xs]
        yield world.mean(firsts, firsts[0])

        p = scratch("unit", num_p)
        work = scratch("work", num_p, dtype=torch.float64)
        lowrank.orthonormal(firsts[0][:num_p], of, work, p)
        for m, q in zip(ms, qs, strict=True):
            lowrank.transposed_times(m, of, p, sums, q)  # Q_i = M_i^T P
        mean_q = scratch("mean_q", num_q)
        yield world.mean(qs, mean_q)

        torch._foreach_copy_(list(last.tensors), list(of.each_q(mean_q)))
        if others:
            pieces = zip(firsts[0][num_p:].split(vectors.sizes), vectors.tensors, strict=True)
            means = [piece.view(tensor.shape) for piece, tensor in pieces]
            torch._foreach_copy_(list(vectors.tensors), means)
        lowrank.outer(to, of, p, mean_q, 1.0, accumulate=False)
        factored = [LowRank(of, p, q) for q in qs]
        if not others:
            return factored
        return apart((to.names, vectors.names), (factored, wholes))

    def matrix(self, shape: torch.Size) -> tuple[int, int] | None:
        """Rows and columns of a tensor that is sent as factors; None where it goes whole."""
        if len(shape) < 2 or shape.numel() == 0:
            return None
        rows, cols = _rows_and_cols(shape)
        return (rows, cols) if self.rank * (rows + cols) < rows * cols else None


@cached()
def _parts(
    method: PowerSGD, shapes: tuple[torch.Size, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The places of the tensors that are sent as factors, and of the others."""
    is_matrix = [method.matrix(shape) is not None for shape in shapes]
    places = range(len(shapes))
    return tuple(i for i in places if is_matrix[i]), tuple(i for i in places if not is_matrix[i])


def _rows_and_cols(shape: torch.Size) -> tuple[int, int]:
    return shape[0], shape.numel() // shape[0]


def _highest_rank(size: tuple[int, int]) -> int:
    """The largest rank whose factors are smaller than a matrix of this size; 0 where there is none."""
    rows, cols = size
    return (rows * cols - 1) // (rows + cols)
