"""What travels between a test and the ranks of a `World` arrives as it was sent."""

from __future__ import annotations

import os
import pickle
import random

import numpy as np
import pytest
import torch
from processes import World, _message


def test_tensors_of_every_kind_arrive_as_they_were_and_share_their_storage() -> None:
    whole, values = torch.zeros(6), np.arange(6.0)
    given = [
        *(whole, whole.view(2, 3).t(), whole[4:]),
        *(torch.from_numpy(values[:2]), torch.from_numpy(values)),  # one place, two lengths
        *(torch.empty(0, 3, dtype=torch.int64), torch.tensor(7, dtype=torch.bfloat16)),
        *(torch.tensor([True, False]), torch.zeros(4).expand(3, 4), torch.tensor([1 + 2j]).conj()),
        *(torch.nn.Parameter(torch.ones(2)), torch.empty(2, 3, device="meta")),
    ]
    found = pickle.loads(_message(given))
    for ours, theirs in zip(found, given, strict=True):
        assert type(ours) is type(theirs)
        assert ours.requires_grad == theirs.requires_grad
        assert (ours.device, ours.dtype, ours.shape) == (theirs.device, theirs.dtype, theirs.shape)
        assert ours.stride() == theirs.stride()
        assert ours.is_meta or torch.equal(ours, theirs)
    found[0].fill_(1)
    assert found[1].eq(1).all()
    assert found[2].eq(1).all()
    assert whole.eq(0).all()


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
