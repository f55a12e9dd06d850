"""QSGD: each bucket's values on a grid of ||bucket|| / s, rounded at random without bias.

Paper: Alistarh et al., "QSGD: communication-efficient SGD via gradient quantization and encoding",
NeurIPS 2017 (arXiv:1610.02132): section 3 (quantizer, lemma 3.1; Elias coding, theorem 3.2), section 4
(buckets, max-norm), appendix (the codes).
Asks: to gather n codes of b = ceil(log2(2 s + 1)) bits and one float32 norm a bucket:
n b / 8 + 4 ceil(n / bucket) bytes, filled up to whole groups of codes a row
(`CodeLayout.num_bytes`).
Differs: codes travel with a fixed width; `elias_bits` tells what the paper's coding of the same codes
would take. What is sent beside them is norm / s, the step of the grid. Where that step is below float32's
normal range, so that the norm is below s x 1.2e-38, the values of a bucket are sent as 0. A draw has 23
bits: the mean is right to 2^-24 of a step. A 2-norm that float32 cannot hold is replaced by the largest one
that it can, which is above every value still, so nothing is biased.

    Q(v_i) = ||v|| sign(v_i) xi_i / s,  xi_i = l + 1 with probability |v_i| s / ||v|| - l, else l,
    l = floor(|v_i| s / ||v||)

Letters: n = values, s = levels, b = bits a code. E[Q(v)] = v; the variance is at most
min(d / s^2, sqrt(d) / s) ||v||^2 for buckets of d values (lemma 3.1).

Under error feedback, which the paper does not use: with the max-norm no value is moved by a step, which
is max|v| / s, so that from 2 levels on the largest entry of a residual is below max|g| / (s - 1). At 1
level buckets of 9 values or more are no contraction; measured over 2,000 steps of Gaussian gradients, the
residual settles at 0.36 sqrt(d) gradients' norms all the same (1.0 of buckets of 8, 8.2 of 512), because
it becomes flat: of equally likely magnitudes 1 level does contract.
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from dgc_repro.checked import Count, checked, one_of, within
from dgc_repro.compressor.encoding import Quantizer, encode, layouts_of, of_filled
from dgc_repro.compressor.interface import Context
from dgc_repro.kernel import codes as kernels
from dgc_repro.kernel import sums
from dgc_repro.kernel.batch import Batch
from dgc_repro.payload import Codes

NORMS = {"two": kernels.TWO_NORM, "max": kernels.LARGEST}
MOST_LEVELS = 2**15 - 1  # codes of 16 bits


@checked
class QSGD(Quantizer):
    """``levels``: s, 1 to 32767; 7 fill 4 bits, 127 fill 8. ``bucket``: values that share a norm;
    None for one norm a tensor. ``norm``: two, or max."""

    levels: Annotated[int, within(1, MOST_LEVELS), "7 fill 4 bits, 127 fill 8"] = 127
    bucket: Annotated[Count | None, "null for one norm a tensor"] = 512
    norm: Annotated[str, one_of(NORMS)] = "two"

    @property
    def expands(self) -> bool:
        """With the 2-norm, buckets of 4 s^2 values or more: the noise of d values that lie between two
        levels is up to d / 4 (||v|| / s)^2, and that is all of ||v||^2 where d = 4 s^2. A residual then
        grows without bound: at 7 levels of buckets of 512 Gaussian values it had 90,000 times the norm of
        a gradient after 200 steps."""
        return self.norm == "two" and (self.bucket is None or 4 * self.levels**2 <= self.bucket)

    @property
    def bits(self) -> int:
        """Bits of a code: 2 s + 1 of them are told apart."""
        return (2 * self.levels).bit_length()

    def encode_batch(self, batch: Batch, context: Context) -> Codes:
        """Quantize and pack."""
        rule, scales = NORMS[self.norm], None
        if self.bucket is None and rule == kernels.TWO_NORM:
            # Float64 holds the squares of all float32 values, and their sum.
            squares, _ = sums.squares(batch)
            norm = (squares.sqrt() / self.levels).clamp(max=kernels.LARGEST_NORM / self.levels)
            norm = torch.where(squares.isfinite(), norm, squares)
            scales = of_filled(norm.float(), batch.sizes)
        return encode(
            batch,
            context,
            layouts_of(batch.sizes, self.bits, self.bucket),
            kernels.STOCHASTIC,
            levels=self.levels,
            rule=rule,
            scales=scales,
        )


def elias_bits(payload: Codes, *, dense: bool = False) -> int:
    """Bits that the paper's coding of these codes takes, 32 a norm included.

    Its Code_s: for every value that is not 0, Elias(places since the last such value of
    the bucket), a sign bit, Elias(level). With ``dense`` its Code'_s, which has no places: for every
    value a sign bit and Elias(level + 1). Elias is the recursive code, called omega today. That a
    bucket has ended is not counted: both sides know how long it is.
    """
    total = 0
    for layout, levels in zip(payload.layout.tensors, payload.levels(), strict=True):
        total += 32 * layout.num_scales
        if dense:
            total += layout.n + _total_omega_bits(levels.abs_().add_(1))
            continue
        places = torch.nonzero(levels).view(-1)
        sent = levels[places].abs_()
        bucket = layout.width if layout.per_row else max(1, layout.n)
        before = torch.cat([places.new_full((1,), -1), places])[:-1]
        start = places // bucket * bucket - 1  # as if there were a value just before the bucket
        gaps = places - torch.maximum(before, start)
        total += sent.numel() + _total_omega_bits(gaps) + _total_omega_bits(sent)
    return total


def omega_bits(numbers: Tensor) -> Tensor:
    """Length of the recursive Elias code of each number from 1: i64, the shape of ``numbers``.

    Elias(1) = 0; in front of that 0 stands k in binary, in front of it len(k) - 1, and so on to 1."""
    left, total = numbers.clone(), torch.ones_like(numbers)
    while bool((left > 1).any()):
        length = torch.frexp(left.double()).exponent.long()  # of the binary number
        total += torch.where(left > 1, length, 0)
        left = torch.where(left > 1, length - 1, 1)
    return total


def _total_omega_bits(numbers: Tensor) -> int:
    counts = torch.bincount(numbers)[1:]  # few different numbers among many
    return int(
        (counts * omega_bits(torch.arange(1, counts.numel() + 1, device=counts.device))).sum()
    )
