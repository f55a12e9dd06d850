"""A sparse payload that arrives broken is one sentence. (That every rank says it: test_processes.py.)"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numeric import averaged, both_kernels, dense

from dgc_repro.kernel.select import Selection
from dgc_repro.payload import Sparse
from dgc_repro.payload.sparse import SparseLayout


def payload(indices: str = "int32", places: tuple[int, ...] = (2, 5, 90)) -> Sparse:
    chosen = torch.tensor(places, dtype=torch.int32)
    return Sparse.one(Selection(torch.ones(len(places)), chosen, 100), indices=indices)


def header(coding: int, count: int, magic: int = 0x53, zero: int = 0) -> int:
    return magic << 56 | coding << 48 | zero << 40 | count


def refused(own: Sparse, given: int) -> str:
    """What every use of a payload says that arrived with this header."""
    arrived = own.like(own.row.clone())
    arrived.layout.view(arrived.buffer, 0, 0).fill_(given)
    said = set()
    buffer = torch.zeros(100)
    for use in (
        lambda: arrived.copy_to_(buffer, 1.0),
        lambda: arrived.add_to_(buffer, 1.0),
        lambda: averaged([own, arrived], buffer),
        arrived.selections,
        lambda: dense(arrived),
    ):
        with pytest.raises(ValueError, match="^sparse payload: ") as told:
            use()
        said.add(str(told.value))
    (one,) = said
    assert "\n" not in one
    return one


FOUR = payload(places=(2, 5, 7, 90))  # 4 words, like a bitmap of 100


@both_kernels
@pytest.mark.parametrize(
    ("own", "given", "says"),
    [
        (payload(), header(0, 3, magic=0), "0x3 is not a header of one: it was damaged on its way"),
        (payload(), header(0, 3, magic=0x54), "is not a header of one: it was damaged on its way"),
        (payload(), header(0, 3, zero=1), "is not a header of one: it was damaged on its way"),
        (payload(), -1, "-0x1 is not a header of one"),
        (payload(), header(9, 3), "its places have the unknown coding 9"),
        (payload(), header(1, 3), "its places have the unknown coding 1"),  # 64 bits of a small tensor
        (payload(), header(0, 101), "101 entries of 100"),
        (payload(), header(0, 4), "(3, 3) words of places and values came with"),
        (payload(), header(3, 3), "announces (4, 3)"),
        (FOUR, header(3, 4), "its places have the coding 3, this worker's 0: it was damaged"),
    ],
)  # fmt: skip
def test_a_header_that_does_not_fit_is_named(own: Sparse, given: int, says: str) -> None:
    assert says in refused(own, given)


@pytest.mark.parametrize(
    ("lengths", "says"),
    [
        ([1, 3, -1], "-1 entries of 100: it was damaged on its way"),
        ([1, 3, 101], "101 entries of 100"),
        ([1, 2, 3], "parts of [1, 2, 3] elements came"),
        ([1, 3, 2], "2 entries of 100 as [1, 2, 2]"),
        ([0, 3, 3], "parts of [0, 3, 3] elements came"),
        ([2, 3, 3], "parts of [2, 3, 3] elements came"),
    ],
)
def test_lengths_that_do_not_fit_are_named(lengths: list[int], says: str) -> None:
    own = payload()
    with pytest.raises(ValueError, match="^sparse payload: ") as told:
        own.announced(lengths)
    assert says in str(told.value)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("indices", ["int32", "delta16", "bitmap", "auto"])
def test_a_worker_may_send_another_number(indices: str) -> None:
    own = payload(indices)
    for places in ((), (99,), tuple(range(0, 100, 2))):
        other = payload(indices, places)
        (like,) = own.announced(other.lengths)
        arrived = like.like(other.row)
        assert torch.equal(dense(arrived), dense(other))
        assert dense(arrived).nonzero().view(-1).tolist() == list(places)


@pytest.mark.parametrize("indices", ["int32", "delta16", "bitmap", "auto"])
@pytest.mark.parametrize("shared", [False, True])
def test_layouts_of_many_workers_are_those_of_each(indices: str, shared: bool) -> None:
    sizes = (700, 0, 200_000, 31)
    counts = [(3, 0, 5000, 31), (0, 0, 0, 0), (700, 0, 200_000, 1), (90, 0, 3, 5)]
    own, *others = [SparseLayout(sizes, one, indices, shared) for one in counts]
    told = np.stack([one.sent_lengths for one in others])
    for ours, theirs in zip(own.announced(told.reshape(-1)), others, strict=True):
        assert (ours.size, ours.end) == (theirs.size, theirs.end)
        for name in ("numbers", "lengths", "starts", "tensor_bytes", "floats", "sent_lengths"):
            assert np.array_equal(getattr(ours, name), getattr(theirs, name)), name
        assert all(
            row.flags.c_contiguous for row in (*ours.starts, ours.k, ours.headers, ours.coding)
        )
        for field, _ in type(ours.table)._fields_:
            assert getattr(ours.table, field), field


@pytest.mark.parametrize("indices", ["int32", "delta16", "bitmap"])
def test_places_that_do_not_ascend_are_refused_and_nothing_is_overwritten(indices: str) -> None:
    """Of a user's `select`. Gaps back and forth have more codes than ascending ones."""
    places = torch.tensor([199_999, 0] * 5, dtype=torch.int32)
    around = torch.full((4000,), 7, dtype=torch.uint8)
    chosen = Selection(torch.ones(10), places, 200_000)
    if indices == "bitmap":
        chosen = Selection(torch.ones(10), places % 1000, 1000)
    own = Sparse.one(chosen, lambda label, size, *_: around[:size], indices=indices)
    assert bool((around[own.buffer.numel() :] == 7).all())
    with pytest.raises(ValueError, match="ascending places of"):
        dense(own)
