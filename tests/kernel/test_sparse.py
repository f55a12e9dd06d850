"""Codes of places and values: C and tensor operations give the same bits, sizes depend on n and k
alone, and broken codes are reported and write nowhere else."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from laws import same_bits
from numeric import averaged, both_kernels, dense, each_dense, threads, without_c
from torch import Tensor

from dgc_repro.kernel import sparse
from dgc_repro.kernel.chosen import Selections
from dgc_repro.kernel.select import Selection, index_type
from dgc_repro.payload import Sparse
from dgc_repro.payload.sparse import CODINGS, SparseLayout

SIZES = (1, 31, 32, 33, 200, 5000, 70_000, 200_001)


def entries(n: int, k: int, seed: int = 0) -> Selection:
    """k entries in clusters, with gaps as large as n allows."""
    source = np.random.default_rng(seed)
    places = np.sort(source.choice(n, k, replace=False))
    if seed % 2 and k:  # all at the two ends
        places = np.r_[np.arange(k // 2), np.arange(n - (k - k // 2), n)]
    values = source.standard_normal(k) * np.exp(2 * source.standard_normal(k))
    indices = torch.tensor(places.tolist(), dtype=index_type(n))
    return Selection(torch.tensor(values.tolist(), dtype=torch.float32), indices, n)


def counts(n: int) -> list[int]:
    return sorted({0, 1, 2, n // 1000, n // 20, n // 3, n} & set(range(n + 1)))


def size(n: int, k: int, indices: str = "auto") -> int:
    """Bytes of header, places and values."""
    return int(SparseLayout((n,), (k,), indices).tensor_bytes[0])


def sent(payload: Sparse) -> list[Tensor]:
    """Header, places and values."""
    return payload.layout.views(payload.buffer, 0)


def chosen(payload: Sparse) -> Selection:
    """The entries as they are decoded."""
    (own,) = payload.selections()
    assert isinstance(own, Selection)
    return own


def decoded(payload: Sparse) -> list[Tensor]:
    """Everything that is read from a payload."""
    entries = chosen(payload)
    n = entries.n
    added, copied, rest, mean = (torch.linspace(-1, 1, n) for _ in range(4))
    payload.add_to_(added, 1 / 3)
    payload.copy_to_(copied, 1 / 3)
    payload.subtract_from_(rest)
    averaged([payload, payload, payload], mean)
    zeroed = torch.ones(n)
    payload.zero_at_(zeroed)
    return [added, copied, rest, mean, zeroed, entries.indices, entries.values]


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("indices", CODINGS)
def test_c_and_tensor_operations_give_the_same_bits(indices: str, shared: bool) -> None:
    for n, seed in itertools.product(SIZES, (0, 1)):
        for k in counts(n):
            selection = entries(n, k, seed)
            ours = Sparse.one(selection, indices=indices, shared=shared)
            arrived = ours.like(ours.row.clone())
            with without_c():
                theirs = Sparse.one(selection, indices=indices, shared=shared)
                expected = decoded(arrived)
            assert all(map(same_bits, sent(ours), sent(theirs))), (n, k, seed)
            assert all(map(same_bits, decoded(arrived), expected)), (n, k, seed)
            assert same_bits(chosen(arrived).indices, selection.indices)


@settings(max_examples=100)
@given(
    n=st.integers(1, 400_000),
    places=st.sets(st.floats(0, 1, exclude_max=True), max_size=30),
    indices=st.sampled_from(CODINGS),
)
def test_any_places_come_back(n: int, places: set[float], indices: str) -> None:
    wanted = torch.tensor(sorted({int(place * n) for place in places}), dtype=torch.int32)
    payload = Sparse.one(Selection(torch.ones(wanted.numel()), wanted, n), indices=indices)
    assert same_bits(chosen(payload).indices, wanted)
    assert payload.num_bytes == size(n, wanted.numel(), indices)
    assert payload.num_bytes == sum(part.nbytes for part in sent(payload))
    assert torch.equal(dense(payload).nonzero().view(-1), wanted.long())


@pytest.mark.parametrize(
    ("n", "k", "indices", "expected"),
    [
        (1000, 10, "int32", 8 + 40 + 40),
        (1000, 10, "delta16", 8 + 20 + 40),
        (1000, 10, "bitmap", 8 + 128 + 40),  # 1000 bits in 32 words
        (1000, 11, "delta16", 8 + 24 + 44),  # filled up to a word
        (1000, 100, "auto", 8 + 128 + 400),  # the bitmap
        (1000, 10, "auto", 8 + 20 + 40),  # gaps
        (1_000_000, 3, "auto", 8 + 12 + 12),  # int32: gaps need 15 escapes
        (1_000_000, 20, "auto", 8 + 2 * (20 + 16) + 80),  # 15 escapes, filled up
        (50, 50, "auto", 8 + 8 + 200),
        (0, 0, "auto", 8),
        (10, 0, "auto", 8),
        # Beyond 2^31 entries plain indices are 8 bytes.
        (2**31, 1000, "int32", 8 + 8000 + 4000),
        (2**31 - 1, 1000, "int32", 8 + 4000 + 4000),
        (2**31, 100_000, "auto", 8 + 2 * (100_000 + 32_766) + 400_000),
        (2**33, 2**30, "auto", 8 + 2**30 + 2**32),
    ],
)
def test_sizes_follow_from_n_and_k(n: int, k: int, indices: str, expected: int) -> None:
    assert size(n, k, indices) == expected


def test_auto_is_the_smallest_of_all() -> None:
    for n in (1, 40, 1000, 70_000, 10**6, 44_549_160, 2**31, 2**34):
        for k in {0, 1, 5, n // 100_000, n // 1000, n // 100, n // 17, n // 15, n // 2, n}:
            if k <= n:
                sizes = [size(n, k, indices) for indices in CODINGS]
                assert sizes[0] == min(sizes), (n, k)


def test_wide_places_come_back() -> None:
    n = 2**33
    places = torch.tensor([0, 1, 65_536, 65_537, 200_000, 2**31, 2**32 + 5, n - 1])
    selection = Selection(torch.ones(8), places, n)
    for indices in ("int32", "delta16"):
        payload = Sparse.one(selection, indices=indices)
        coding = sparse.INT64 if indices == "int32" else sparse.DELTA16
        assert payload.layout.coding.tolist() == [coding]
        assert same_bits(chosen(payload).indices, places)


@pytest.mark.parametrize("shared", [False, True])
def test_workers_are_added_in_rank_order_by_any_number_of_threads(shared: bool) -> None:
    n = 200_001
    payloads = [
        Sparse.one(entries(n, k, seed), indices=indices, shared=shared)
        for seed, (k, indices) in enumerate(
            [(9000, "int32"), (40_000, "auto"), (0, "auto"), (500, "delta16"), (500, "bitmap")]
        )
    ]
    one_by_one = torch.zeros(n)
    for payload in payloads:
        one_by_one += dense(payload) * torch.tensor(0.2)
    for count in (1, 2, 3):
        with threads(count):
            assert torch.equal(averaged(payloads, torch.empty(n)), one_by_one)


BROKEN_PLACES = [
    ("int32", lambda words: words.copy_(words.flip(0))),  # they do not ascend
    ("int32", lambda words: words.__setitem__(4, words[3])),
    ("int32", lambda words: words.__setitem__(3, -5)),
    ("int32", lambda words: words.__setitem__(49, 1000)),
    ("int32", lambda words: words.__setitem__(10, 2**31 - 1)),
    ("delta16", lambda words: words.zero_().add_(0x7FFF7FFF)),  # far beyond the end
    ("delta16", lambda words: words.fill_(-1)),  # escapes and no entry
    ("bitmap", lambda words: words.zero_()),
    ("bitmap", lambda words: words.fill_(-1)),
]


@both_kernels
@pytest.mark.parametrize(("indices", "breaks"), BROKEN_PLACES)
def test_broken_places_write_nothing_else(indices: str, breaks: Callable[[Tensor], None]) -> None:
    payload = Sparse.one(entries(1000, 50), indices=indices)
    payload = payload.like(payload.row.clone())
    breaks(sent(payload)[1])
    around = torch.full((1200,), 7.0)
    message = "^sparse payload: its places are not 50 ascending places of 1000: "
    for act in (payload.copy_to_, payload.add_to_):
        with pytest.raises(ValueError, match=message):
            act(around[100:1100], 1.0)
    with pytest.raises(ValueError, match=message):
        payload.selections()
    assert bool((around[:100] == 7).all())
    assert bool((around[1100:] == 7).all())


@pytest.mark.parametrize("coding", CODINGS)
def test_wide_indices_of_a_shard_are_sent_as_its_size_needs(coding: str) -> None:
    places = torch.tensor([5, 9, 70_000])
    payload = Sparse.one(Selection(torch.ones(3), places, 100_000), indices=coding)
    assert dense(payload).nonzero().view(-1).tolist() == places.tolist()
    assert sum(part.nbytes for part in sent(payload)) == size(100_000, 3, coding)


def test_workers_of_a_huge_tensor_are_read_from_their_lengths() -> None:
    n = 2**31 + 10
    some = torch.arange(0, n, 2**20)
    for coding in ("auto", "delta16", "int32"):
        few = Sparse.one(
            Selection(torch.zeros(0), torch.zeros(0, dtype=torch.int64), n), indices=coding
        )
        many = Sparse.one(Selection(torch.ones(some.numel()), some, n), indices=coding)
        (other,) = few.announced(many.lengths)
        arrived = other.like(many.row.clone())
        assert torch.equal(chosen(arrived).indices, some)
        assert many.num_bytes == size(n, some.numel(), coding)


def test_a_batch_is_its_tensors_side_by_side_and_each_begins_at_a_multiple_of_8_bytes() -> None:
    selections = [entries(n, k, n) for n, k in ((31, 3), (5000, 0), (200, 7), (70_000, 900))]
    names = tuple("abcd")
    for indices in CODINGS:
        own = Sparse.of(names, Selections.of(selections), indices=indices)
        assert own.layout.size == sum(-(-size // 8) * 8 for size in own.layout.tensor_bytes)
        for i, selection in enumerate(selections):
            alone = Sparse.one(selection, indices=indices)
            assert own.layout.tensor_bytes[i] == alone.num_bytes
            assert own.layout.floats[i] == alone.num_floats
            kinds = [(part.numel(), part.dtype) for part in sent(alone)]
            assert list(own.layout.kinds[i]) == kinds
            assert all(
                same_bits(own.layout.view(own.buffer, i, which), part)
                for which, part in enumerate(sent(alone))
            )
            assert same_bits(each_dense(own)[i], dense(alone))
