"""Chunked top-k with values of two bits: the compression of SparseLoCo.

Paper: Sarfi, Thérien, Lidin, Belilovsky, "Communication efficient LLM pre-training with SparseLoCo", 2025
(arXiv:2508.15706): top-k of each chunk, 2-bit values, and error feedback whose residual decays. Numbers and
quantizer are those of the authors' code (tplr-ai/templar, CCLoco): chunks of 64 x 64, k = 64, decay 0.95,
bins over 6 standard deviations.
Asks: to gather k = max(1, round(c density)) entries a chunk of c values (fewer of a shorter last chunk):
4 x 2^b bytes of levels a tensor, then, of K entries of the tensor, log2(c) bits a place and b bits a value,
each filled up to whole groups of codes: 3 ceil(K / 2) + ceil(K / 4) bytes for c = 4096 and b = 2.
Differs: this is the compressor alone. It works on gradients, where the paper sends the difference of weights
after many local steps of AdamW: give ``train.local_steps`` for that (docs/methods.md). The decay is
`ErrorFeedback`'s. A chunk is a stretch of values as they lie in memory, the last one shorter; the authors cut
a matrix into blocks whose sides divide its own, and a vector likewise. The mean is over all workers; the
authors' code averages an entry over the workers that have sent it, and before that scales the values of each
worker, tensor by tensor, so that their norm is at most the median of the workers' norms. Ties go to the lower
place. Bins and levels are computed in float64.

    S = the k largest |x| of each chunk;  m, s = mean and standard deviation of x[S] in the tensor
    code = round((x[S] - m) / (6 s / 2^b) + 2^b / 2), from 0 to 2^b - 1
    decoded = the mean of the values with this code

A level is the mean of its values, so that ||x - C(x)|| <= ||x||: what is sent is no farther from the tensor
than zero is.

Letters: n = values, c = values of a chunk, k = entries sent of one, K = of a tensor, b = bits of a value.
"""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from dgc_repro.checked import Share, checked, within
from dgc_repro.compressor.encoding import Quantizer
from dgc_repro.compressor.interface import Context
from dgc_repro.compressor.sparsifier import num_kept
from dgc_repro.kernel import chunks
from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.cached import cached
from dgc_repro.kernel.chunks import ChunkLayout, Cut
from dgc_repro.payload import Chunked

DEVIATIONS = 6  # over which the bins of values reach


@checked
class SparseLoCo(Quantizer):
    """``density``: share of a chunk's entries to send. ``chunk``: values of a chunk. ``bits``: of a value
    that is sent."""

    density: Annotated[Share, "0.01 sends 1 %"] = 1 / 64
    chunk: Annotated[int, within(2, chunks.LARGEST_CHUNK)] = 4096
    bits: Annotated[int, within(2, 8)] = 2
    gather_only = True  # levels are of a whole tensor
    needs_feedback = True

    def encode_batch(self, batch: Batch, context: Context) -> Chunked:
        """Choose, quantize and pack."""
        layout = _layout(batch.sizes, self.chunk, self.density, self.bits)
        work = context.scratch("chunks", layout.work_size, torch.float32, batch.device)
        chunks.copy_in(batch, work, layout)
        places, values = layout.choose(work)
        codes, levels = binned(values, layout, self.bits)
        buffer = context.scratch("chunked", layout.size, torch.uint8, batch.device)
        payload = Chunked(batch.names, layout, buffer, work)
        payload.write_levels(levels)
        payload.write(places, codes)
        return payload


def binned(values: Tensor, layout: ChunkLayout, bits: int) -> tuple[Tensor, Tensor]:
    """The bin of each entry, i64[entries], and the mean of the values in each bin of each tensor,
    f32[tensors, 2^bits], 0 where there are none. values: f32[entries]."""
    constants, bins = layout.on(values.device), 2**bits
    tensor, counts, x = constants.tensor, constants.counts, values.double()
    zeros = torch.zeros_like(counts)
    mean = zeros.index_add(0, tensor, x) / counts
    centered = x - mean[tensor]
    squares = zeros.index_add(0, tensor, centered.square())
    deviation = (squares / (counts - 1).clamp(min=1)).sqrt()
    width = deviation * (DEVIATIONS / bins)
    width = torch.where(width > 0, width, 1.0)
    # Where a value is not finite the step is discarded, but a bin must be one.
    code = (centered / width[tensor] + bins // 2).round().nan_to_num().clamp(0, bins - 1).long()
    of_bins = torch.zeros(counts.numel() * bins, dtype=torch.float64, device=x.device)
    entry = tensor * bins + code
    sums = of_bins.index_add(0, entry, x)
    met = of_bins.index_add(0, entry, torch.ones_like(x))
    return code, (sums / met.clamp(min=1)).float().view(-1, bins)


@cached()
def _layout(sizes: tuple[int, ...], chunk: int, density: float, bits: int) -> ChunkLayout:
    return chunks.chunk_layout(tuple([_cut(n, chunk, density) for n in sizes]), bits)


def _cut(n: int, chunk: int, density: float) -> Cut:
    rows = -(-n // chunk)
    last = n - (rows - 1) * chunk if rows else 0
    return Cut((1, chunk), rows, last, num_kept(chunk, density), num_kept(last, density))
