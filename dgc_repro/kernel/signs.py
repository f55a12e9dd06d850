"""One bit a value: packed, decoded to two levels, and put to the vote.

A tensor is cut into rows of 4096 values and one shorter last row. A row is L words of 32 bits, L = 128
or, in the last one, ceil(values / 32); bit p of word j belongs to value p L + j. So reads and writes are
contiguous, and a tensor takes 4 ceil(n / 32) bytes.

Letters: n = values, W = words, N = payloads.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from dgc_repro.kernel import native
from dgc_repro.kernel.batch import Batch, integers
from dgc_repro.kernel.layout import Layout

ROW, BITS = 4096, 32

_pack = native.Function("dgc_pack_signs_all")
_decode = native.Function("dgc_decode_signs_all")
_vote = native.Function("dgc_vote_all")


class SignLayout(Layout):
    """Of a batch: levels (f32) and words (i32) of each tensor. ``num_levels``, of each tensor: 2 columns
    (what a bit that is not set means in each of the columns, then what a set one means; value i is of
    column i mod columns), 1 (a level s stands for s and -s) or 0 (bits mean 1 and -1)."""

    def __init__(self, sizes: tuple[int, ...], num_levels: tuple[int, ...]) -> None:
        given = any(num_levels)
        words = [num_words(n) for n in sizes]
        parts = [(num_levels if given else None, torch.float32), (words, torch.int32)]
        super().__init__(sizes, parts, np.array(sizes) / 32)
        self.num_levels = num_levels

    def decode(
        self, x: Batch, buffers: Sequence[Tensor], weight: float, *, accumulate: bool
    ) -> None:
        if x.native:
            _decode(
                len(x), x.lengths, x.pointers, integers(self.num_levels), self.of(0), self.of(-1),
                len(buffers), native.pointers(buffers), weight, accumulate,
            )  # fmt: skip
            return
        if x.on_gpu:
            from dgc_repro.kernel.gpu import bits as gpu

            gpu.decode_signs(x, self, self.num_levels, buffers, weight, accumulate=accumulate)
            return
        for i, tensor in enumerate(x.tensors):
            flat = tensor.view(-1)
            for source, buffer in enumerate(buffers if flat.numel() else ()):
                *levels, words = self.views(buffer, i)
                high, low = _both_levels(levels, flat.device) * weight
                rows = unpack_bits(words, flat.numel()).view(-1, high.numel())
                values = torch.where(rows, low, high).view(-1)
                flat.add_(values) if accumulate or source else flat.copy_(values)


def num_words(n: int) -> int:
    """Words of n values."""
    return -(-n // BITS)  # whole rows have 128 words for 4096 values


def pack(x: Batch, layout: SignLayout, buffer: Tensor, *, zero_too: bool = False) -> None:
    """Set a bit where x < 0, and with ``zero_too`` where x = 0, in the words of each tensor. buffer:
    u8[layout.size]."""
    if x.native:
        _pack(len(x), x.lengths, x.pointers, layout.of(-1), buffer.data_ptr(), zero_too)
        return
    if x.on_gpu:
        from dgc_repro.kernel.gpu import bits as gpu

        gpu.pack_signs(x, layout, buffer, zero_too=zero_too)
        return
    for i, tensor in enumerate(x.tensors):
        flat, (*_, words) = tensor.view(-1), layout.views(buffer, i)
        pack_bits(flat <= 0 if zero_too else flat < 0, words)


def pack_bits(bits: Tensor, words: Tensor) -> None:
    """bool[n] -> i32[W], with tensor operations."""
    whole = bits.numel() // ROW
    rest = bits[whole * ROW :]
    _or_together(bits[: whole * ROW].view(whole, BITS, ROW // BITS), words[: whole * (ROW // BITS)])
    filled = pad(rest, (0, -rest.numel() % BITS)).view(1, BITS, -1)
    _or_together(filled, words[whole * (ROW // BITS) :])


def _or_together(bits: Tensor, words: Tensor) -> None:
    """bool[rows, 32, L] -> i32[rows L]: bit p of word j is bits[:, p, j]."""
    if words.numel() == 0:
        return
    rows = words.view(bits.shape[0], -1).zero_()
    for bit in range(BITS):
        rows |= bits[:, bit].to(torch.int32) << bit


def unpack_bits(words: Tensor, n: int) -> Tensor:
    """The inverse of `pack_bits`: bool[n]."""
    shifts = torch.arange(BITS, dtype=torch.int32, device=words.device).view(1, -1, 1)
    body = n // ROW * (ROW // BITS)
    rows = words[:body].view(n // ROW, 1, ROW // BITS), words[body:].view(1, 1, -1)
    return torch.cat([((part >> shifts) & 1).view(-1) for part in rows])[:n].bool()


def _both_levels(levels: Sequence[Tensor], device: torch.device) -> Tensor:
    """f32[2, columns]."""
    if levels and levels[0].numel() > 1:
        return levels[0].view(2, -1)
    pair = torch.tensor([[1.0], [-1.0]], device=device)
    return levels[0] * pair if levels else pair


def vote(x: Batch, layout: SignLayout, buffers: Sequence[Tensor]) -> None:
    """x = the sign of the sum of N payloads' signs, 0 at a tie; one pass over the packed words."""
    if x.native:
        _vote(len(x), x.lengths, x.pointers, layout.of(-1), len(buffers), native.pointers(buffers))
        return
    if x.on_gpu:
        from dgc_repro.kernel.gpu import bits as gpu

        gpu.vote(x, layout, buffers)
        return
    for i, tensor in enumerate(x.tensors):
        if tensor.numel():
            negative = torch.zeros(tensor.numel(), dtype=torch.int32, device=tensor.device)
            for buffer in buffers:
                negative += unpack_bits(layout.views(buffer, i)[-1], tensor.numel())
            torch.sign(len(buffers) - 2 * negative, out=negative)
            tensor.view(-1).copy_(negative)
