"""Packing: codes of every width, and signs, decoded to their levels and counted without being decoded."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numeric import both_kernels, dense, heavy_tailed
from torch import Tensor

from dgc_repro.kernel import signs
from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.codes import group, pack, unpack
from dgc_repro.kernel.signs import SignLayout
from dgc_repro.payload import Signs, vote


@pytest.mark.parametrize("bits", range(2, 17))
def test_every_width_comes_back_from_its_bytes(bits: int) -> None:
    codes, size = group(bits)
    assert codes * bits == size * 8
    source = torch.Generator().manual_seed(bits)
    parts = list(torch.randint(0, 2**bits, (codes, 1000), generator=source, dtype=torch.int32))
    parts[0][:2] = torch.tensor([0, 2**bits - 1])
    rows = pack(parts, bits)
    assert len(rows) == size
    assert all(int(row.min()) >= 0 and int(row.max()) <= 255 for row in rows)
    travelled = [row.to(torch.uint8).to(torch.int32) for row in rows]
    for sent, received in zip(parts, unpack(travelled, bits), strict=True):
        assert torch.equal(sent, received)


@pytest.mark.parametrize("bits", range(2, 17))
def test_codes_lie_in_the_bytes_lowest_bits_first(bits: int) -> None:
    """The bytes of a group, read as one little-endian number, hold code i at bit i b."""
    codes, _ = group(bits)
    parts = [torch.tensor([(37 * i + 5) % 2**bits], dtype=torch.int32) for i in range(codes)]
    rows = pack(parts, bits)
    number = int.from_bytes(bytes(int(row) for row in rows), "little")
    assert number == sum(int(part) << (i * bits) for i, part in enumerate(parts))


# Signs: one bit a value.

SIZES = (1, 2, 31, 32, 33, 100, 4095, 4096, 4097, 8200, 70_001)


def packed(x: Tensor, levels: Tensor | None = None, *, zero_too: bool = False) -> Signs:
    """The signs of a tensor; ``levels``: what they mean."""
    layout = SignLayout((x.numel(),), (0 if levels is None else levels.numel(),))
    buffer = torch.full((layout.size,), 249, dtype=torch.uint8)
    if levels is not None:
        layout.put(buffer, levels)
    signs.pack(batch(x), layout, buffer, zero_too=zero_too)
    return Signs(("x",), layout, buffer)


def batch(x: Tensor) -> Batch:
    return Batch(("x",), [x])


def by_hand(negative: list[bool], n: int) -> list[int]:
    """Bit p of word j of a row is of value p L + j; a row has 4096 values or what is left."""
    words = []
    for start in range(0, n, 4096):
        row = negative[start : start + 4096]
        length = -(-len(row) // 32)
        for j in range(length):
            places = [p * length + j for p in range(32)]
            words.append(sum(1 << p for p, at in enumerate(places) if at < len(row) and row[at]))
    return words


@both_kernels
@pytest.mark.parametrize("size", SIZES)
def test_a_bit_is_where_the_docstring_says_and_comes_back_as_plus_or_minus_one(size: int) -> None:
    x = heavy_tailed(size, size)
    own = packed(x)
    (words,) = own.layout.views(own.buffer, 0)
    assert words.numpy().view(np.uint32).tolist() == by_hand((x < 0).tolist(), size)
    assert words.nbytes == 4 * -(-size // 32)
    assert torch.equal(dense(packed(x)), torch.where(x < 0, -1.0, 1.0))


@both_kernels
def test_a_zero_and_a_nan_go_where_they_are_told() -> None:
    x = torch.tensor([0.0, -0.0, torch.nan, -torch.nan, 1e-45, -1e-45])
    assert dense(packed(x)).tolist() == [1, 1, 1, 1, 1, -1]
    assert dense(packed(x, zero_too=True)).tolist() == [-1, -1, 1, 1, 1, -1]


@both_kernels
@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 8, 9, 31, 32, 33, 64])
def test_the_vote_is_the_sign_of_the_sum_of_signs(count: int) -> None:
    for size in (1, 40, 4500):
        signed = [heavy_tailed(size, 100 * size + i) for i in range(count)]
        buffer = torch.full((size,), torch.nan)
        vote([packed(x) for x in signed], batch(buffer))
        assert torch.equal(buffer, torch.stack(signed).sign().sum(0).sign())


@both_kernels
def test_every_count_of_votes_is_decided_right() -> None:
    """Of 12 workers value i has i votes against: a tie at 6 alone."""
    against = torch.arange(13)
    signed = [torch.where(worker < against, -1.0, 1.0) for worker in range(12)]
    buffer = torch.empty(13)
    vote([packed(x) for x in signed], batch(buffer))
    assert buffer.tolist() == [1.0] * 6 + [0.0] + [-1.0] * 6
    assert not bool(buffer[6].signbit())
