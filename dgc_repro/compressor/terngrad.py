"""TernGrad: -s, 0 or s for every value, at random without bias, after clipping.

Paper: Wen et al., "TernGrad: ternary gradients to reduce communication in distributed deep learning",
NeurIPS 2017 (arXiv:1705.07878): ternary gradients, layer-wise ternarizing, gradient clipping, scaler
sharing.
Asks: `Gather` of n codes of 2 bits and one float32 scale: n / 4 + 4 bytes, filled up to whole bytes;
with ``shared_scale`` `Max` of the scale (4 bytes) first.
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

from typing import Annotated

import torch
from torch import Tensor

from dgc_repro.checked import checked, within
from dgc_repro.compressor.encoding import Quantizer, encode, layout_of
from dgc_repro.compressor.interface import Context, State
from dgc_repro.exchange.payload import Codes
from dgc_repro.exchange.requests import Exchange, Gather, Max, Outcome
from dgc_repro.kernel import codes as kernels
from dgc_repro.kernel import sums

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

    def exchange(self, tensor: Tensor, state: State, context: Context) -> Exchange:
        scale = self.scale(tensor, context)
        if self.shared_scale:
            scale = yield Max(scale)
        own = _encode(tensor, scale, context)
        payloads = yield Gather(own)
        mean = payloads.mean(context.result(tensor))
        return Outcome(mean.view(tensor.shape), own, state)

    def encode(self, tensor: Tensor, context: Context) -> Codes:
        """Ternarize by this worker's own scale, and pack. tensor: f32, contiguous."""
        return _encode(tensor, self.scale(tensor, context), context)

    def scale(self, tensor: Tensor, context: Context) -> Tensor:
        """s = max|f(g)|: f32[1], and f32[0] of an empty tensor."""
        n = tensor.numel()
        if n == 0:
            return tensor.new_empty(0)
        if self.clip is None:
            peak, finite = sums.peak(tensor.view(-1))
        else:
            squares, peak, finite = sums.squares(tensor.view(-1))
            peak = torch.minimum(peak.double(), self.clip * (squares / n).sqrt()).float()
        if finite:
            context.found_finite(tensor)
        return peak.view(1)


def _encode(tensor: Tensor, scale: Tensor, context: Context) -> Codes:
    layout = layout_of(tensor.numel(), BITS, None)
    return encode(tensor, context, layout, kernels.STOCHASTIC, rule=kernels.GIVEN, scales=scale)
