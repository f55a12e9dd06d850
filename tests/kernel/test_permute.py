"""The keyed permutation: a bijection, the same from both kernels, uniform, nested."""

from __future__ import annotations

import itertools

import pytest
import torch
from numeric import both_kernels, gaussian, threads, without_c
from torch import Tensor

from dgc_repro.kernel import permute
from dgc_repro.kernel.batch import Batch
from dgc_repro.payload import Keyed, KeyedLayout

CPU = torch.device("cpu")
SIZES = [1, 2, 3, 4, 5, 7, 8, 9, 31, 100, 1000, 65_537]
KEYS = [0, 1, -5, 123_456_789, -(2**31)]


def as_tensors(n: int, key: int, k: int) -> Tensor:
    """The fallback's places, whatever is usable."""
    return permute._walked(torch.arange(k), n, key, forward=True)


@pytest.mark.parametrize("n", SIZES)
def test_every_place_comes_once_in_both_kernels_and_can_be_found_back(n: int) -> None:
    for key in KEYS:
        found = permute.places(n, key, n, CPU)
        assert torch.equal(found, as_tensors(n, key, n)), key
        assert torch.equal(found.sort().values, torch.arange(n)), key
        assert torch.equal(permute.ranks(found, n, key), torch.arange(n)), key


@both_kernels
def test_fewer_places_are_the_first_of_more() -> None:
    more = permute.places(5003, 9, 1200, CPU)
    for k in (0, 1, 511, 512, 513, 1200):
        assert torch.equal(permute.places(5003, 9, k, CPU), more[:k])


@pytest.mark.parametrize("n", [2**31 + 11, 2**33, 3 * 10**12])
def test_a_tensor_beyond_the_reach_of_32_bits_is_reached_to_its_end(n: int) -> None:
    """Of 1000 places nine of ten lie above the first tenth: all below would have p = 10^-1000."""
    found = permute.places(n, 4, 1000, CPU)
    assert torch.equal(found, as_tensors(n, 4, 1000))
    assert found.unique().numel() == 1000
    assert 0 <= int(found.min()) <= n // 10
    assert n - n // 10 <= int(found.max()) < n
    assert torch.equal(permute.ranks(found, n, 4), torch.arange(1000))


def chi_square(counts: Tensor, expected: float) -> float:
    return float((counts.double() - expected).square().sum() / expected)


def limit(degrees: int) -> float:
    """Chi-square's mean is its degrees of freedom, its variance twice that: 5 standard deviations,
    and 10 more for the skew of few degrees (p below 1e-5 from one degree on)."""
    return degrees + 5 * (2 * degrees) ** 0.5 + 10


@pytest.mark.parametrize("n", [3, 5, 8])
def test_each_ordered_pair_comes_first_as_often_as_any_other(n: int) -> None:
    """Eight rounds, enough for larger tensors, fail this at 5 and 8 places."""
    counts: dict[tuple[int, ...], int] = dict.fromkeys(itertools.permutations(range(n), 2), 0)
    for key in range(8000):
        counts[tuple(permute.places(n, key * 104_729 + 11, 2, CPU).tolist())] += 1
    every = torch.tensor(list(counts.values()))
    assert chi_square(every, 8000 / len(counts)) <= limit(len(counts) - 1)


def test_both_kernels_gather_and_scatter_the_same_bits() -> None:
    sizes, counts = (1, 5, 3000, 0, 200_000, 40), (1, 2, 2500, 0, 70_000, 40)
    layout, keys = KeyedLayout(sizes, counts, True), torch.arange(6, dtype=torch.int32) - 3
    x, other = ([gaussian(n, seed) for n in sizes] for seed in (1, 2))
    names = tuple(map(str, sizes))

    def results() -> list[Tensor]:
        own, theirs = (
            Keyed.of(
                Batch(names, values), layout, keys + i, torch.zeros(layout.size, dtype=torch.uint8)
            )
            for i, values in enumerate((x, other))
        )
        added, mean, left = ([one.clone() for one in x] for _ in range(3))
        own.add_sum_to_((theirs,), Batch(names, added), -0.7, accumulate=True)
        own.add_sum_to_((theirs,), Batch(names, mean), 0.5, accumulate=False)
        own.zero_at_(Batch(names, left))
        return [own.buffer, *added, *mean, *left]

    found = results()
    with without_c():
        assert all(map(torch.equal, found, results()))
    with threads(3):
        assert all(map(torch.equal, found, results()))
    for n, k, key, one, left in zip(sizes, counts, keys.tolist(), x, found[-6:], strict=True):
        places = as_tensors(n, key, k)
        assert not left[places].any()
        assert int((left != one).sum()) == k
