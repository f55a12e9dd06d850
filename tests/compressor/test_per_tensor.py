"""`PerTensor`: parts of several types, and sizes that depend on values. Its laws are slow: test_docs.py."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from laws import Setting, play, simulation, states_by_tensor
from numeric import gaussian, normal
from torch import Tensor

from dgc_repro import ErrorFeedback
from dgc_repro.extend import Context, PerTensor, Selecting, Selection, checked, select


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


class Returning(PerTensor):
    """What the two functions return is given."""

    def __init__(self, compressed: object, decompressed: object = None) -> None:
        self.compressed, self.decompressed = compressed, decompressed

    def compress(self, *_: object) -> Sequence[Tensor]:
        return self.compressed  # type: ignore[return-value]

    def decompress(self, *_: object) -> Tensor:
        return self.decompressed  # type: ignore[return-value]


class Choosing(Selecting):
    """What `select` returns is given."""

    ragged = False

    def __init__(self, selected: object) -> None:
        self.selected = selected

    def select(self, *_: object) -> Selection:
        return self.selected  # type: ignore[return-value]


PLACES = torch.tensor([0, 1])
WRONG = {
    "a tensor": (Returning(torch.ones(4)), "compress: a list of dense tensors, got Tensor for a$"),
    "none": (Returning(None), "compress: a list of dense tensors, got NoneType for a$"),
    "arrays": (
        Returning([torch.ones(4).numpy()]),
        "compress: a list of dense tensors, got ndarray in it for a$",
    ),
    "sparse": (
        Returning([torch.ones(4).to_sparse()]),
        "compress: a list of dense tensors, got a sparse Tensor in it for a$",
    ),
    "nothing back": (
        Returning([torch.ones(1)]),
        r"decompress: a tensor of shape \(2, 2\), got NoneType$",
    ),
    "another shape": (
        Returning([torch.ones(1)], torch.ones(1)),
        r"decompress: a tensor of shape \(2, 2\), got one of shape \(1,\)$",
    ),
    "places": (Choosing(PLACES), "select: what select.at returns, got Tensor for a$"),
    "rows": (
        Choosing(select.at(torch.ones(2, 2), PLACES)),
        r"select: one value for each place, got values of shape \(2, 2\) for a; give select.at "
        r"tensor.view\(-1\)$",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_function_that_returns_something_else_is_named(name: str) -> None:
    method, message = WRONG[name]
    setting = Setting("wrong", method)
    exchange = simulation(setting, 1, {"a": torch.zeros(2, 2)})
    with pytest.raises(ValueError, match=f"^{message}"):
        play(exchange, setting, [{"a": torch.ones(2, 2)}])
