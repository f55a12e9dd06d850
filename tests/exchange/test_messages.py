"""What travels between a test and the ranks of a `World` arrives as it was sent."""

from __future__ import annotations

import os
import pickle
import random
from typing import Any

import numpy as np
import pytest
import torch
from processes import World, _message

TENSORS = {
    "matrix": torch.arange(6.0).view(2, 3),
    "columns": torch.arange(6.0).view(2, 3).t(),
    "empty": torch.empty(0, 3, dtype=torch.int64),
    "scalar": torch.tensor(7, dtype=torch.bfloat16),
    "bits": torch.tensor([True, False]),
    "conjugate": torch.tensor([1 + 2j]).conj(),
    "meta": torch.empty(2, 3, device="meta"),
    "parameter": torch.nn.Parameter(torch.ones(2)),
    "one entry of many": torch.zeros(4).expand(3, 4),
}


def sent(item: Any) -> Any:
    return pickle.loads(_message(item))


@pytest.mark.parametrize("name", TENSORS)
def test_a_tensor_arrives_as_it_was(name: str) -> None:
    given = TENSORS[name]
    found = sent(given)
    assert type(found) is type(given)
    assert found.requires_grad == given.requires_grad
    assert (found.layout, found.device, found.dtype) == (given.layout, given.device, given.dtype)
    assert found.shape == given.shape
    assert found.stride() == given.stride()
    if given.device.type != "meta":
        assert torch.equal(found, given)


def test_tensors_with_one_storage_share_it_when_they_arrive() -> None:
    whole = torch.zeros(6)
    first, matrix, end = sent((whole, whole.view(2, 3), whole[4:]))
    first.fill_(1)
    assert matrix.eq(1).all()
    assert end.eq(1).all()
    assert whole.eq(0).all()


def test_storages_that_begin_at_one_place_may_have_two_lengths() -> None:
    values = np.arange(6.0)
    short, long = sent((torch.from_numpy(values[:2]), torch.from_numpy(values)))
    assert (short.tolist(), long.tolist()) == ([0, 1], [0, 1, 2, 3, 4, 5])


def drawn() -> tuple[float, float, str | None]:
    return random.random(), np.random.random(), os.environ.get("OF_A_LATER_WORLD")  # noqa: NPY002


def test_ranks_draw_apart_and_have_the_environment_of_the_start_of_their_world(
    two_workers: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server that they are copies of has one state, and the environment of the first world."""
    (first, other, _), (second, another, _) = two_workers(drawn)
    assert first != second
    assert other != another
    monkeypatch.setenv("OF_A_LATER_WORLD", "set")
    later = World(1)
    try:
        assert later(drawn)[0][2] == "set"
    finally:
        later.stop()
