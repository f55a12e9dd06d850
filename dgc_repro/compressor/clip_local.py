"""Local gradient clipping: each worker scales its gradient down before anything is added to it.

Paper: Lin et al., "Deep gradient compression", ICLR 2018 (arXiv:1712.01887), section 3.3 and
appendix C: the threshold of the whole gradient times N^-1/2, since a sum of N independent gradients
is N^1/2 times as long as one.
Asks: what the wrapped compressor asks. Keeps nothing.
Differs: the norm is that of this worker's whole gradient, all tensors of the model together, as the
paper's is. Its worker holds g / N (algorithm 1, line 5) and the shares are summed; ours holds g and
the gradients are averaged, so that what is compared with threshold N^-1/2 is ||g|| / N. ``of: mean``
is the other reading, ||g|| itself against threshold N^-1/2: N times as strict.

    g' = g min(1, threshold N^-1/2 / ||g / N||)

Letters: N = workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import torch
from torch import Tensor

from dgc_repro.checked import Positive, checked, one_of
from dgc_repro.compressor.interface import (
    Compressor,
    Context,
    Step,
    Wrapper,
)
from dgc_repro.kernel import batch as kernels
from dgc_repro.kernel.batch import Batch

if TYPE_CHECKING:
    from dgc_repro.exchange.world import World

SHARE, MEAN = OF = ("share", "mean")


@checked
class ClipLocal(Wrapper):
    """Wraps any compressor, as the outermost wrapper. ``threshold``: the norm that the exchanged
    gradient of all workers is to keep to. ``of``: what of a worker is compared with
    threshold N^-1/2: its share g / N of the sum, or its g (mean)."""

    inner: Compressor
    threshold: Annotated[Positive, "leave the wrapper out not to clip"] = 1.0
    of: Annotated[str, one_of(OF)] = SHARE

    def step(self, xs: Sequence[Batch], out: Batch, world: World, context: Context) -> Step:
        assert context.norms is not None, "clip_local needs the norm of the whole gradient"
        clipped = []
        for worker, (x, norm) in enumerate(zip(xs, context.norms(), strict=True)):
            factor, own = self.factor(norm, world.size), x
            if isinstance(factor, Tensor) or factor < 1:
                own = Batch(x.names, context.at(worker).buffers("clipped", x))
                kernels.scale(x, factor, own)
            clipped.append(own)
        return (yield from self.inner.step(clipped, out, world, context.within("clip_local")))

    def factor(self, norm: float | Tensor, num_workers: int) -> float | Tensor:
        """What the gradient of this norm is multiplied by: 1 where it is short enough, or a NaN. Of a tensor:
        f32[]."""
        limit = self.threshold * num_workers**-0.5
        if self.of == SHARE:
            limit *= num_workers
        if isinstance(norm, Tensor):
            return torch.where(norm > limit, limit / norm, 1.0).float()
        return limit / norm if norm > limit else 1.0
