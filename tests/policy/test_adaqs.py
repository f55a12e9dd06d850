"""AdaQS: precision grows as the gradient sinks into its noise."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch

from dgc_repro.exchange.sketch import common_square, sketch
from dgc_repro.policy.adaqs import AdaQS, ratio_of
from dgc_repro.policy.interface import State, StepReport

VALUES = 4_000


def adaqs(**settings: Any) -> AdaQS:
    given = {"field": "bits", "values": (16, 8, 4), "smoothing": 0.5, "least_steps": 2} | settings
    return AdaQS(**given)


def report(ratio: float, step: int = 0) -> StepReport:
    """Squares with this mean-to-standard-deviation ratio."""
    return StepReport(step, 1.0, 64.0, own_square=ratio**2 + 1, signal_square=ratio**2)


def after(policy: AdaQS, ratios: list[float]) -> tuple[list[int | None], State]:
    state, rungs = policy.init(), []
    for step, ratio in enumerate(ratios):
        rungs.append(policy.plan(state, step).rung)
        state = policy.after_step(state, report(ratio, step))
    return [*rungs, policy.plan(state, len(ratios)).rung], state


def trained(signals: list[float], workers: int, seed: int, quantum: float = 0.0) -> State:
    """Steps of workers whose gradients share a vector of these norms, with noise of norm 1 each. What is
    applied is rounded to multiples of ``quantum``."""
    policy = AdaQS("bits", (16, 8, 4))
    state, rng = policy.init(), np.random.default_rng(seed)
    direction = rng.standard_normal(VALUES) / math.sqrt(VALUES)
    for step, signal in enumerate(signals):
        noise = rng.standard_normal((workers, VALUES)) / math.sqrt(VALUES)
        own = torch.from_numpy(signal * direction + noise).float()
        applied = (own / quantum).round().mul(quantum).mean(0) if quantum else own.mean(0)
        total = torch.stack([sketch([g], seed, step) for g in own]).sum(0)
        told = StepReport(
            step, 1.0, 64.0,
            own_square=float(own.square().sum()) / workers,
            mean_square=float(applied.square().sum()),
            signal_square=common_square(total, workers),
        )  # fmt: skip
        state = policy.after_step(state, told)
    return state


@pytest.mark.parametrize("workers", [2, 8])
def test_it_moves_when_the_signal_falls_whatever_the_number_of_workers(workers: int) -> None:
    """||mean of g_i||^2 of 2 workers never falls below the half of ||g_i||^2: a ratio of 1."""
    state = trained([2.0] * 60 + [0.5] * 120, workers, seed=1)
    assert state["rung"] < 3
    assert 60 < state["trace"][0]["step"] < 130
    assert json.loads(json.dumps(state)) == state


@pytest.mark.parametrize(
    ("signal", "quantum"), [(0.0, 0.0), (0.0, 0.1), (1.0, 0.1)], ids=["noise", "rounded", "both"]
)
def test_it_stays_where_nothing_falls_however_coarse_what_is_applied(
    signal: float, quantum: float
) -> None:
    for seed in range(3):
        assert trained([signal] * 150, 2, seed, quantum)["trace"] == []


@pytest.mark.parametrize("workers", [2, 4])
def test_the_estimate_of_the_common_square_has_no_bias_and_the_stated_variance(
    workers: int,
) -> None:
    rng = np.random.default_rng(workers)
    for signal in (0.0, 1.0):
        common = signal * rng.standard_normal(VALUES) / math.sqrt(VALUES)
        found = []
        for step in range(200):
            noise = rng.standard_normal((workers, VALUES)) / math.sqrt(VALUES)
            own = torch.from_numpy(common + noise).float()
            total = torch.stack([sketch([g[:999], None, g[999:]], 0, step) for g in own]).sum(0)
            found.append(common_square(total, workers))
        error = np.std(found, ddof=1)
        z = (np.mean(found) - float(np.square(common).sum())) / (error / math.sqrt(len(found)))
        assert abs(z) < 4
        if signal == 0:
            stated = math.sqrt(2 * (1 / 257 + 1 / VALUES) / (workers * (workers - 1)))
            assert error == pytest.approx(stated, rel=0.25)


def test_one_worker_or_no_gradient_says_nothing() -> None:
    assert math.isnan(common_square(sketch([torch.ones(3)], 0, 0), 1))
    assert common_square(2 * sketch([None], 0, 0), 2) == 0.0
    policy = adaqs()
    alone = StepReport(0, 1.0, 64.0, own_square=1.0, mean_square=1.0)
    assert policy.after_step(policy.init(), alone) == policy.init()


def test_it_begins_with_the_strongest_and_moves_when_the_ratio_has_halved() -> None:
    """The bounds close in on a ratio that stays."""
    rungs, state = after(adaqs(), [4.0] * 20 + [2.1] * 40 + [1.9] * 40 + [0.8] * 40 + [0.1] * 40)
    assert rungs[:60] == [3] * 60
    assert [(entry["rung"], entry["next_rung"]) for entry in state["trace"]] == [(3, 2), (2, 1)]
    first, second = (entry["step"] for entry in state["trace"])
    assert 60 < first <= 100 < second <= 140


@pytest.mark.parametrize(("signal", "whole"), [(0.0, 0.0), (-0.5, 1.0)], ids=["zeros", "opposed"])
def test_a_signal_that_never_was_above_0_moves_nothing(signal: float, whole: float) -> None:
    policy = adaqs()
    state = policy.init()
    for step in range(60):
        estimate = signal * (1 + 0.01 * (step % 3))
        told = StepReport(step, 1.0, 64.0, own_square=whole, signal_square=estimate)
        state = policy.after_step(state, told)
    assert (state["rung"], state["trace"]) == (3, [])


def test_squares_are_averaged_before_the_ratio_is_taken() -> None:
    policy = adaqs(smoothing=0.25)
    _, state = after(policy, [4.0, 2.0])
    averages = [state[name] / state["weight"] for name in ("signal", "whole")]
    assert averages == pytest.approx([(0.75 * 16 + 4) / 1.75, (0.75 * 17 + 5) / 1.75])
    low, high = policy.bounds(state)
    assert low < ratio_of(*averages) < high


def test_a_signal_that_rises_first_is_followed_when_it_falls() -> None:
    """The first steps are noise: their lower bound is 0, and must not stay the reference."""
    policy = AdaQS(field="bits", values=[8, 4, 2])
    state = policy.init()
    for step, signal in enumerate([0.0] * 20 + [4.0] * 60 + [0.2] * 200):
        scatter = 0.1 * (-1) ** step
        report = StepReport(step, 1.0, 64.0, own_square=signal + 1, signal_square=signal + scatter)
        state = policy.after_step(state, report)
        if step == 79:
            assert state["rung"] == 3
    assert state["rung"] == 2
