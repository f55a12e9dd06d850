"""1-bit Adam's exchange: gradients are averaged during a warm-up, then momentum is compressed.

Paper: Tang et al., "1-bit Adam: communication efficient large-scale training with Adam's convergence speed",
ICML 2021 (arXiv:2102.02888), algorithm 1; checked against DeepSpeed (`onebit/adam.py`). The other half is
optimizer=adam with ``freeze_steps``: the variance stays as it is after so many steps.
Asks: the mean of the gradient (4 n bytes) in the first ``warmup_steps`` exchanges of a tensor, then what the
wrapped compressor asks. Keeps 4 n bytes, beside those of the error feedback
inside.
Differs: the answer is the gradient from which Adam computes the momentum that was exchanged, so the optimizer
needs no other change. M is the paper's momentum over 1 - beta1. The paper's compressor is the sign times
||x||_2 / sqrt(n); with `EFSignSGD` inside it is the sign times the mean magnitude, which is a contraction.
The paper compresses the average once more: exchange.aggregation=sharded. Its optimizer has no bias
correction, ours (optimizer/adam.py) has. A step that is skipped does not count, nor does one in which no
worker has a gradient of the tensor: the optimizer does not count them either, so that its variance sees
uncompressed gradients alone. 0/1 Adam (arXiv:2202.06009) also renews the variance and skips exchanges, at
growing intervals; that is not part of this.

    warm-up:  answer = mean g;  M' = beta1 M + answer
    then:     M' = mean C(g + beta1 M + e);  answer = M' - beta1 M       (e: of the error feedback inside)

Letters: n = values, M = momentum, the same on all workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import torch

from dgc_repro.checked import checked, within
from dgc_repro.compressor.dense import Dense
from dgc_repro.compressor.interface import (
    EXCHANGES,
    Compressor,
    Context,
    Step,
    Wrapper,
    apart,
    together,
)
from dgc_repro.compressor.momentum_correction import Momentum
from dgc_repro.kernel import batch as kernels
from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.segments import Segments, numbers_of

if TYPE_CHECKING:
    from dgc_repro.exchange.world import World


@checked
class OneBitAdam(Wrapper):
    """Wraps any compressor, usually an `ErrorFeedback`, as the outermost wrapper. ``beta1``: the optimizer's.
    ``warmup_steps``: steps of plain Adam, before the variance is frozen.
    State: ``momentum`` (shape of the tensor, f32), ``exchanges`` (their number), ``inner``."""

    inner: Compressor
    beta1: Momentum = 0.9
    warmup_steps: Annotated[int, within(0)] = 100

    def setup(self, like: Batch, world: World) -> None:
        momentum = Segments.zeros_like(like)  # all workers have the same
        self.keep("momentum", [momentum] * world.local, renewed=True)
        self.keep(EXCHANGES, [numbers_of(like.names)] * world.local)
        super().setup(like, world)

    def step(self, xs: Sequence[Batch], out: Batch, world: World, context: Context) -> Step:
        counts = self.kept(EXCHANGES, out.names)[0].tensors
        warm = [float(count) < self.warmup_steps for count in counts]
        torch._foreach_add_(list(counts), 1.0)
        steps, names = [], []
        for is_warm in {*warm}:
            places = [place for place, own in enumerate(warm) if own is is_warm]
            some, to = list(xs), out
            if len(places) < len(out):
                to = out.part(places)
                some = [to if x is out else x.part(places) for x in xs]
            names.append(to.names)
            take = self._averaged if is_warm else self._compressed
            steps.append(take(some, to, world, context))
        return apart(names, (yield from together(steps)))

    def _averaged(self, xs: Sequence[Batch], out: Batch, world: World, context: Context) -> Step:
        """Of tensors in their warm-up."""
        sent = yield from Dense().step(xs, out, world, context.within("warm"))
        before, momentum = self.renew("momentum", out.names)[0]
        kernels.add(out, before, momentum, self.beta1)
        return sent

    def _compressed(self, xs: Sequence[Batch], out: Batch, world: World, context: Context) -> Step:
        """Of the others."""
        before, momentum = self.renew("momentum", out.names)[0]
        fed = [
            kernels.add(x, before, context.at(worker).buffers("fed", x), self.beta1)
            for worker, x in enumerate(xs)
        ]
        mean = momentum
        if momentum is before:
            mean = Batch(out.names, context.buffers("mean", out))
        sent = yield from self.inner.step(fed, mean, world, context.within("onebit_adam"))
        kernels.add(mean, before, out, -self.beta1)
        if mean is not momentum:
            torch._foreach_copy_(list(momentum.tensors), list(mean.tensors))
        return sent
