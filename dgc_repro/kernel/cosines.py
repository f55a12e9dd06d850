"""The discrete cosine transform of each chunk of a batch (kernel/chunks.py), by products of matrices.

A chunk of h x w values is a block of a matrix; of a vector h is 1. The transform is type II, orthonormal,
along both sides, so that its inverse is its transpose. Each block is a product of its own, whatever the other
tensors of the batch are. Matrix products round in orders of their own: all ranks need one kind of
processor, as for kernel/lowrank.py, and on a GPU torch.backends.cuda.matmul.allow_tf32 off.

Letters: h, w = sides of a block.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.cached import cached
from dgc_repro.kernel.chunks import ChunkLayout


@cached()
def basis(length: int, device: torch.device) -> Tensor:
    """f32[length, length]: column f is the cosine of frequency f. x @ basis is the transform of x."""
    place = torch.arange(length, dtype=torch.float64)
    angle = math.pi / length * (place[:, None] + 0.5) * place
    cosines = torch.cos(angle) * math.sqrt(2 / length)
    cosines[:, 0] = math.sqrt(1 / length)
    return cosines.float().to(device)


def transform(batch: Batch, work: Tensor, layout: ChunkLayout) -> None:
    """work = the coefficients of all blocks. work: f32[work_size]."""
    for shape, rows in layout.matrices(work).items():
        blocks, parts = _pairs(batch, rows, layout, shape)
        torch._foreach_copy_(parts, blocks)
        _both_sides(rows.view(-1, *shape), inverse=False)


def inverse(work: Tensor, batch: Batch, layout: ChunkLayout, *, accumulate: bool) -> None:
    """tensors = or += what has these coefficients. ``work`` is overwritten."""
    for shape, rows in layout.matrices(work).items():
        _both_sides(rows.view(-1, *shape), inverse=True)
        blocks, parts = _pairs(batch, rows, layout, shape)
        if accumulate:
            torch._foreach_add_(blocks, parts)
        else:
            torch._foreach_copy_(blocks, parts)


def _both_sides(blocks: Tensor, *, inverse: bool) -> None:
    """blocks (f32[blocks, h, w]) = their transforms."""
    count, height, width = blocks.shape
    left, right = (basis(side, blocks.device).expand(count, side, side) for side in (height, width))
    if inverse:
        left, right = left.mT, right.mT
    half = torch.bmm(left.mT, blocks) if height > 1 else blocks.clone()
    torch.bmm(half, right, out=blocks)


def _pairs(
    batch: Batch, rows: Tensor, layout: ChunkLayout, shape: tuple[int, int]
) -> tuple[list[Tensor], list[Tensor]]:
    """Of each tensor with blocks of this shape, a view as blocks, and its rows in the same shape:
    [rows / h, cols / w, h, w]."""
    height, width = shape
    blocks, parts = [], []
    each = zip(layout.groups[shape], rows.split(layout.rows_of[shape]), strict=True)
    for i, own in each:
        across = layout.cuts[i].across
        blocks.append(batch.tensors[i].view(-1, height, across, width).transpose(1, 2))
        parts.append(own.view(-1, across, height, width))
    return blocks, parts
