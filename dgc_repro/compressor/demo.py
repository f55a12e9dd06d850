"""DeMo: the largest coefficients of the cosine transform of each block of a matrix.

Paper: Peng, Quesnelle, Kingma, "DeMo: Decoupled momentum optimization", 2024 (arXiv:2411.19870), algorithm 1;
numbers are those of the authors' code (bloc97/DeMo): blocks of 64 x 64, k = 32, decay 0.999.
Asks: to gather k entries a block of h x w values, all of them in a smaller block: with K of a tensor, 4 K
bytes of values and log2(h w) bits a place, filled up to whole groups of codes: 3 ceil(K / 2) for 64 x 64.
Differs: the momentum is the residual of the `ErrorFeedback` around this, whose decay is the paper's beta:
wrap=[error_feedback], wrapper.error_feedback.decay=0.999; the optimizer's momentum is 0. It is in units of
the gradient; the authors' code multiplies by the learning rate before it accumulates. A coefficient is
averaged over all workers; the authors' code averages over the workers that have sent it. Places take
log2(h w) bits in place of 64. A tensor of more than two dimensions is a matrix, shape[0] x the rest. A side
of a block is the largest divisor of the matrix's side that is at most ``chunk``, as in the authors' code: of
a prime number above it 1. Ties go to the lower place.

    m = beta m + g;  q = the k largest coefficients of DCT(m) in each block;  m = m - inverse DCT(q)
    answer = sign(inverse DCT(mean q))

The transform is orthonormal: what is sent is a projection, and no farther from the tensor than zero is.

Letters: n = values, h, w = sides of a block, k = coefficients sent of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import torch

from dgc_repro.checked import Count, checked, within
from dgc_repro.compressor.encoding import Quantizer
from dgc_repro.compressor.gathering import average
from dgc_repro.compressor.interface import Context
from dgc_repro.kernel import chunks, cosines
from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.cached import cached
from dgc_repro.kernel.chunks import ChunkLayout, Cut
from dgc_repro.payload import Cosines

LONGEST_SIDE = 256  # 256^2 = chunks.LARGEST_CHUNK


@checked
class DeMo(Quantizer):
    """``k``: coefficients of a block. ``chunk``: the longest side of a block. ``sign``: answer with the sign
    of the mean, as the paper, or with the mean."""

    k: Count = 32
    chunk: Annotated[int, within(1, LONGEST_SIDE)] = 64
    sign: bool = True
    gather_only = True  # a shard is no matrix
    needs_feedback = True

    def check_fits(self, shapes: Sequence[torch.Size]) -> None:
        """Refuse blocks of which everything would be sent. Raises ValueError."""
        largest = max((_cut(shape, self.chunk, self.k).length for shape in shapes), default=0)
        if largest <= self.k:
            raise ValueError(
                f"k: {self.k} coefficients would be everything, the largest block has {largest} values (a "
                f"side is a divisor of the matrix's, at most chunk={self.chunk}); use a lower k, or "
                "exchange.unit=layer"
            )

    def combine(self, payloads: Sequence[Any], out: Batch) -> None:
        average(payloads, out)
        if self.sign:
            torch._foreach_sign_(list(out.tensors))

    def encode_batch(self, batch: Batch, context: Context) -> Cosines:
        """Transform, choose and pack."""
        layout = _layout(tuple([tensor.shape for tensor in batch.tensors]), self.chunk, self.k)
        work = context.scratch("chunks", layout.work_size, torch.float32, batch.device)
        cosines.transform(batch, work, layout)
        places, values = layout.choose(work)
        buffer = context.scratch("chunked", layout.size, torch.uint8, batch.device)
        payload = Cosines(batch.names, layout, buffer, work)
        payload.write(places, values)
        return payload


@cached()
def _layout(shapes: tuple[torch.Size, ...], chunk: int, k: int) -> ChunkLayout:
    return chunks.chunk_layout(tuple([_cut(shape, chunk, k) for shape in shapes]), None)


def _cut(shape: torch.Size, chunk: int, k: int) -> Cut:
    n = shape.numel()
    if n == 0:
        return Cut((1, 1), 0, 0, 0, 0)
    rows = shape[0] if len(shape) > 1 else 1
    sides = _divisor(rows, chunk), _divisor(n // rows, chunk)
    length = sides[0] * sides[1]
    across = n // rows // sides[1]
    return Cut(sides, n // length, length, min(k, length), min(k, length), across)


@cached(1024)
def _divisor(n: int, at_most: int) -> int:
    """The largest divisor of n that is at most so large."""
    return next(d for d in range(min(n, at_most), 0, -1) if n % d == 0)
