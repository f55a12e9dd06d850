"""Adam against torch's; a frozen variance."""

from __future__ import annotations

import torch
from torch import nn

from dgc_repro.optimizer.adam import Adam


def stepped(optimizer: torch.optim.Optimizer, weight: nn.Parameter, steps: int) -> None:
    source = torch.Generator().manual_seed(3)
    for _ in range(steps):
        weight.grad = torch.randn(weight.shape, generator=source)
        optimizer.step()


def test_it_is_torchs_adamw() -> None:
    ours, theirs = (nn.Parameter(torch.linspace(-1, 1, 50).view(10, 5)) for _ in range(2))
    stepped(Adam(0.01, 0.1).of([ours], 0.01), ours, 20)
    stepped(torch.optim.AdamW([theirs], 0.01, weight_decay=0.1), theirs, 20)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)


def test_a_frozen_variance_does_not_change() -> None:
    weight = nn.Parameter(torch.ones(50))
    optimizer = Adam(0.01, freeze_steps=3).of([weight], 0.01)
    stepped(optimizer, weight, 3)
    frozen = optimizer.state[weight]["square"].clone()
    mean = optimizer.state[weight]["mean"].clone()
    stepped(optimizer, weight, 2)
    assert torch.equal(optimizer.state[weight]["square"], frozen)
    assert not torch.equal(optimizer.state[weight]["mean"], mean)


def test_tensors_of_one_dimension_may_be_exempt_from_weight_decay() -> None:
    module = nn.Linear(5, 10)
    before = [p.detach().clone() for p in module.parameters()]
    exempt = Adam(0.01, 0.5, exempt_1d=True).build(module, 64)
    for parameter in module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    exempt.step()
    torch.testing.assert_close(module.weight.detach(), before[0] * (1 - 0.01 * 0.5))
    assert torch.equal(module.bias.detach(), before[1])
