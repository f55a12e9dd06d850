"""SGD with another rate for batch norm's biases, SGD with rounded weights, and Adam."""

from __future__ import annotations

import copy

import pytest
import torch
from tiny_run import RECIPE, built, play
from torch import Tensor, nn

from dgc_repro.optimizer.adam import Adam
from dgc_repro.optimizer.rounded import RoundedSGD
from dgc_repro.optimizer.sgd import SGD, set_learning_rate

FACTOR = 64.0


def module() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.BatchNorm2d(4))


def test_biases_of_batch_norm_learn_faster_and_decay_as_much() -> None:
    """One step from velocity zero: w - f lr (g + (decay / f) w), with f = 1 for all other parameters."""
    lr, decay = 0.01, 0.02
    trained = module()
    before = copy.deepcopy(trained)
    optimizer = SGD(
        lr=lr, momentum=0.5, weight_decay=decay, norm_bias_factor=FACTOR, reference_batch=None
    ).build(trained, 128)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for p, old in zip(trained.parameters(), before.parameters(), strict=True):
            p.copy_(torch.randn(p.shape, generator=generator))
            old.copy_(p)
            p.grad = torch.randn(p.shape, generator=generator)
    set_learning_rate(optimizer, lr / 2)
    optimizer.step()
    for (name, p), old in zip(trained.named_parameters(), before.parameters(), strict=True):
        factor = FACTOR if name in ("1.bias", "2.bias") else 1.0
        expected = old - factor * lr / 2 * (p.grad + decay / factor * old)
        torch.testing.assert_close(p, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("trained", "factor"),
    [
        (nn.Linear(2, 2), FACTOR),
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, affine=False)), FACTOR),
        (module(), 1.0),
    ],
    ids=["no norm", "norm without bias", "factor 1"],
)
def test_without_a_factor_or_batch_norm_there_is_one_group(
    trained: nn.Module, factor: float
) -> None:
    (group,) = SGD(norm_bias_factor=factor).build(trained, 128).param_groups
    assert "lr_factor" not in group


def test_a_run_sets_the_rates_of_both_groups_and_records_the_base() -> None:
    run = built(*RECIPE)
    rates = []
    step = run.optimizer.step
    run.optimizer.step = (  # type: ignore[method-assign]
        lambda: rates.append([group["lr"] for group in run.optimizer.param_groups]) or step()
    )
    told = play(run)
    assert len(rates) == 8
    for base, of_biases in rates:
        assert of_biases == pytest.approx(FACTOR * base)
    assert len({base for base, _ in rates}) == 8, "a triangle"
    assert told.records[-1]["lr"] == rates[-1][0]


# Rounded weights, against SGD and the formula in float64.

SHAPES = ((40, 50), (4, 3, 2, 2), (6,), (3,))  # the first has more values than 8 bits have codes
ZERO = 3
"""Place in SHAPES of a weight that stays zero."""


def weights_of_all_shapes() -> nn.ParameterList:
    torch.manual_seed(0)
    weights = [torch.randn(shape) for shape in SHAPES]
    weights[ZERO].zero_()
    return nn.ParameterList(weights)


def stepped(settings: SGD, steps: int, scale: float = 1.0) -> list[Tensor]:
    weights = weights_of_all_shapes()
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


# Adam is torch's. A frozen variance: compressor/test_onebit_adam.py.


def adam_stepped(optimizer: torch.optim.Optimizer, weight: nn.Parameter, steps: int) -> None:
    source = torch.Generator().manual_seed(3)
    for _ in range(steps):
        weight.grad = torch.randn(weight.shape, generator=source)
        optimizer.step()


def test_it_is_torchs_adamw() -> None:
    ours, theirs = (nn.Parameter(torch.linspace(-1, 1, 50).view(10, 5)) for _ in range(2))
    adam_stepped(Adam(0.01, 0.1).of([ours], 0.01), ours, 20)
    adam_stepped(torch.optim.AdamW([theirs], 0.01, weight_decay=0.1), theirs, 20)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)


def test_tensors_of_one_dimension_may_be_exempt_from_weight_decay() -> None:
    module = nn.Linear(5, 10)
    before = [p.detach().clone() for p in module.parameters()]
    exempt = Adam(0.01, 0.5, exempt_1d=True).build(module, 64)
    for parameter in module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    exempt.step()
    torch.testing.assert_close(module.weight.detach(), before[0] * (1 - 0.01 * 0.5))
    assert torch.equal(module.bias.detach(), before[1])
