"""A sparse payload that arrives broken is one sentence. (That every rank says it: test_processes.py.)"""

from __future__ import annotations

import pytest
import torch

from dgc_repro.exchange.payload import Sparse
from dgc_repro.kernel.select import Selection


def payload(indices: str = "int32", values: str = "fp32") -> Sparse:
    return Sparse.of(
        Selection(torch.ones(3), torch.tensor([2, 5, 90], dtype=torch.int32), 100), indices, values
    )


def header(coding: int, kind: int, count: int, magic: int = 0x53) -> torch.Tensor:
    return torch.tensor([magic << 56 | coding << 48 | kind << 40 | count])


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (header(0, 0, 3, magic=0), "0x3 is not a header of one: it was damaged on its way"),
        (header(0, 0, 3, magic=0x54), "is not a header of one: it was damaged on its way"),
        (torch.tensor([-1]), "-0x1 is not a header of one"),
        (header(9, 0, 3), "its places have the unknown coding 9"),
        (header(1, 0, 3), "its places have the unknown coding 1"),  # 64 bits of a small tensor
        (header(0, 1, 3), "its values are of type 1, this worker's of type 0 (of fp32, fp16, int8)"),
        (header(0, 0, 101), "101 entries of 100"),
        (header(0, 0, 4), "(3, 0, 3) words of places, scales and values came with"),
        (header(3, 0, 3), "announces (4, 0, 3)"),
        (torch.zeros(0, dtype=torch.int64), "a header of 0 words"),
    ],
)  # fmt: skip
def test_a_header_that_does_not_fit_is_named(given: torch.Tensor, says: str) -> None:
    own = payload()
    with pytest.raises(ValueError, match="^sparse payload: ") as told:
        own.like([given, *own.parts[1:]])
    assert says in str(told.value)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("indices", ["int32", "delta16", "bitmap"])
def test_a_worker_may_send_another_number_in_another_coding(indices: str) -> None:
    for values in ("fp32", "fp16", "int8"):
        own, other = payload("auto", values), payload(indices, values)
        arrived = own.like(other.parts)
        assert arrived.layout == other.layout
        assert torch.equal(arrived.dense(), other.dense())
