"""Scaled signs: one bit a value and the mean magnitude, for error feedback.

Paper: Karimireddy et al., "Error feedback fixes SignSGD and other gradient compression schemes", ICML
2019 (arXiv:1901.09847), algorithm 1, with wrap=[error_feedback].
Asks: to gather one float32 scale and one bit a value: 4 + 4 ceil(n / 32) bytes.
Differs: the paper is silent on more workers than one; answers are averaged, as of any other method. One
scale a tensor, as the paper's layer-wise experiments. One bit has no room for sign(0): an exact 0 is
sent as +, and the error feedback takes it back. The residual is in units of the gradient
(compressor/error_feedback.py).

    C(p) = ||p||_1 / n sign(p);  ||C(p) - p||^2 = (1 - ||p||_1^2 / (n ||p||^2)) ||p||^2

Letters: n = values, p = gradient and residual. (The equality is the paper's density of
the scaled sign, and holds where no p is 0.)
"""

from __future__ import annotations

from dgc_repro.checked import checked
from dgc_repro.compressor.encoding import Quantizer, counts, of_filled, signs_of
from dgc_repro.compressor.interface import Context
from dgc_repro.kernel import sums
from dgc_repro.kernel.batch import Batch
from dgc_repro.payload import Signs


@checked
class EFSignSGD(Quantizer):
    """Send scaled signs. Nothing to set; what it loses an error feedback around it keeps."""

    needs_feedback = True

    def encode_batch(self, batch: Batch, context: Context) -> Signs:
        """Take the scales and pack the signs."""
        scales = (sums.magnitudes(batch) / counts(batch.sizes, batch.device)).float()
        num_levels = tuple([min(1, n) for n in batch.sizes])
        return signs_of(batch, context, num_levels, of_filled(scales, batch.sizes))
