"""Error feedback: what was not sent is remembered and added to the next gradient.

Paper: Seide et al., "1-bit stochastic gradient descent and its application to data-parallel
distributed training of speech DNNs", Interspeech 2014; named and analysed by Karimireddy et al.,
"Error feedback fixes SignSGD and other gradient compression schemes", ICML 2019 (arXiv:1901.09847),
algorithm 2.
Asks: what the wrapped compressor asks. Keeps 4 n bytes.
Differs: the residual is in units of the gradient, as in all distributed implementations; the
paper's algorithm multiplies by the learning rate before it compresses.

    p = g + decay e;  own = C(p);  e' = p - own

``decay`` is 1 in these papers. Below 1 what is never sent is forgotten, and what is sent slowly acts as
momentum: SparseLoCo (arXiv:2508.15706) and DeMo (arXiv:2411.19870).

The order of nesting is meaning: ``ErrorFeedback(Ladder(...))`` has one residual for all rungs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from dgc_repro.checked import Share, checked
from dgc_repro.compressor.interface import (
    Compressor,
    Context,
    Step,
    Wrapper,
    nested,
)
from dgc_repro.compressor.residual import check_residual
from dgc_repro.kernel import batch as kernels
from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.segments import Segments

if TYPE_CHECKING:
    from dgc_repro.exchange.world import World


@checked
class ErrorFeedback(Wrapper):
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
        self.keep("residual", [Segments.zeros_like(like) for _ in range(world.local)], renewed=True)
        super().setup(like, world)

    def step(self, xs: Sequence[Batch], out: Batch, world: World, context: Context) -> Step:
        residuals = self.renew("residual", out.names)
        fed = [
            kernels.add(x, e, to, self.decay, measured=context.measures)
            for x, (e, to) in zip(xs, residuals, strict=True)
        ]
        sent = yield from self.inner.step(fed, out, world, context.within("error_feedback"))
        for (_, residual), own in zip(residuals, sent, strict=True):
            own.subtract_from_(residual)
        return sent
