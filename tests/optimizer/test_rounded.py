"""SGD with rounded weights, against SGD and the formula in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from dgc_repro.optimizer.rounded import RoundedSGD
from dgc_repro.optimizer.sgd import SGD

SHAPES = ((40, 50), (4, 3, 2, 2), (6,), (3,))  # the first has more values than 8 bits have codes
ZERO = 3
"""Place in SHAPES of a weight that stays zero."""


def module() -> nn.ParameterList:
    torch.manual_seed(0)
    weights = [torch.randn(shape) for shape in SHAPES]
    weights[ZERO].zero_()
    return nn.ParameterList(weights)


def stepped(settings: SGD, steps: int, scale: float = 1.0) -> list[Tensor]:
    weights = module()
    optimizer = settings.build(weights, global_batch=128)
    for step in range(steps):
        generator = torch.Generator().manual_seed(step)
        for place, weight in enumerate(weights):
            drawn = torch.randn(weight.shape, generator=generator)
            weight.grad = scale * drawn * (place != ZERO)
        optimizer.step()
    return [weight.detach() for weight in weights]


def rounded(weight: Tensor, bits: int) -> Tensor:
    grid = weight.double().abs().max() / (2 ** (bits - 1) - 1)
    return (weight.double() / grid).round() * grid if grid else weight.double()


def shares(weight: Tensor) -> Tensor:
    """Of the largest magnitude."""
    return weight / weight.abs().max()


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_a_step_is_that_of_sgd_and_then_rounded(bits: int) -> None:
    plain, own = stepped(SGD(0.1), 1), stepped(RoundedSGD(0.1, weight_bits=bits), 1)
    for weight, found in zip(plain, own, strict=True):
        torch.testing.assert_close(found.double(), rounded(weight, bits), rtol=1e-6, atol=1e-7)
        assert len(found.unique()) <= 2**bits - 1


def test_updates_below_half_a_step_of_the_grid_are_lost() -> None:
    settings = {"lr": 0.1, "momentum": 0.0, "weight_decay": 0.0}
    first = stepped(RoundedSGD(**settings, weight_bits=8), 1, scale=1e-4)
    later = stepped(RoundedSGD(**settings, weight_bits=8), 20, scale=1e-4)
    finer = stepped(RoundedSGD(**settings, weight_bits=16), 20, scale=1e-4)
    # The largest weight is on the grid wherever it is: it moves, and the grid with it.
    for weight, same, moved in zip(first[:ZERO], later[:ZERO], finer[:ZERO], strict=True):
        torch.testing.assert_close(shares(weight), shares(same), rtol=1e-6, atol=1e-7)
        assert not torch.allclose(shares(weight), shares(moved), rtol=1e-6, atol=1e-7)
