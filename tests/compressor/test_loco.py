"""LoCo's moving average of errors against the paper's algorithm in numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from laws import play, played, simulation
from numeric import EPS, Array, doubles, gaussian, in_steps, random_steps, topk

from dgc_repro import LoCo, TopK
from dgc_repro.compressor.encoding import layouts_of
from dgc_repro.compressor.loco import BITS, BLOCK
from dgc_repro.payload import Codes
from dgc_repro.selfcheck.law_settings.base import Setting

SIZE, K = 3000, 300


def loco(gradients: list[list[Array]], beta: float, reset: int | None) -> list[list[Array]]:
    """p = g + e;  e' = Q8(beta e + (1 - beta) (p - top-k(p))): the errors after each step."""
    errors = [np.zeros(SIZE) for _ in gradients[0]]
    found = []
    for step, given in enumerate(gradients):
        for worker, g in enumerate(given):
            p = g + errors[worker]
            left = p - topk(p, K)
            errors[worker] = in_steps(beta * errors[worker] + (1 - beta) * left, 8, 2048)
            if reset and (step + 1) % reset == 0:
                errors[worker] = np.zeros(SIZE)
        found.append(list(errors))
    return found


def decoded(state: torch.Tensor) -> Array:
    values = torch.zeros(SIZE)
    Codes(("x",), layouts_of((SIZE,), BITS, BLOCK), state).copy_to_(values, 1.0)
    return values.double().numpy()


@pytest.mark.parametrize(("beta", "reset"), [(0.0, None), (0.8, None), (0.8, 4)])
def test_the_error_is_the_papers_moving_average(beta: float, reset: int | None) -> None:
    given = random_steps(SIZE, workers=3, steps=6)
    expected = loco(doubles(given), beta, reset)
    for steps in range(1, 7):
        _, states = played(LoCo(TopK(K / SIZE), beta, reset), given[:steps])
        for state, wanted in zip(states, expected[steps - 1], strict=True):
            found = decoded(state["error"])
            # A value on the edge between two codes may fall to either side: one step of at most 4 / 127.
            off = np.abs(found - wanted)
            assert off.max() <= 4 / 127 + 100 * EPS
            assert np.mean(off > 100 * EPS) < 0.01
            assert bool(found.any()) == (reset is None or steps % reset != 0)


@pytest.mark.parametrize("skipped", [(3,), (4,), (3, 4)])
def test_skipped_steps_do_not_count_towards_a_reset(skipped: tuple[int, ...]) -> None:
    """Every 4 steps: the errors are those of a run without the steps that were skipped."""
    setting = Setting("loco", LoCo(TopK(K / SIZE), reset_steps=4))
    exchange, other = (simulation(setting, 2, {"x": gaussian(SIZE)}) for _ in range(2))
    committed = 0
    for step, given in enumerate(random_steps(SIZE, workers=2, steps=9)):
        gradients = [{"x": own} for own in given]
        if step in skipped:
            exchange.hold()
            play(exchange, setting, gradients)
            exchange.undo()
            continue
        play(exchange, setting, gradients)
        play(other, setting, gradients)
        committed += 1
        errors = [[world.states(k)["error"]["x"] for k in range(2)] for world in (exchange, other)]
        assert all(map(torch.equal, *errors))
        assert bool(errors[0][0].any()) == (committed % 4 != 0)


def test_it_keeps_a_byte_a_value() -> None:
    exchange = simulation(Setting("loco", LoCo(TopK(0.1))), 1, {"x": gaussian(SIZE)})
    assert exchange.state_bytes() == SIZE + 4 * 2 + 8  # and a number of exchanges
