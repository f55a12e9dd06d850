"""1-bit SGD: one bit a value, decoded as one of two means of its column.

Paper: Seide et al., "1-bit stochastic gradient descent and its application to data-parallel distributed
training of speech DNNs", Interspeech 2014, sections 3.1 and 3.2.
Asks: `Gather` of two float32 means a column and one bit a value: 8 columns + 4 ceil(n / 32) bytes.
Differs: the paper exchanges quantized shards and quantizes their sums again; here everybody gathers
everybody's bits. The paper's columns are those of its weight matrices; here a matrix is the tensor seen
as shape[0] rows by the rest as columns, and a vector or a scalar is one column (so is the model under
exchange.unit=model). It is made for error
feedback (wrap=[error_feedback]): without it, what the means hide is lost.

    bit = (x >= 0);  decoded = mean of the column's values >= 0, or of those < 0, as the bit says

Letters: n = values. An exact 0 counts as non-negative, and a column of zeros comes back as zeros.
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
class OneBit(Quantizer):
    """Send one bit a value. Nothing to set, nothing to keep."""

    gather_only = True  # a shard has no columns

    def encode(self, tensor: Tensor, context: Context) -> Signs:
        """Take the means and pack the bits. tensor: f32, contiguous."""
        flat = tensor.view(-1)
        n, device = flat.numel(), flat.device
        words = context.scratch("words", signs.num_words(n), torch.int32, device)
        if n == 0:
            return Signs(0, words, flat.new_empty(0))
        columns = num_columns(tensor)
        (above, below, negative), finite = sums.parts(flat, columns)
        # Where a column has none of a kind, its mean is 0 / 1.
        means = [above / (n // columns - negative).clamp(min=1), below / negative.clamp(min=1)]
        signs.pack(flat, words)
        if finite:
            context.found_finite(flat)
        return Signs(n, words, torch.cat(means).float())


def num_columns(tensor: Tensor) -> int:
    """Columns of the gradient matrix."""
    return tensor.numel() // tensor.shape[0] if tensor.dim() > 1 else 1
