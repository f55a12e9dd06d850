"""1-bit Adam, exchange and optimizer together, against the paper's algorithm in numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from laws import play, simulation
from numeric import EPS, Array, assert_close, doubles, random_steps
from torch import Tensor, nn

from dgc_repro import Adam, EFSignSGD, ErrorFeedback, OneBitAdam
from dgc_repro.exchange.saved import load_state_dict, state_dict
from dgc_repro.selfcheck.law_settings.base import Setting

SIZE, WORKERS, STEPS, WARMUP = 200, 3, 12, 5
BETA1, BETA2, EPSILON, RATE = 0.9, 0.99, 1e-8, 0.01


SETTING = Setting("adam", OneBitAdam(ErrorFeedback(EFSignSGD()), BETA1, WARMUP))
ADAM = Adam(RATE, 0.0, beta1=BETA1, beta2=BETA2, eps=EPSILON, freeze_steps=WARMUP)


def scaled_sign(x: Array) -> Array:
    return np.abs(x).mean() * np.where(x >= 0, 1.0, -1.0)


def onebit_adam(gradients: list[list[Array]], weights: Array) -> list[Array]:
    """Algorithm 1 of the paper, one server that does not compress, with Adam's bias correction: the weights
    after each step."""
    m, v, found = np.zeros(SIZE), np.zeros(SIZE), []
    errors = [np.zeros(SIZE) for _ in gradients[0]]
    for t, given in enumerate(gradients, 1):
        if t <= WARMUP:
            g = np.mean(given, axis=0)
            m, v = BETA1 * m + (1 - BETA1) * g, BETA2 * v + (1 - BETA2) * g**2
        else:
            sent = []
            for worker, g in enumerate(given):
                own = BETA1 * m + (1 - BETA1) * g + errors[worker]
                sent.append(scaled_sign(own))
                errors[worker] = own - sent[-1]
            m = np.mean(sent, axis=0)
        deviation = np.sqrt(v / (1 - BETA2 ** min(t, WARMUP))) + EPSILON
        weights = weights - RATE * m / (1 - BETA1**t) / deviation
        found.append(weights)
    return found


def onebit(names: str, start: Tensor) -> tuple[Any, Any, list[nn.Parameter]]:
    """The exchange of weights of these names, their optimizer, and the weights."""
    weights = [nn.Parameter(start.clone()) for _ in names]
    exchange = simulation(SETTING, WORKERS, dict.fromkeys(names, start))
    return exchange, ADAM.of(weights, RATE), weights


def test_exchange_and_optimizer_are_the_papers_algorithm() -> None:
    given, start = random_steps(SIZE, WORKERS, STEPS), torch.linspace(-1, 1, SIZE)
    exchange, optimizer, (weight,) = onebit("x", start)
    expected = onebit_adam(doubles(given), start.double().numpy())
    for step, wanted in zip(given, expected, strict=True):
        weight.grad = play(exchange, SETTING, [{"x": own} for own in step])["x"]
        optimizer.step()
        # A step of 0.01 a coordinate, over deviations of 0.2 and more; momenta below 8 with 10 roundings.
        assert_close([weight.detach()], [wanted], within=STEPS * 10 * 8 * EPS)
    momentum = optimizer.state[weight]["mean"] / (1 - BETA1)
    for worker in range(WORKERS):
        found = exchange.states(worker)["momentum"]["x"]
        torch.testing.assert_close(found, momentum, rtol=0, atol=1e-5)


def test_a_weight_without_a_gradient_in_the_warm_up_stays() -> None:
    """Its variance is 0, and a compressed momentum has no zeros."""
    unused = slice(150, SIZE)  # rows of an embedding that no batch uses
    start = torch.linspace(-1, 1, SIZE)
    exchange, optimizer, (weight,) = onebit("x", start)
    for step in random_steps(SIZE, WORKERS, STEPS):
        for own in step:
            own[unused] = 0
        weight.grad = play(exchange, SETTING, [{"x": own} for own in step])["x"]
        optimizer.step()
    assert torch.equal(weight.detach()[unused], start[unused])
    assert (weight.detach() != start)[:150].all()


@pytest.mark.parametrize("lost", ["skipped", "absent"])
def test_the_frozen_variance_is_that_of_uncompressed_gradients(lost: str) -> None:
    """A step of the warm-up is skipped, or the parameter has no gradient in it on any rank: the optimizer
    takes no step, and the warm-up lasts a step longer."""
    exchange, optimizer, weights = onebit("xy", torch.zeros(SIZE))
    expected = torch.zeros(SIZE)
    for step, workers in enumerate(random_steps(SIZE, WORKERS, STEPS)):
        gradients = [{name: own.clone() for name in "xy"} for own in workers]
        if step == 2 and lost == "skipped":
            exchange.hold()
            play(exchange, SETTING, gradients)
            exchange.undo()
            continue
        absent = {"x"} if step == 2 else set()
        gradients = [{n: g for n, g in own.items() if n not in absent} for own in gradients]
        means = play(exchange, SETTING, gradients)
        for weight, name in zip(weights, "xy", strict=True):
            weight.grad = means.get(name)
        optimizer.step()
        if step < WARMUP + 1 and step != 2:
            expected.lerp_(torch.stack(workers).mean(0).square(), 1 - BETA2)
    found = optimizer.state[weights[0]]["square"]
    torch.testing.assert_close(found, expected, rtol=10 * EPS, atol=0)


def test_states_of_versions_without_a_count_load_with_the_number_of_steps() -> None:
    exchange, other = (simulation(SETTING, WORKERS, {"x": torch.zeros(SIZE)}) for _ in range(2))
    for step in random_steps(SIZE, WORKERS, 4):
        play(exchange, SETTING, [{"x": own} for own in step])
    for worker in range(WORKERS):
        state = state_dict(exchange, worker)
        states = {label: held for label, held in state["states"].items() if label != "exchanges"}
        load_state_dict(other, {"step": state["step"], "states": states}, worker)
    assert [int(other.states(worker)["exchanges"]["x"]) for worker in range(WORKERS)] == [4] * 3
