"""Headers of a round are read in one transfer, however many tensors and workers there are."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from jobs import exchanged
from laws import same
from torch import Tensor

from dgc_repro.compressor.dgc_sampled import DGCSampled
from dgc_repro.compressor.error_feedback import ErrorFeedback
from dgc_repro.compressor.interface import Compressor
from dgc_repro.compressor.redsync import RedSync
from dgc_repro.compressor.sharded import Sharded
from dgc_repro.compressor.topk import TopK
from dgc_repro.exchange import packing
from dgc_repro.exchange.simulated import SimulatedWire

SHAPES = {"a": (6, 3, 3, 3), "b": (6,), "c": (50, 90), "d": (300,), "e": (17,)}
STEPS, WORKERS = 3, 3


@pytest.mark.parametrize(
    "compressor",
    [
        ErrorFeedback(TopK(0.1)),
        ErrorFeedback(TopK(0.1, indices="bitmap", values="int8")),
        ErrorFeedback(DGCSampled(0.1)),
        ErrorFeedback(RedSync(0.1, quantized=True)),
        ErrorFeedback(Sharded(TopK(0.1))),
    ],
    ids=str,
)
def test_one_transfer_a_round_and_the_same_bits(
    compressor: Compressor, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = exchanged(SimulatedWire(WORKERS), compressor, SHAPES, STEPS, 0)
    seen: Counter[str] = Counter()

    def transfer(headers: Tensor) -> Tensor:
        assert headers.dtype == torch.int64
        seen["transfers"] += 1
        seen["headers"] += headers.numel()
        return headers.clone()

    rounds = counted(monkeypatch)
    monkeypatch.setattr(packing, "_is_elsewhere", lambda row: True)
    monkeypatch.setattr(packing, "_to_cpu", transfer)
    moved = exchanged(SimulatedWire(WORKERS), compressor, SHAPES, STEPS, 0)
    assert same(moved["means"], plain["means"])
    assert same(moved["states"], plain["states"])
    assert seen["headers"] >= STEPS * WORKERS * len(SHAPES)
    assert seen["transfers"] == rounds["reads"]
    if "Sharded" not in str(compressor):  # which sends each worker something else, in two rounds
        assert seen["transfers"] == STEPS


def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many rounds have been answered: a reading of rows is one of them, for each worker hosted
    here where each is sent something else."""
    found: Counter[str] = Counter()
    read = packing.read_rows

    def count(*arguments: Any) -> list[list[Tensor]]:
        found["reads"] += 1
        return read(*arguments)

    monkeypatch.setattr(packing, "read_rows", count)
    return found


def test_nothing_is_moved_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "_to_cpu", lambda headers: pytest.fail("a transfer"))
    exchanged(SimulatedWire(WORKERS), ErrorFeedback(TopK(0.1)), SHAPES, STEPS, 0)
