"""A sparse payload that arrives broken is one sentence. (That every rank says it: test_processes.py.)"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from jobs import exchanged
from laws import same
from numeric import both_kernels, dense
from samples import SendsBroken

from dgc_repro.compressor.topk import TopK
from dgc_repro.exchange.simulated import SimulatedWire
from dgc_repro.kernel.select import Selection
from dgc_repro.payload import Gathered, Sparse
from dgc_repro.payload.sparse import SparseLayout


def payload(
    indices: str = "int32", values: str = "fp32", places: tuple[int, ...] = (2, 5, 90)
) -> Sparse:
    chosen = torch.tensor(places, dtype=torch.int32)
    return Sparse.one(Selection(torch.ones(len(places)), chosen, 100), indices, values)


def header(coding: int, kind: int, count: int, magic: int = 0x53) -> int:
    return magic << 56 | coding << 48 | kind << 40 | count


def refused(own: Sparse, given: int) -> str:
    """What every use of a payload says that arrived with this header."""
    arrived = own.like([part.clone() for part in own.parts])
    arrived.layout.view(arrived.buffer, 0, 0).fill_(given)
    said = set()
    buffer = torch.zeros(100)
    for use in (
        lambda: arrived.copy_to_(buffer, 1.0),
        lambda: arrived.add_to_(buffer, 1.0),
        lambda: Gathered([own, arrived]).mean(buffer),
        arrived.selections,
        lambda: dense(arrived),
    ):
        with pytest.raises(ValueError, match="^sparse payload: ") as told:
            use()
        said.add(str(told.value))
    (one,) = said
    assert "\n" not in one
    return one


@both_kernels
@pytest.mark.parametrize(
    ("given", "says"),
    [
        (header(0, 0, 3, magic=0), "0x3 is not a header of one: it was damaged on its way"),
        (header(0, 0, 3, magic=0x54), "is not a header of one: it was damaged on its way"),
        (-1, "-0x1 is not a header of one"),
        (header(9, 0, 3), "its places have the unknown coding 9"),
        (header(1, 0, 3), "its places have the unknown coding 1"),  # 64 bits of a small tensor
        (header(0, 1, 3), "its values are of type 1, this worker's of type 0 (of fp32, fp16, int8)"),
        (header(0, 0, 101), "101 entries of 100"),
        (header(0, 0, 4), "(3, 0, 3) words of places, scales and values came with"),
        (header(3, 0, 3), "announces (4, 0, 3)"),
    ],
)  # fmt: skip
def test_a_header_that_does_not_fit_is_named(given: int, says: str) -> None:
    assert says in refused(payload(), given)


@both_kernels
def test_a_header_of_another_coding_of_the_same_length_is_named() -> None:
    own = payload(places=(2, 5, 7, 90))  # 4 words, like a bitmap of 100
    assert "need one setting `indices`" in refused(own, header(3, 0, 4))


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
    for values in ("fp32", "fp16", "int8"):
        own = payload(indices, values)
        for places in ((), (99,), tuple(range(0, 100, 2))):
            other = payload(indices, values, places)
            (like,) = own.announced(other.lengths)
            arrived = like.like(other.parts)
            assert torch.equal(dense(arrived), dense(other))
            assert dense(arrived).nonzero().view(-1).tolist() == list(places)


@pytest.mark.parametrize("indices", ["int32", "delta16", "bitmap", "auto"])
@pytest.mark.parametrize("kind", [0, 1, 2, 3])
def test_layouts_of_many_workers_are_those_of_each(indices: str, kind: int) -> None:
    sizes = (700, 0, 200_000, 31)
    counts = [(3, 0, 5000, 31), (0, 0, 0, 0), (700, 0, 200_000, 1), (90, 0, 3, 5)]
    own, *others = [SparseLayout(sizes, one, indices, kind) for one in counts]
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


@pytest.mark.parametrize("ragged", [False, True])
def test_a_method_for_one_tensor_averages_as_one_for_batches(ragged: bool) -> None:
    shapes, whole = {"a": (8, 9), "b": (300,), "c": (1,)}, SendsBroken("", ragged, on_rank=-1)
    one, many = (
        exchanged(SimulatedWire(3), compressor, shapes, 3, 0)
        for compressor in (whole, TopK(0.2, indices="int32"))
    )
    assert same(one["means"], many["means"])


@pytest.mark.parametrize("indices", ["int32", "delta16", "bitmap"])
def test_places_that_do_not_ascend_are_refused_and_nothing_is_written_beside_the_payload(
    indices: str,
) -> None:
    """Of a user's `select`. Gaps back and forth have more codes than ascending ones."""
    places = torch.tensor([199_999, 0] * 5, dtype=torch.int32)
    around = torch.full((4000,), 7, dtype=torch.uint8)
    chosen = Selection(torch.ones(10), places, 200_000)
    if indices == "bitmap":
        chosen = Selection(torch.ones(10), places % 1000, 1000)
    own = Sparse.one(chosen, indices, scratch=lambda label, size, *_: around[:size])
    assert bool((around[own.buffer.numel() :] == 7).all())
    with pytest.raises(ValueError, match="ascending places of"):
        dense(own)


def test_a_worker_with_another_setting_of_indices_is_named() -> None:
    own, other = payload("delta16"), payload("bitmap")
    with pytest.raises(ValueError, match="all workers need one setting `indices`"):
        own.announced(other.lengths)
