"""LARS and LAMB against their papers' algorithms in float64 numpy, and against torch's SGD and Adam."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from dgc_repro.optimizer.lamb import LAMB
from dgc_repro.optimizer.lars import LARS
from dgc_repro.optimizer.sgd import Optimizer

Array = NDArray[np.float64]
SHAPES = ((7, 5), (4, 3, 2, 2), (6,), (3, 1), (2, 2))
ZERO_WEIGHT, ZERO_GRADIENT = 3, 4
"""Places in SHAPES of a weight of zeros and of a weight whose gradients are zeros."""
STEPS = 6


def lars(
    weights: Sequence[Array],
    gradients: Callable[[int], list[Array]],
    rates: Sequence[float],
    of: LARS,
) -> list[Array]:
    """Algorithm 1 of arXiv:1708.03888."""
    weights = [w.copy() for w in weights]
    velocities = [np.zeros_like(w) for w in weights]
    for t, rate in enumerate(rates):
        for place, gradient in enumerate(gradients(t)):
            w = weights[place]
            exempt = of.exempt_1d and w.ndim <= 1
            decay = 0.0 if exempt else of.weight_decay
            w_norm, g_norm = np.linalg.norm(w), np.linalg.norm(gradient)
            local = 1.0
            if not exempt and w_norm > 0 and g_norm > 0:
                local = of.trust_coefficient * w_norm / (g_norm + decay * w_norm)
            step = rate * local * (gradient + decay * w)
            velocities[place] = of.momentum * velocities[place] + step
            weights[place] = w - velocities[place]
    return weights


def lamb(
    weights: Sequence[Array],
    gradients: Callable[[int], list[Array]],
    rates: Sequence[float],
    of: LAMB,
) -> list[Array]:
    """Algorithm 2 of arXiv:1904.00962 with phi(z) = z."""
    weights = [w.copy() for w in weights]
    m, v = ([np.zeros_like(w) for w in weights] for _ in range(2))
    for t, rate in enumerate(rates):
        for place, gradient in enumerate(gradients(t)):
            w = weights[place]
            exempt = of.exempt_1d and w.ndim <= 1
            m[place] = of.beta1 * m[place] + (1 - of.beta1) * gradient
            v[place] = of.beta2 * v[place] + (1 - of.beta2) * gradient**2
            m_hat = m[place] / (1 - of.beta1 ** (t + 1))
            v_hat = v[place] / (1 - of.beta2 ** (t + 1))
            update = m_hat / (np.sqrt(v_hat) + of.eps) + (0.0 if exempt else of.weight_decay) * w
            w_norm, u_norm = np.linalg.norm(w), np.linalg.norm(update)
            trust = 1.0 if exempt or w_norm == 0 or u_norm == 0 else w_norm / u_norm
            weights[place] = w - rate * trust * update
    return weights


REFERENCES = {LARS: lars, LAMB: lamb}


def start() -> list[Array]:
    drawn = np.random.default_rng(0)
    weights = [drawn.normal(size=shape) for shape in SHAPES]
    weights[ZERO_WEIGHT][:] = 0
    return weights


def gradients(step: int) -> list[Array]:
    drawn = np.random.default_rng(step + 1)
    found = [drawn.normal(size=shape) for shape in SHAPES]
    found[ZERO_GRADIENT][:] = 0
    return found


def stepped(settings: Optimizer, rates: Sequence[float]) -> list[Array]:
    parameters = [nn.Parameter(torch.from_numpy(w)) for w in start()]
    optimizer = settings.of(parameters, rates[0])
    for t, rate in enumerate(rates):
        for group in optimizer.param_groups:
            group["lr"] = rate
        for parameter, gradient in zip(parameters, gradients(t), strict=True):
            parameter.grad = torch.from_numpy(gradient)
        optimizer.step()
    return [p.detach().numpy() for p in parameters]


@pytest.mark.parametrize(
    "settings",
    [
        LARS(),
        LARS(weight_decay=0.0, momentum=0.0),
        LARS(weight_decay=0.1, momentum=0.5, trust_coefficient=0.02, exempt_1d=False),
        LAMB(),
        LAMB(weight_decay=0.0, beta1=0.0, beta2=0.5),
        LAMB(weight_decay=0.3, eps=0.1, exempt_1d=False),
    ],
    ids=str,
)
def test_the_steps_are_those_of_the_algorithm(settings: LARS | LAMB) -> None:
    rates = [0.5, 0.4, 0.4, 0.1, 2.0, 0.3]  # a schedule: LARS keeps the rate inside its velocity
    expected = REFERENCES[type(settings)](start(), gradients, rates, settings)  # type: ignore[operator]
    for place, (one, other) in enumerate(zip(stepped(settings, rates), expected, strict=True)):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-14, err_msg=str(place))


@pytest.mark.parametrize("settings", [LARS(), LAMB()], ids=str)
def test_a_saved_optimizer_goes_on_with_the_same_bits(settings: LARS | LAMB) -> None:
    def go_on(parameter: nn.Parameter, optimizer: torch.optim.Optimizer, steps: range) -> None:
        for step in steps:
            parameter.grad = torch.sin(torch.arange(6.0).reshape(2, 3) + step)
            optimizer.step()

    whole = nn.Parameter(torch.ones(2, 3))
    optimizer = settings.of([whole], 0.1)
    go_on(whole, optimizer, range(3))
    again = nn.Parameter(whole.detach().clone())
    other = settings.of([again], 0.1)
    other.load_state_dict(deepcopy(optimizer.state_dict()))
    go_on(whole, optimizer, range(3, 6))
    go_on(again, other, range(3, 6))
    assert torch.equal(whole, again)
