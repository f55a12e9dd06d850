"""1-bit SGD: one bit a value, decoded as one of two means of its column.

Paper: Seide et al., "1-bit stochastic gradient descent and its application to data-parallel distributed
training of speech DNNs", Interspeech 2014, sections 3.1 and 3.2.
Asks: to gather two float32 means a column and one bit a value: 8 columns + 4 ceil(n / 32) bytes.
Differs: the paper exchanges quantized shards and quantizes their sums again; here everybody gathers
everybody's bits. The paper's columns are those of its weight matrices; here a matrix is the tensor seen
as shape[0] rows by the rest as columns, and a vector or a scalar is one column (so is the model under
exchange.unit=model). It is made for error
feedback (wrap=[error_feedback]): without it, what the means hide is lost.

    bit = (x >= 0);  decoded = mean of the column's values >= 0, or of those < 0, as the bit says

Letters: n = values. An exact 0 counts as non-negative, and a column of zeros comes back as zeros.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from dgc_repro.checked import checked
from dgc_repro.compressor.encoding import Quantizer, signs_of
from dgc_repro.compressor.interface import Context
from dgc_repro.kernel import sums
from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.cached import cached
from dgc_repro.payload import Signs


@checked
class OneBit(Quantizer):
    """Send one bit a value. Nothing to set, nothing to keep."""

    gather_only = True  # a shard has no columns
    needs_feedback = True

    def encode_batch(self, batch: Batch, context: Context) -> Signs:
        """Take the means and pack the bits."""
        columns = tuple([num_columns(tensor) for tensor in batch.tensors])
        rows, order = _matrices(batch.sizes, columns, batch.device)
        above, below, negative = sums.parts(batch, columns)
        # Where a column has none of a kind, its mean is 0 / 1.
        means = [above / (rows - negative).clamp(min=1), below / negative.clamp(min=1)]
        levels = torch.cat(means).float()[order]
        return signs_of(batch, context, tuple([2 * count for count in columns]), levels)


def num_columns(tensor: Tensor) -> int:
    """Columns of the gradient matrix; none of an empty one."""
    if tensor.numel() == 0:
        return 0
    return tensor.numel() // tensor.shape[0] if tensor.dim() > 1 else 1


@cached()
def _matrices(
    sizes: tuple[int, ...], columns: tuple[int, ...], device: torch.device
) -> tuple[Tensor, Tensor]:
    """How many rows each column of a batch has (f64[columns]), and where the two levels of the columns
    of one tensor stand in a list of all first levels and then all second ones (i64[2 columns])."""
    rows = [n // max(1, count) for n, count in zip(sizes, columns, strict=True)]
    of_columns = np.repeat(np.array(rows, dtype=np.float64), columns)
    places = np.split(np.arange(sum(columns)), np.cumsum(columns)[:-1])
    order = np.concatenate([level + own for own in places for level in (0, sum(columns))])
    return torch.from_numpy(of_columns).to(device), torch.from_numpy(order).to(device)
