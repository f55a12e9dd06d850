"""The counter's random numbers: even, independent, repeatable, without a state.

Statistics on fixed keys: the bounds are 6 standard deviations, so that a sound hash passes for any
key one may put here, and a test that fails has found something.
"""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from dgc_repro.kernel import counter

COUNT = 1 << 18
KEYS = [
    counter.key(0, step, "layer1.0.conv1.weight", rank) for step in range(3) for rank in range(2)
]
KEYS += [0, 1, -1, 2**31 - 1, -(2**31)]


def i32(value: int) -> Tensor:
    return torch.tensor(value, dtype=torch.int32)


def stream(key: int, first: int = 0) -> Tensor:
    index = torch.arange(first, first + COUNT, dtype=torch.int64).to(torch.int32)
    return counter.uniform(index, i32(key))


def chi_square_sigmas(counts: Tensor) -> float:
    """By how many standard deviations chi-square over equally likely cells is off its mean."""
    expected = float(counts.sum()) / counts.numel()
    freedom = counts.numel() - 1
    chi_square = float((counts.double() - expected).square().sum()) / expected
    return (chi_square - freedom) / math.sqrt(2 * freedom)


def joint_sigmas(a: Tensor, b: Tensor) -> float:
    return chi_square_sigmas(torch.bincount((a * 16).long() * 16 + (b * 16).long(), minlength=256))


@pytest.mark.parametrize("key", KEYS)
def test_numbers_are_spread_evenly_in_every_bit_and_beside_their_neighbours(key: int) -> None:
    numbers = stream(key)
    for cells in (256, 1024):
        counts = torch.bincount((numbers * cells).long(), minlength=cells)
        assert abs(chi_square_sigmas(counts)) < 6, cells
    for lag in (1, 2, 8, 64, 512, 4096):
        assert abs(joint_sigmas(numbers, stream(key, lag))) < 6, f"lag {lag}"
    hashed = counter.bits(torch.arange(COUNT, dtype=torch.int32), i32(key))
    for bit in range(32):
        ones = int(((hashed >> bit) & 1).sum())
        assert abs(ones - COUNT / 2) < 6 * math.sqrt(COUNT) / 2, f"bit {bit}"


def test_two_keys_give_independent_streams() -> None:
    """Not one stream in another order either: the same numbers would come back at other places."""
    streams = {key: stream(key) for key in KEYS}
    first = {key: set(numbers[:4096].tolist()) for key, numbers in streams.items()}
    for one, other in itertools.combinations(KEYS, 2):
        assert abs(joint_sigmas(streams[one], streams[other])) < 6, (one, other)
        repeated = len(first[one] & first[other])
        assert repeated < 4096 * 4096 / 2**23 + 6 * math.sqrt(4096 * 4096 / 2**23) + 1


def test_numbers_lie_strictly_between_0_and_1() -> None:
    """The extreme hashes are too rare to be met by drawing: they are put in."""
    assert float(stream(7).min()) > 0
    assert float(stream(7).max()) < 1
    every = torch.tensor([0, 0x1FF, -1, -512, 2**31 - 1, -(2**31)], dtype=torch.int32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counter, "bits", lambda index, key: index)
        numbers = counter.uniform(every, i32(0))
    assert 0 < float(numbers.min()) == 2.0**-24
    assert float(numbers.max()) == 1 - 2.0**-24


def test_indices_may_wrap() -> None:
    """A tensor of more than 2^31 values goes on with negative indices, not with the same ones."""
    far = stream(5, 2**31 - COUNT // 2)
    cells = torch.bincount((far * 256).long(), minlength=256)
    assert abs(chi_square_sigmas(cells)) < 6


def test_keys_fit_32_bits_and_differ_in_every_part() -> None:
    parts = itertools.product(range(3), (0, 1, 10**12), ("a", "b", "ab"), (-1, 0, 1))
    keys = [counter.key(*part) for part in parts]
    assert all(-(2**31) <= key < 2**31 for key in keys)
    assert len(set(keys)) == len(keys)
    assert counter.key(1, 2) != counter.key(2, 1)
    assert counter.key("a", "b") != counter.key("ab")
    assert any(key < 0 for key in keys)


FIRST_KEY = -1154645574
FIRST_NUMBERS = [0.9901935458183289, 0.5094062685966492, 0.54190593957901, 0.8302000164985657]


def test_a_key_is_the_same_in_every_version() -> None:
    """Resume and published runs rest on it; a change here raises results_version."""
    assert counter.key(0, 1, "fc.weight", -1) == FIRST_KEY
    assert stream(3)[:4].tolist() == FIRST_NUMBERS
