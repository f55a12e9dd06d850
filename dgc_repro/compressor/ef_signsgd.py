"""Scaled signs: one bit a value and the mean magnitude, for error feedback.

Paper: Karimireddy et al., "Error feedback fixes SignSGD and other gradient compression schemes", ICML
2019 (arXiv:1901.09847), algorithm 1, with wrap=[error_feedback].
Asks: `Gather` of one float32 scale and one bit a value: 4 + 4 ceil(n / 32) bytes.
Differs: the paper is silent on more workers than one; answers are averaged, as of any other method. One
scale a tensor, as the paper's layer-wise experiments. One bit has no room for sign(0): an exact 0 is
sent as +, and the error feedback takes it back. The residual is in units of the gradient
(compressor/error_feedback.py).

    C(p) = ||p||_1 / n sign(p);  ||C(p) - p||^2 = (1 - ||p||_1^2 / (n ||p||^2)) ||p||^2

Letters: n = values, p = gradient and residual. (The equality is the paper's density of
the scaled sign, and holds where no p is 0.)
"""

from __future__ import annotations

import torch
from torch import Tensor

from dgc_repro.checked import checked
from dgc_repro.compressor.encoding import Quantizer
from dgc_repro.compressor.interface import Context
from dgc_repro.exchange.payload import Signs
from dgc_repro.kernel import signs, sums


@checked
class EFSignSGD(Quantizer):
    """Send scaled signs. Nothing to set; what it loses an error feedback around it keeps."""

    def encode(self, tensor: Tensor, context: Context) -> Signs:
        """Take the scale and pack the signs. tensor: f32, contiguous."""
        flat = tensor.view(-1)
        n, device = flat.numel(), flat.device
        words = context.scratch("words", signs.num_words(n), torch.int32, device)
        if n == 0:
            return Signs(0, words, flat.new_empty(0))
        scale = (sums.magnitude_sum(flat) / n).float().view(1)
        if signs.pack(flat, words):
            context.found_finite(flat)
        return Signs(n, words, scale)
