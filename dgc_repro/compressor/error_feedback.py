"""Error feedback: what was not sent is remembered and added to the next gradient.

Paper: Seide et al., "1-bit stochastic gradient descent and its application to data-parallel
distributed training of speech DNNs", Interspeech 2014; named and analysed by Karimireddy et al.,
"Error feedback fixes SignSGD and other gradient compression schemes", ICML 2019 (arXiv:1901.09847),
algorithm 2.
Asks: what the wrapped compressor asks. Keeps 4 n bytes (and a spare of the same size).
Differs: the residual is in units of the gradient, as in all distributed implementations; the
paper's algorithm multiplies by the learning rate before it compresses.

    p = g + decay e;  own = C(p);  e' = p - own

``decay`` is 1 in these papers. Below 1 what is never sent is forgotten, and what is sent slowly acts as
momentum: SparseLoCo (arXiv:2508.15706) and DeMo (arXiv:2411.19870).

The order of nesting is meaning: ``ErrorFeedback(Ladder(...))`` has one residual for all rungs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import torch
from torch import Tensor

from dgc_repro.checked import Share, checked
from dgc_repro.compressor.interface import (
    ByBatch,
    Compressor,
    Context,
    State,
    exchange_all,
    nested,
)
from dgc_repro.compressor.method import Step, Wrapper
from dgc_repro.compressor.residual import check_residual
from dgc_repro.kernel import batch as kernels
from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.segments import Segments
from dgc_repro.payload import Payload
from dgc_repro.payload.requests import Exchange, Outcome

if TYPE_CHECKING:
    from dgc_repro.exchange.world import World


@checked
class ErrorFeedback(ByBatch, Wrapper):
    """Wraps any compressor. ``decay``: of the residual, a step: 1 forgets nothing. State: ``residual``
    (shape of the tensor, f32), ``inner``."""

    inner: Compressor
    decay: Annotated[Share, "1 forgets nothing"] = 1.0

    def __post_init__(self) -> None:
        if any(isinstance(part, ErrorFeedback) for part in nested(self.inner)):
            raise ValueError(
                "inner: an error feedback in an error feedback would add every residual twice"
            )
        check_residual(self.inner, "inner", "leave error_feedback out")

    def setup(self, like: Batch, world: World) -> None:
        self.keep("residual", [Segments.zeros_like(like) for _ in range(world.local)])
        super().setup(like, world)

    def step(self, xs: Sequence[Batch], out: Batch, world: World, context: Context) -> Step:
        residuals = self.kept("residual", out.names)
        fed = [
            kernels.add(x, e.tensors, e.tensors, self.decay, measured=context.measures)
            for x, e in zip(xs, residuals, strict=True)
        ]
        sent = yield from self._inner.step(fed, out, world, context.within("error_feedback"))
        for residual, own in zip(residuals, sent, strict=True):
            own.subtract_from_(residual)
        return sent

    def init(self, tensor: Tensor) -> State:
        residual = torch.zeros(tensor.shape, dtype=torch.float32, device=tensor.device)
        return {"residual": residual, "inner": self.inner.init(tensor)}

    def exchange_batch(self, batch: Batch, states: Sequence[State], context: Context) -> Exchange:
        residuals = [state["residual"] for state in states]
        to = context.spares("residual", residuals)
        fed = kernels.add(batch, residuals, to, self.decay, measured=context.measures)
        del batch  # with many simulated workers this frees each one's gradient in turn
        inside = context.within("error_feedback", reads_own=True)
        inner = [state["inner"] for state in states]
        outcome = yield from exchange_all(self.inner, fed, inner, inside)
        own = subtracted(outcome.own, fed, context)
        pairs = zip(fed.tensors, outcome.state, strict=True)
        return Outcome(outcome.mean, own, [{"residual": e, "inner": s} for e, s in pairs])


def subtracted(own: Any, fed: Batch, context: Context) -> Any:
    """What was sent, after ``fed`` has become fed - own. It is copied where it would change with ``fed`` and
    is still read."""
    if context.own_is_read and shares_storage(own, fed.tensors):
        own = own.like([part.clone() for part in own.parts])
    own.subtract_from_(fed)
    return own


def shares_storage(payload: Payload, tensors: Sequence[Tensor]) -> bool:
    """Whether a payload is made of one of the tensors: it would change with it."""
    storages = {tensor.untyped_storage().data_ptr() for tensor in tensors}
    return any(part.untyped_storage().data_ptr() in storages for part in payload.parts)
