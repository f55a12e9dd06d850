"""Momentum with error feedback block by block: Nesterov momentum on each worker, then feedback.

Paper: Zheng, Huang, Kwok, "Communication-efficient distributed blockwise momentum SGD with
error-feedback", NeurIPS 2019 (arXiv:1905.10936), dist-EF-blockSGD with Nesterov's momentum: the
worker's side.
Asks: what the wrapped compressor asks. Keeps 8 n bytes.
Differs: the server's side (the mean compressed once more, with a residual there) is not part of it:
the mean of what the workers sent reaches them as it is. A block is a tensor, as in the paper's
experiments (``exchange.unit=layer``), and its scale is the wrapped compressor's: with signs scaled by
the mean magnitude, ||p||_1 / n, this is the paper's blockwise compressor; any other contraction may
stand in its place, as the paper's analysis allows. The residual is stretched by the ratio of
learning rates, as in the paper, so that what is owed is a change of weights: this, and that nothing
is masked, tells it from `MomentumCorrection` with nesterov. The optimizer's momentum must be 0; of
its weight decay see `MomentumCorrection`.

    m = mu m + g;  p = g + mu m + (eta_last / eta) e;  own = C(p);  e' = p - own

Letters: n = values, mu = momentum, eta = learning rate (eta_last: of the step that left e).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from dgc_repro.checked import checked
from dgc_repro.compressor.interface import (
    Compressor,
    Context,
    Step,
    Wrapper,
)
from dgc_repro.compressor.momentum_correction import Momentum
from dgc_repro.compressor.residual import check_residual
from dgc_repro.kernel import batch as kernels
from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.segments import Segments, numbers_of

if TYPE_CHECKING:
    from dgc_repro.exchange.world import World


@checked
class BlockMomentum(Wrapper):
    """Wraps any compressor; its residual is its own, so no `ErrorFeedback` belongs in the nest.
    ``momentum``: of each worker; optimizer.momentum must be 0.
    State: ``momentum``, ``residual`` (shape of the tensor, f32), ``learning_rate``, ``inner``."""

    inner: Compressor
    momentum: Momentum = 0.9

    def __post_init__(self) -> None:
        check_residual(self.inner, "inner", "leave block_momentum out")

    def setup(self, like: Batch, world: World) -> None:
        each = range(world.local)
        self.keep("momentum", [Segments.zeros_like(like) for _ in each], renewed=True)
        self.keep("residual", [Segments.zeros_like(like) for _ in each], renewed=True)
        self.keep("learning_rate", [numbers_of(like.names) for _ in each])  # eta_-1 is 0
        super().setup(like, world)

    def step(self, xs: Sequence[Batch], out: Batch, world: World, context: Context) -> Step:
        rate, names = context.learning_rate, out.names
        residuals, rates = self.renew("residual", names), self.kept("learning_rate", names)
        owed = []  # where no weight changes, what is owed stays owed
        for worker, (x, (u, m)) in enumerate(zip(xs, self.renew("momentum", names), strict=True)):
            e, to_e = residuals[worker]
            owed.append([] if rate else [tensor.clone() for tensor in e.tensors])
            kernels.add(x, u, m, self.momentum)
            last = [stretch(float(own), rate) for own in rates[worker].tensors]
            to = context.at(worker).buffers("fed", x)
            fed = kernels.add(x, m, to, self.momentum)
            for eta in set(last):
                here = [place for place, own in enumerate(last) if own == eta]
                kernels.add(fed.part(here), e.part(here), to_e.part(here), eta)
        inside = context.within("block_momentum")
        kept = [residual for _, residual in residuals]
        sent = yield from self.inner.step(kept, out, world, inside)
        for residual, own, before, of_e in zip(kept, sent, owed, rates, strict=True):
            own.subtract_from_(residual)
            if before:
                torch._foreach_copy_(list(residual.tensors), before)
            if rate:
                for number in of_e.tensors:
                    number.fill_(rate)
        return sent


def stretch(last: float, now: float) -> float:
    """eta_last / eta; 1 in a step that changes no weight, where the paper's is not defined."""
    return last / now if now > 0 else 1.0
