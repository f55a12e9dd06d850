"""`PerTensor`: parts of several types, and sizes that depend on values. Its laws are slow: test_docs.py."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from laws import Setting, play, simulation, states_by_tensor
from numeric import gaussian, normal
from torch import Tensor

from dgc_repro import ErrorFeedback
from dgc_repro.extend import Context, PerTensor, checked


class Signs(PerTensor):
    """Bytes, and of a matrix a number behind them."""

    def compress(self, tensor: Tensor, context: Context) -> Sequence[Tensor]:
        signs = (tensor >= 0).to(torch.uint8)
        return [signs, *([tensor.abs().mean()] if tensor.dim() > 1 else [])]

    def decompress(self, parts: Sequence[Tensor], shape: torch.Size) -> Tensor:
        values = 2 * parts[0].float() - 1
        return (values if len(parts) == 1 else values * parts[1]).view(shape)


def test_parts_of_several_types_arrive_and_what_is_not_sent_is_fed_back() -> None:
    shapes = {"a": (3, 7), "vector": (41,), "b": (5, 2)}
    setting, workers = Setting("fed", ErrorFeedback(Signs())), range(3)
    exchange = simulation(setting, 3, {name: torch.zeros(s) for name, s in shapes.items()})
    given = [{n: normal(worker, *s) for n, s in shapes.items()} for worker in workers]

    def sent(x: Tensor) -> Tensor:
        return torch.where(x >= 0, 1.0, -1.0) * (x.abs().mean() if x.dim() > 1 else 1.0)

    means = play(exchange, setting, [{n: x.clone() for n, x in own.items()} for own in given])
    for name in shapes:
        every = [own[name] for own in given]
        torch.testing.assert_close(means[name], torch.stack([*map(sent, every)]).mean(0))
        for worker, own in enumerate(every):
            left = states_by_tensor(exchange, worker)[name]["residual"]
            torch.testing.assert_close(left, own - sent(own))
    # Each part begins at a multiple of its element: 0 and 24; 28; 69 and 80. The row ends at 88.
    assert exchange.world.ledger.payload_bytes == 88
    assert exchange.world.ledger.floats == (21 + 4 + 41 + 10 + 4) / 4


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
