"""Momentum correction: the velocity is accumulated and sent, not the gradient.

Paper: Lin, Han, Mao, Wang, Dally, "Deep gradient compression: reducing the communication bandwidth
for distributed training", ICLR 2018 (arXiv:1712.01887), sections 3.1 and 3.2, algorithms 4 and 5
(nesterov).
Asks: what the wrapped compressor asks. Keeps 4 n bytes, beside the
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

Masking makes the step depend on how often an entry is sent. Under a constant gradient g, an entry
that is sent once in T steps moves by g (1 - m (1 - m^T) / (T (1 - m))) / (1 - m) a step on average:
with m = 0.9 by 1.0 g for T = 1, 4.1 g for T = 10, 9.1 g for T = 100; momentum SGD moves it by 10 g. A
learning rate that is right at density 0.001 can be too small at 0.01 (docs/dgc.md).

    u = m u + g;  v = v + u (nesterov: v = v + g + m u);  own = C(v);  v' = v - own
    u' = 0 where own was sent (masking), else u

Letters: n = values, m = momentum, u = velocity, T = steps from one sending of an entry to the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from dgc_repro.checked import checked, within
from dgc_repro.compressor.interface import (
    Compressor,
    Context,
    Step,
    Wrapper,
)
from dgc_repro.kernel import batch as kernels
from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.segments import Segments

if TYPE_CHECKING:
    from dgc_repro.exchange.world import World

Momentum = Annotated[float, within(0, below=1)]


@checked
class MomentumCorrection(Wrapper):
    """Wraps any compressor, usually an `ErrorFeedback`.
    ``momentum``: of each worker; optimizer.momentum must be 0. ``nesterov``: Nesterov's momentum.
    ``masking``: velocity is zeroed where it was sent (momentum factor masking, 3.2).
    State: ``velocity`` (shape of the tensor, f32), ``inner``."""

    inner: Compressor
    momentum: Momentum = 0.9
    nesterov: bool = False
    masking: bool = True

    def setup(self, like: Batch, world: World) -> None:
        self.keep("velocity", [Segments.zeros_like(like) for _ in range(world.local)], renewed=True)
        super().setup(like, world)

    def step(self, xs: Sequence[Batch], out: Batch, world: World, context: Context) -> Step:
        velocities, fed = self.renew("velocity", out.names), []
        for worker, (x, (before, u)) in enumerate(zip(xs, velocities, strict=True)):
            kernels.add(x, before, u, self.momentum)
            own = u
            if self.nesterov:  # g + m u
                to = context.at(worker).buffers("nesterov", u)
                own = kernels.add(x, u, to, self.momentum)
            fed.append(own)
        sent = yield from self.inner.step(fed, out, world, context.within("momentum_correction"))
        if self.masking:
            for (_, velocity), own in zip(velocities, sent, strict=True):
                own.zero_at_(velocity)
        return sent
