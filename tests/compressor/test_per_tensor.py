"""The coding of docs/adding-a-compressor.md, in two functions: means, bytes, error feedback around it (laws:
test_docs.py)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from laws import Setting, play, simulation, states_by_tensor
from numeric import gaussian

from dgc_repro import ErrorFeedback
from dgc_repro.extend import Context, PerTensor, checked

PAGE = Path(__file__).resolve().parents[2] / "docs" / "adding-a-compressor.md"
(CODE,) = (
    code
    for code in re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.M | re.S)
    if "PerTensor" in code
)
SHAPES = {"a": (40,), "b": (3, 7), "one": (1,), "none": (0,)}


def method() -> Any:
    names: dict[str, Any] = {"__name__": __name__}
    exec(CODE, names)
    return names["MeanSigns"]()


def gradients(workers: int, step: int) -> list[dict[str, torch.Tensor]]:
    return [
        {
            name: gaussian(torch.Size(shape).numel(), 10 * step + worker).view(shape)
            for name, shape in SHAPES.items()
        }
        for worker in range(workers)
    ]


def coded(x: torch.Tensor) -> torch.Tensor:
    return x.sign() * (x.abs().sum() / max(1, x.numel()))


def test_the_mean_is_that_of_what_was_sent_and_what_was_not_is_fed_back() -> None:
    setting = Setting("fed", ErrorFeedback(method()))
    exchange = simulation(setting, 3, {n: torch.zeros(shape) for n, shape in SHAPES.items()})
    owed = [{name: torch.zeros(shape) for name, shape in SHAPES.items()} for _ in range(3)]
    for step in range(3):
        given = gradients(3, step)
        fed = [{n: x + owed[w][n] for n, x in own.items()} for w, own in enumerate(given)]
        means = play(exchange, setting, given)
        for name in SHAPES:
            expected = torch.stack([coded(own[name]) for own in fed]).mean(0)
            torch.testing.assert_close(means[name], expected)
        owed = [{n: x - coded(x) for n, x in own.items()} for own in fed]
    for worker, own in enumerate(owed):
        for name, left in own.items():
            torch.testing.assert_close(states_by_tensor(exchange, worker)[name]["residual"], left)


def test_each_part_begins_at_a_multiple_of_its_element() -> None:
    setting = Setting("bare", method())
    exchange = simulation(setting, 2, {n: torch.zeros(shape) for n, shape in SHAPES.items()})
    play(exchange, setting, gradients(2, 0))
    assert exchange.world.ledger.payload_bytes == 88  # 0, 4; 44, 48; 72, 76; 80, 84
    assert exchange.world.ledger.floats == 4 / 4 * 4 + (40 + 21 + 1) / 4


@checked
class Large(PerTensor):
    """What is larger than 1, with its places: a row whose size depends on the values."""

    def compress(self, tensor: torch.Tensor, context: Context) -> Sequence[torch.Tensor]:
        places = (tensor.flatten().abs() > 1).nonzero()[:, 0]
        return [tensor.flatten()[places], places.int()]

    def decompress(self, parts: Sequence[torch.Tensor], shape: torch.Size) -> torch.Tensor:
        return torch.zeros(shape.numel()).index_put((parts[1].long(),), parts[0])


def test_sizes_that_depend_on_values_are_refused_before_anything_is_sent() -> None:
    setting = Setting("large", Large())
    exchange = simulation(setting, 2, {"a": torch.zeros(40)})
    with pytest.raises(ValueError, match=r"of a it has returned \d+ float32 and .* fill up"):
        play(exchange, setting, [{"a": x["a"]} for x in gradients(2, 0)])
    assert exchange.world.ledger.payload_bytes == 0
