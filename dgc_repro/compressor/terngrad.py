"""TernGrad: -s, 0 or s for every value, at random without bias, after clipping.

Paper: Wen et al., "TernGrad: ternary gradients to reduce communication in distributed deep learning",
NeurIPS 2017 (arXiv:1705.07878): ternary gradients, layer-wise ternarizing, gradient clipping, scaler
sharing.
Asks: to gather n codes of 2 bits and one float32 scale: n / 4 + 4 bytes, filled up to whole bytes;
with ``shared_scale`` the largest scale (4 bytes) first.
With exchange.aggregation=sharded each shard has a scale of its own; with ``shared_scale`` it is refused.
Differs: the paper's parameter server sends the averaged ternary gradients in log2(2 N + 1) bits back; here
everybody gathers everybody's codes. Sigma is taken about 0, sqrt(sum g^2 / n), as of the Gaussian of mean 0
that the paper reasons with: about the mean, a tensor of one value, or of equal ones, would be clipped to
nothing. Clipping is biased, as in the paper.

    f(g) = g where |g| <= c sigma, else sign(g) c sigma;  s = max|f(g)|
    sent: s sign(f(g)) b,  b = 1 with probability |f(g)| / s

Under error feedback, which the paper does not use, it is no contraction, whatever c: what ternary codes of
a Gaussian tensor lose at c = 2.5 is larger than the tensor. The residual grows for thousands of steps, and
settles at 0.29 to 0.37 sqrt(n) gradients' norms, much as that of QSGD with 1 level (measured on Gaussian
gradients: 9 of 1,024 values, 25 of 5,120 after 200 steps, 83 of 51,200 after 1,000, 265 of 512,000 after
4,000; c = 2: 1.4). It is not refused, because it has an end (`make bench` times it); use c = 2 or less there.

Letters: n = values, s = scale, c = clip.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import torch
from torch import Tensor

from dgc_repro.checked import checked, within
from dgc_repro.compressor.encoding import Quantizer, counts, encode, layouts_of, of_filled
from dgc_repro.compressor.gathering import average, gathered
from dgc_repro.compressor.interface import Context, Step
from dgc_repro.kernel import codes as kernels
from dgc_repro.kernel import sums
from dgc_repro.kernel.batch import Batch
from dgc_repro.payload import Codes

if TYPE_CHECKING:
    from dgc_repro.exchange.world import World

BITS = 2
Deviations = Annotated[float, within(above=0, name="a number of standard deviations")]


@checked
class TernGrad(Quantizer):
    """``clip``: c, values are clipped at so many standard deviations; None for no clipping.
    ``shared_scale``: all workers use the largest of their scales, so that they share one grid."""

    clip: Deviations | None = 2.5
    shared_scale: bool = False

    @property
    def gather_only(self) -> bool:
        """A shared scale is agreed on before anything is encoded, and of the whole tensor."""
        return self.shared_scale

    def step(self, xs: Sequence[Batch], out: Batch, world: World, context: Context) -> Step:
        scales = [self.scales(x) for x in xs]
        if self.shared_scale:
            yield world.largest(scales)
            scales = [scales[0]] * len(xs)
        each = enumerate(zip(xs, scales, strict=True))
        sent = [_encode(x, own, context.at(worker)) for worker, (x, own) in each]
        average((yield from gathered(sent, world, context)), out)
        return sent

    def encode_batch(self, batch: Batch, context: Context) -> Codes:
        """Ternarize by this worker's own scales, and pack."""
        return _encode(batch, self.scales(batch), context)

    def scales(self, batch: Batch) -> Tensor:
        """s = max|f(g)| of each tensor that is not empty: f32[so many]."""
        if self.clip is None:
            return of_filled(sums.peaks(batch), batch.sizes)
        squares, peaks = sums.squares(batch)
        deviations = (squares / counts(batch.sizes, batch.device)).sqrt()
        clipped = torch.minimum(peaks.double(), self.clip * deviations).float()
        return of_filled(clipped, batch.sizes)


def _encode(batch: Batch, scales: Tensor, context: Context) -> Codes:
    layout = layouts_of(batch.sizes, BITS, None)
    return encode(batch, context, layout, kernels.STOCHASTIC, scales=scales)
