"""Momentum correction: the velocity is accumulated and sent, not the gradient.

Paper: Lin, Han, Mao, Wang, Dally, "Deep gradient compression: reducing the communication bandwidth
for distributed training", ICLR 2018 (arXiv:1712.01887), sections 3.1 and 3.2, algorithms 4 and 5
(nesterov).
Asks: what the wrapped compressor asks. Keeps 4 n bytes (and a spare of the same size), beside the
4 n of the error feedback inside.
Differs: the paper's V, the accumulated velocity, is the residual of the `ErrorFeedback` inside:
``wrap=[momentum_correction,error_feedback]``. Without one, what is not sent is lost, as with any
other compressor. Where values are rounded on their way (a sparsifier's values in 16 bits), the
rounding error stays in the residual, where the paper zeroes V. A payload without places (`indices`:
the tensor whole, or coded value by value) masks nothing: everything is sent in every step, so no
velocity is stale, and with `Dense` inside this is momentum SGD. The nesterov form
keeps u where algorithm 5 keeps m u: the same velocity is sent, and zero is zero. The optimizer's
momentum must be 0. Its weight decay is added after the exchange, where no momentum multiplies it:
1 / (1 - momentum) times the weight decay acts as it does in momentum SGD.

    u = m u + g;  v = v + u (nesterov: v = v + g + m u);  own = C(v);  v' = v - own
    u' = 0 where own was sent (masking), else u

Letters: n = values, m = momentum, u = velocity.
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from dgc_repro.checked import checked, within
from dgc_repro.compressor.interface import Compressor, Context, State
from dgc_repro.exchange.payload import Payload
from dgc_repro.exchange.requests import Exchange, Outcome

Momentum = Annotated[float, within(0, below=1)]


@checked
class MomentumCorrection:
    """Wraps any compressor, usually an `ErrorFeedback`. ``masking``: momentum factor masking (3.2).
    State: ``velocity`` (shape of the tensor, f32), ``inner``."""

    inner: Compressor
    momentum: Momentum = 0.9
    nesterov: bool = False
    masking: bool = True

    def init(self, tensor: Tensor) -> State:
        velocity = torch.zeros(tensor.shape, dtype=torch.float32, device=tensor.device)
        return {"velocity": velocity, "inner": self.inner.init(tensor)}

    def exchange(self, tensor: Tensor, state: State, context: Context) -> Exchange:
        velocity = context.spare("velocity", state["velocity"])
        torch.add(tensor, state["velocity"], alpha=self.momentum, out=velocity)
        step = self._nesterov(tensor, velocity, context) if self.nesterov else velocity
        context.fed_with(step, tensor)
        del tensor
        inside = context.within("momentum_correction", reads_own=True)
        outcome = yield from self.inner.exchange(step, state["inner"], inside)
        if self.masking:
            zero_where_sent(velocity, outcome.own)
        return Outcome(outcome.mean, outcome.own, {"velocity": velocity, "inner": outcome.state})

    def _nesterov(self, tensor: Tensor, velocity: Tensor, context: Context) -> Tensor:
        """g + m u"""
        step = context.scratch("nesterov", tensor.numel(), torch.float32, tensor.device)
        return torch.add(tensor, velocity, alpha=self.momentum, out=step.view(tensor.shape))


def zero_where_sent(velocity: Tensor, own: Payload) -> None:
    """In place; nothing where the payload has no places."""
    indices = getattr(own, "indices", None)  # HasPlaces; isinstance of a protocol is slow
    if indices is not None:
        velocity.view(-1).index_fill_(0, indices.long(), 0.0)
