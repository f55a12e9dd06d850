"""`PerTensor` refuses sizes that depend on values (its laws: test_docs.py, with the coding of the page)."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from laws import Setting, play, simulation
from numeric import gaussian
from torch import Tensor

from dgc_repro.extend import Context, PerTensor, checked


@checked
class Large(PerTensor):
    """What is larger than 1, with its places: a row whose size depends on the values."""

    def compress(self, tensor: Tensor, context: Context) -> Sequence[Tensor]:
        places = (tensor.flatten().abs() > 1).nonzero()[:, 0]
        return [tensor.flatten()[places], places.int()]

    def decompress(self, parts: Sequence[Tensor], shape: torch.Size) -> Tensor:
        return torch.zeros(shape.numel()).index_put((parts[1].long(),), parts[0])


def test_sizes_that_depend_on_values_are_refused_where_workers_are_simulated() -> None:
    setting = Setting("large", Large())
    exchange = simulation(setting, 2, {"a": torch.zeros(40)})
    with pytest.raises(
        ValueError, match=r"returned \d+ float32 and .* for a at .* pad to the largest"
    ):
        play(exchange, setting, [{"a": gaussian(40, seed)} for seed in range(2)])
    assert exchange.world.ledger.payload_bytes == 0
