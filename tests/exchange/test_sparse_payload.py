"""A sparse payload that arrives broken is one sentence. (That every rank says it: test_processes.py.)"""

from __future__ import annotations

import pytest
import torch
from numeric import both_kernels

from dgc_repro.exchange.payload import Alone, Sparse
from dgc_repro.kernel.select import Selection


def payload(
    indices: str = "int32", values: str = "fp32", places: tuple[int, ...] = (2, 5, 90)
) -> Alone:
    chosen = torch.tensor(places, dtype=torch.int32)
    return Sparse.one(Selection(torch.ones(len(places)), chosen, 100), indices, values)


def header(coding: int, kind: int, count: int, magic: int = 0x53) -> int:
    return magic << 56 | coding << 48 | kind << 40 | count


def refused(own: Alone, given: int) -> str:
    """What every use of a payload says that arrived with this header."""
    arrived = own.like([part.clone() for part in own.parts])
    arrived.payload.part(0, 0).fill_(given)
    said = set()
    buffer = torch.zeros(100)
    for use in (
        lambda: arrived.copy_to_(buffer, 1.0),
        lambda: arrived.add_to_(buffer, 1.0),
        lambda: own.copy_sum_to_([arrived], buffer, 1.0),
        arrived.payload.selections,
        arrived.dense,
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
        own.kinds(lengths)
    assert says in str(told.value)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("indices", ["int32", "delta16", "bitmap", "auto"])
def test_a_worker_may_send_another_number(indices: str) -> None:
    for values in ("fp32", "fp16", "int8"):
        own = payload(indices, values)
        for places in ((), (99,), tuple(range(0, 100, 2))):
            other = payload(indices, values, places)
            arrived = own.like_ragged(other.parts, other.lengths)
            assert torch.equal(arrived.dense(), other.dense())
            assert arrived.dense().nonzero().view(-1).tolist() == list(places)


def test_a_worker_with_another_setting_of_indices_is_named() -> None:
    own, other = payload("delta16"), payload("bitmap")
    with pytest.raises(ValueError, match="all workers need one setting `indices`"):
        own.kinds(other.lengths)
