"""1-bit Adam's exchange: gradients are averaged during a warm-up, then momentum is compressed.

Paper: Tang et al., "1-bit Adam: communication efficient large-scale training with Adam's convergence speed",
ICML 2021 (arXiv:2102.02888), algorithm 1; checked against DeepSpeed (`onebit/adam.py`). The other half is
optimizer=adam with ``freeze_steps``: the variance stays as it is after so many steps.
Asks: `Mean` of the gradient (4 n bytes) in the first ``warmup_steps`` steps, then what the wrapped compressor
asks. Keeps 4 n bytes (and a spare of the same size), beside those of the error feedback inside.
Differs: the answer is the gradient from which Adam computes the momentum that was exchanged, so the optimizer
needs no other change. M is the paper's momentum over 1 - beta1. The paper's compressor is the sign times
||x||_2 / sqrt(n); with `EFSignSGD` inside it is the sign times the mean magnitude, which is a contraction.
The paper compresses the average once more: exchange.aggregation=sharded. Its optimizer has no bias
correction, ours (optimizer/adam.py) has. A step that is skipped counts here, and not in the optimizer: after
k skipped steps in the warm-up, the variance takes in the squares of the first k compressed answers. 0/1 Adam
(arXiv:2202.06009) also renews the variance and skips exchanges, at growing intervals; that is not part of
this.

    first steps:  answer = mean g;  M' = beta1 M + answer
    then:         M' = mean C(g + beta1 M + e);  answer = M' - beta1 M       (e: of the error feedback inside)

Letters: n = values, M = momentum, the same on all workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import torch
from torch import Tensor

from dgc_repro.checked import checked, within
from dgc_repro.compressor.dense import Dense
from dgc_repro.compressor.interface import ByBatch, Compressor, Context, State, exchange_all
from dgc_repro.compressor.momentum_correction import Momentum
from dgc_repro.kernel import batch as kernels
from dgc_repro.kernel.batch import Batch, Unchecked
from dgc_repro.payload.requests import Exchange, Outcome


@checked
class OneBitAdam(ByBatch):
    """Wraps any compressor, usually an `ErrorFeedback`, as the outermost wrapper. ``beta1``: the optimizer's.
    State: ``momentum`` (shape of the tensor, f32), ``inner``."""

    inner: Compressor
    beta1: Momentum = 0.9
    warmup_steps: Annotated[int, within(0)] = 100

    def init(self, tensor: Tensor) -> State:
        momentum = torch.zeros(tensor.shape, dtype=torch.float32, device=tensor.device)
        return {"momentum": momentum, "inner": self.inner.init(tensor)}

    def exchange_batch(self, batch: Batch, states: Sequence[State], context: Context) -> Exchange:
        last = [state["momentum"] for state in states]
        inner = [state["inner"] for state in states]
        names, following = batch.names, context.spares("momentum", last)
        if context.step < self.warmup_steps:
            outcome = yield from Dense().exchange_batch(batch, [{}] * len(batch), context)
            mean = outcome.mean
            kernels.add(Batch(names, mean, Unchecked()), last, following, self.beta1)
        else:
            fed = kernels.add(batch, last, context.buffers("fed", batch), self.beta1)
            result = context.results(batch)
            del batch
            inside = context.within("onebit_adam", reads_gradient=True)
            outcome = yield from exchange_all(self.inner, fed, inner, inside)
            torch._foreach_copy_(following, list(outcome.mean))
            inner = outcome.state
            # All simulated workers write the same numbers to the same place.
            mean = kernels.add(
                Batch(names, following, Unchecked()), last, result.tensors, -self.beta1
            ).tensors
        pairs = zip(following, inner, strict=True)
        return Outcome(mean, outcome.own, [{"momentum": m, "inner": s} for m, s in pairs])
