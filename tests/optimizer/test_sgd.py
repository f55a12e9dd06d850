"""SGD with another rate for batch norm's biases, against SGD's formula."""

from __future__ import annotations

import copy

import pytest
import torch
from tiny_run import RECIPE, built, play
from torch import nn

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
