"""1-bit Adam's exchange: gradients are averaged during a warm-up, then momentum is compressed.

Paper: Tang et al., "1-bit Adam: communication efficient large-scale training with Adam's convergence speed",
ICML 2021 (arXiv:2102.02888), algorithm 1; checked against DeepSpeed (`onebit/adam.py`). The other half is
optimizer=adam with ``freeze_steps``: the variance stays as it is after so many steps.
Asks: `Mean` of the gradient (4 n bytes) in the first ``warmup_steps`` exchanges of a tensor, then what the
wrapped compressor asks. Keeps 4 n bytes (and a spare of the same size), beside those of the error feedback
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
from torch import Tensor

from dgc_repro.checked import checked, within
from dgc_repro.compressor.dense import Dense
from dgc_repro.compressor.interface import (
    EXCHANGES,
    ByBatch,
    Compressor,
    Context,
    State,
    exchange_all,
    joined,
)
from dgc_repro.compressor.method import Step, Wrapper, apart
from dgc_repro.compressor.method import together as side_by_side
from dgc_repro.compressor.momentum_correction import Momentum
from dgc_repro.kernel import batch as kernels
from dgc_repro.kernel.batch import Batch, Unchecked
from dgc_repro.kernel.segments import Segments, numbers_of
from dgc_repro.payload.requests import Exchange, Outcome, together

if TYPE_CHECKING:
    from dgc_repro.exchange.world import World


@checked
class OneBitAdam(ByBatch, Wrapper):
    """Wraps any compressor, usually an `ErrorFeedback`, as the outermost wrapper. ``beta1``: the optimizer's.
    ``warmup_steps``: steps of plain Adam, before the variance is frozen.
    State: ``momentum`` (shape of the tensor, f32), ``exchanges`` (their number), ``inner``."""

    inner: Compressor
    beta1: Momentum = 0.9
    warmup_steps: Annotated[int, within(0)] = 100

    def init(self, tensor: Tensor) -> State:
        momentum = torch.zeros(tensor.shape, dtype=torch.float32, device=tensor.device)
        return {"momentum": momentum, EXCHANGES: 0, "inner": self.inner.init(tensor)}

    def setup(self, like: Batch, world: World) -> None:
        self.keep(
            "momentum", [Segments.zeros_like(like)] * world.local
        )  # all workers have the same
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
            take = self._warm_step if is_warm else self._compressed_step
            steps.append(take(some, to, world, context))
        return apart(names, (yield from side_by_side(steps)))

    def _warm_step(self, xs: Sequence[Batch], out: Batch, world: World, context: Context) -> Step:
        """Of tensors in their warm-up."""
        sent = yield from Dense().step(xs, out, world, context.within("warm"))
        momentum = self.kept("momentum", out.names)[0].tensors
        kernels.add(out, momentum, momentum, self.beta1)
        return sent

    def _compressed_step(
        self, xs: Sequence[Batch], out: Batch, world: World, context: Context
    ) -> Step:
        """Of the others."""
        momentum = self.kept("momentum", out.names)[0].tensors
        fed = [
            kernels.add(x, momentum, context.at(worker).buffers("fed", x), self.beta1)
            for worker, x in enumerate(xs)
        ]
        mean = Batch(out.names, context.buffers("mean", out))
        sent = yield from self._inner.step(fed, mean, world, context.within("onebit_adam"))
        kernels.add(mean, momentum, out.tensors, -self.beta1)
        torch._foreach_copy_(list(momentum), list(mean.tensors))
        return sent

    def exchange_batch(self, batch: Batch, states: Sequence[State], context: Context) -> Exchange:
        spares = context.spares("momentum", [state["momentum"] for state in states])
        warm = [state[EXCHANGES] < self.warmup_steps for state in states]
        parts = {}
        for is_warm, exchange in ((True, self._averaged), (False, self._compressed)):
            here = tuple(i for i, own in enumerate(warm) if own is is_warm)
            some, inside = batch, context
            if len(here) < len(batch):
                some, inside = batch.part(here), context.part(f"warm {is_warm}", here)
            if here:
                of_part = [states[i] for i in here], [spares[i] for i in here]
                parts[here] = exchange(some, *of_part, inside)
        del batch, some
        return joined((yield from together(parts)))

    def _averaged(
        self, batch: Batch, states: Sequence[State], following: list[Tensor], context: Context
    ) -> Exchange:
        """The exchange of tensors in their warm-up. ``following``: where the next momentum is written."""
        outcome = yield from Dense().exchange_batch(batch, [{}] * len(batch), context)
        last = [state["momentum"] for state in states]
        kernels.add(Batch(batch.names, outcome.mean, Unchecked()), last, following, self.beta1)
        inner = [state["inner"] for state in states]
        return Outcome(outcome.mean, outcome.own, _after(states, following, inner))

    def _compressed(
        self, batch: Batch, states: Sequence[State], following: list[Tensor], context: Context
    ) -> Exchange:
        """The exchange of the others."""
        last = [state["momentum"] for state in states]
        names, result = batch.names, context.results(batch)
        fed = kernels.add(batch, last, context.buffers("fed", batch), self.beta1)
        del batch
        inside = context.within("onebit_adam", reads_gradient=True)
        inner = [state["inner"] for state in states]
        outcome = yield from exchange_all(self.inner, fed, inner, inside)
        torch._foreach_copy_(following, list(outcome.mean))
        # All simulated workers write the same numbers to the same place.
        momentum = Batch(names, following, Unchecked())
        mean = kernels.add(momentum, last, result.tensors, -self.beta1).tensors
        return Outcome(mean, outcome.own, _after(states, following, outcome.state))


def _after(
    states: Sequence[State], momentum: Sequence[Tensor], inner: Sequence[State]
) -> list[State]:
    """The states after one more exchange."""
    return [
        {"momentum": m, EXCHANGES: state[EXCHANGES] + 1, "inner": own}
        for state, m, own in zip(states, momentum, inner, strict=True)
    ]
