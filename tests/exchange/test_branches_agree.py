"""All ranks take one branch in every step, whatever each of them would have taken alone.

Gradients straddle GraVAC's eps. Rank 0's gradient is a few large entries, of which top-k keeps nearly all;
rank 1's has entries of one magnitude, of which factor f keeps 1 / f. Alone, one would compress and the other
would not.
"""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
import torch
from processes import World as Ranks
from torch import Tensor

from dgc_repro import Dense, ErrorFeedback, GraVAC, Ladder, TopK
from dgc_repro.exchange.exchange import Exchange
from dgc_repro.exchange.world import World
from dgc_repro.policy.interface import StepReport

SIZES = {"a": 200, "b": 40}
EPS = 0.7


def gradient(name: str, worker: int, step: int) -> Tensor:
    """Of a worker; each leads on every other step, by a norm 3 times the other's."""
    source = torch.Generator().manual_seed(1000 * step + ord(name))
    n = SIZES[name]
    signs = torch.randint(0, 2, (n,), generator=source) * 2.0 - 1
    if worker == 0:
        signs[n // 10 :] *= 1e-3
        signs *= 10**0.5  # as long as the other's
    return signs * (3.0 if step % 2 == worker else 1.0)


def branches(world: World, decide: str, steps: int) -> dict[str, Any]:
    """The branches of all steps, the gain that each worker here has of its own, and the means' bits."""
    policy = GraVAC(
        theta_min=2, theta_max=8, eps=EPS, smoothing=1.0, window=3, omega=0.0, decide=decide
    )
    rungs = (Dense(), *(TopK(factor=factor) for factor in policy.values))
    state = policy.init()

    def choose(energies: Tensor) -> int:
        nonlocal state
        rung, state = policy.choose(state, energies)
        return rung

    like = {name: torch.empty(n) for name, n in SIZES.items()}
    exchange = Exchange(ErrorFeedback(Ladder(rungs)), like, world, seed=1, choose=choose)
    told: dict[str, Any] = {"branches": [], "own": []}
    bits = hashlib.sha256()
    for step in range(steps):
        plan = policy.plan(state, step)
        factor = policy.values[plan.candidates[0] - 1]
        every = []
        for worker in range(world.local):
            own = {name: gradient(name, world.rank + worker, step) for name in SIZES}
            residual = exchange.states(worker)["residual"]
            told["own"].append(own_gain({n: g + residual[n] for n, g in own.items()}, factor))
            every.append(own)
        exchange.average(every, plan)
        for mean in every[0].values():
            bits.update(mean.numpy().tobytes())
        if exchange.told:
            choose(torch.stack(exchange.told).sum(0).float())
            exchange.told.clear()
        told["branches"].append(state["last"]["branch"])
        state = policy.after_step(state, StepReport(step, 1.0 + step, 64.0))
    return told | {"bits": bits.hexdigest()}


def own_gain(fed: dict[str, Tensor], factor: float) -> float:
    """What a worker alone would find of theta_min."""
    whole = sum(float(x.square().sum()) for x in fed.values())
    kept = sum(
        float(x.abs().topk(round(x.numel() / factor)).values.square().sum()) for x in fed.values()
    )
    return kept / whole


def branches_here(decide: str, steps: int) -> dict[str, Any]:
    return branches(World(), decide, steps)


STEPS = 8


@pytest.mark.parametrize("decide", ["now", "last"])
def test_gradients_that_straddle_eps_take_one_branch(decide: str, two_workers: Ranks) -> None:
    first, second = two_workers(branches_here, decide, STEPS)
    straddles = [
        max(one, other) >= EPS > min(one, other)
        for one, other in zip(first["own"], second["own"], strict=True)
    ]
    assert sum(straddles) >= STEPS // 2, "alone, ranks would have gone two ways"
    simulated = branches(World(2), decide, STEPS)
    for real in (first, second):
        assert real["branches"] == simulated["branches"]
        assert real["bits"] == simulated["bits"]
    assert len(set(first["branches"])) > 1
