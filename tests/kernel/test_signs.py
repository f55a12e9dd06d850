"""Signs: one bit a value, decoded to the levels it stands for, counted without being decoded."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numeric import both_kernels, dense, heavy_tailed, three_threads
from torch import Tensor

from dgc_repro.kernel import signs
from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.signs import SignLayout
from dgc_repro.payload import Signs, vote

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
@pytest.mark.parametrize("columns", [1, 3, 127, 128, 129, 1000])
def test_each_column_has_its_own_levels(columns: int) -> None:
    rows = 37
    x = heavy_tailed(rows * columns, columns)
    levels = torch.rand(2 * columns) + 1
    decoded = dense(packed(x, levels)).view(rows, columns)
    high, low = levels[:columns], levels[columns:]
    assert torch.equal(decoded, torch.where(x.view(rows, columns) < 0, low, high))


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


def test_the_number_of_threads_changes_no_vote() -> None:
    payloads = [packed(heavy_tailed(300_001, i)) for i in range(3)]
    one, three = torch.empty(300_001), torch.empty(300_001)
    vote(payloads, batch(one))
    with three_threads():
        vote(payloads, batch(three))
    assert torch.equal(one, three)
