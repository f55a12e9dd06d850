"""What ranks and simulated workers do for test_branches_agree.py: gradients that straddle GraVAC's eps.

Rank 0's gradient is a few large entries, of which top-k keeps nearly all; rank 1's has entries of one
magnitude, of which factor f keeps 1 / f. Alone, one would compress and the other would not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from jobs import CPU, raised
from torch import Tensor

from dgc_repro.compressor.dense import Dense
from dgc_repro.compressor.dgc_sampled import DGCSampled
from dgc_repro.compressor.error_feedback import ErrorFeedback
from dgc_repro.compressor.ladder import Ladder
from dgc_repro.compressor.topk import TopK
from dgc_repro.exchange.clock import Clock
from dgc_repro.exchange.gradients import GradientExchange
from dgc_repro.exchange.ledger import Ledger
from dgc_repro.exchange.process_group import ProcessGroupWire
from dgc_repro.exchange.signals import share
from dgc_repro.exchange.wire import Link, Wire
from dgc_repro.policy.gravac import GraVAC
from dgc_repro.policy.interface import Plan, StepReport

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


def slow(name: str, worker: int, step: int) -> Tensor:
    """A gradient that turns from one kind to the other and back, in 40 steps each, with some noise."""
    source = torch.Generator().manual_seed(ord(name))
    signs = torch.randint(0, 2, (SIZES[name],), generator=source) * 2.0 - 1
    noise = torch.Generator().manual_seed(1000 * step + 10 * worker + ord(name))
    share = abs(step % 80 - 40) / 40
    signs[SIZES[name] // 10 :] *= share
    return signs + 0.05 * torch.randn(SIZES[name], generator=noise)


def branches(
    wire: Wire,
    decide: str,
    steps: int,
    gradient: Callable[[str, int, int], Tensor] = gradient,
    window: int = 3,
) -> dict[str, Any]:
    """The branches of all steps, the gain that each worker here has of its own, and the means' bits."""
    policy = GraVAC(
        theta_min=2, theta_max=8, eps=EPS, smoothing=1.0, window=window, omega=0.0, decide=decide
    )
    rungs = (Dense(), *(TopK(factor=factor) for factor in policy.values))
    link = Link(wire, Ledger(), Clock(CPU), check=True)
    state = policy.init()

    def choose(energies: Tensor) -> int:
        nonlocal state
        rung, state = policy.choose(state, energies)
        return rung

    like = {name: torch.empty(n) for name, n in SIZES.items()}
    exchange = GradientExchange(ErrorFeedback(Ladder(rungs)), like, link, seed=1, choose=choose)
    told: dict[str, Any] = {"branches": [], "own": []}
    bits = hashlib.sha256()
    for step in range(steps):
        plan = policy.plan(state, step)
        factor = policy.values[plan.candidates[0] - 1]
        for worker in range(wire.local_workers):
            own = {name: gradient(name, wire.rank + worker, step) for name in SIZES}
            fed = {n: g + exchange.states[worker][n]["residual"] for n, g in own.items()}
            told["own"].append(own_gain(fed, factor))
            exchange.open(worker, own, plan)
        energies = exchange.energies(plan) * wire.local_workers
        heard = share(link, energies) if len(energies) else []
        for mean in exchange.finish().values():
            bits.update(mean.numpy().tobytes())
        exchange.commit()
        if heard:
            choose((torch.tensor(heard, dtype=torch.float64) / wire.world_size).float())
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
    return branches(ProcessGroupWire(CPU), decide, steps)


def own_ways(kind: str) -> str:
    """What a rank is told whose policy goes its own way: the payloads alone would not show it, their
    lengths may differ."""
    rank = dist.get_rank()
    ladder = Ladder((Dense(), DGCSampled(factor=2), DGCSampled(factor=4)))
    link = Link(ProcessGroupWire(CPU), Ledger(), Clock(CPU), check=True)
    exchange = GradientExchange(
        ladder, {"a": torch.empty(64)}, link, choose=lambda energies: 1 + rank
    )
    plans = {
        "planned": Plan(1 + rank),
        "chosen": Plan(None, candidates=(1, 2)),
        "watched": Plan(1, candidates=(1, 1 + rank), measures=True),
        "by tensor": Plan(1, {"a": 1 + rank}),
    }

    def step() -> None:
        exchange.open(0, {"a": torch.arange(64.0)}, plans[kind])
        exchange.finish()

    return raised(step)
