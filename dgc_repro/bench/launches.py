"""What a step of each method would ask of a GPU: launches, host syncs, collectives and bytes.

Counted on fake CUDA tensors (bench/counting.py), so that no GPU is needed and nothing is measured. A method
is what its YAML in conf/compressor/ says, with its wrappers and without a policy. Its step is
that of `attach`, of gradients that are there: it compresses, agrees, exchanges and reads the clock.
`selfcheck` compares the counts with targets and with a GPU, `recommend` reads those of predict/settings.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import DynamicOutputShapeException

from dgc_repro.bench.counting import CUDA, Counting
from dgc_repro.bench.tables import Row
from dgc_repro.exchange.exchange import Exchange
from dgc_repro.exchange.junction import AfterBackward
from dgc_repro.exchange.steps import PolicyProgress, Steps
from dgc_repro.exchange.world import World
from dgc_repro.launch.paths import options
from dgc_repro.launch.settings import build_compressor, build_policy, unallocated

STEPS = 2  # the last one is counted
Config = Mapping[str, Any]
Shapes = Mapping[str, torch.Size]


def methods() -> dict[str, list[str]]:
    """Overrides by method: every compressor as its YAML has it, and 8 bits with error feedback."""
    found = {name: [f"compressor={name}"] for name in options("compressor")}
    # The warm-up of 1-bit Adam is that of dense.
    found["onebit_adam"].append("wrapper.onebit_adam.warmup_steps=0")
    fed = ["compressor=uniform", "wrap=[per_layer,error_feedback]"]
    return {"dense": found.pop("dense"), **found, "uniform + error feedback": fed}


def shapes_of(config: Config, classes: int) -> Shapes:
    """The parameters of a model at full size."""
    named = unallocated(config, classes).named_parameters()
    return {name: parameter.shape for name, parameter in named}


class Loop:
    """The steps of a method in a loop whose gradients are there, without a model."""

    def __init__(
        self, config: Config, parameters: Mapping[str, nn.Parameter], device: torch.device
    ) -> None:
        self.compressor = build_compressor(config, policy := build_policy(config))
        self.parameters, self.world = parameters, World(device=device)
        unit = config["exchange"]["unit"]
        exchange = Exchange(self.compressor, parameters, self.world, unit=unit)
        self._steps = Steps(
            world=self.world,
            exchange=exchange,
            junction=AfterBackward(exchange, parameters),
            policy=policy,
            parameters=parameters,
            progress=PolicyProgress(policy.init()),
        )

    def step(self) -> bool:
        """Exchange what is in ``param.grad``. Returns whether that has happened."""
        steps = self._steps
        steps.begin(steps.exchange.step)
        finite = steps.open(0) is None
        with torch.no_grad():
            happened, _ = steps.settle([], finite=finite)
        self.world.clock.end_step(0.0)
        steps.end(1.0, 0.0)
        return happened


def count_exchange(config: Config, shapes: Shapes) -> Row:
    """The step of a method. Inside `fake_workers`."""
    with Counting() as counting:
        parameters = {n: nn.Parameter(torch.empty(s, device=CUDA)) for n, s in shapes.items()}
        loop = Loop(config, parameters, CUDA)
        for _ in range(STEPS):
            for parameter in parameters.values():
                parameter.grad = torch.empty_like(parameter)
            counting.clear()
            loop.world.ledger.clear()
            happened = False
            with suppress(DynamicOutputShapeException):
                happened = loop.step()
            if counting.unanswered:
                return {"launches_verdict": f"reads the host ({counting.unanswered})"}
            assert happened
        return {
            "launches": counting.launches,
            "triton": counting.triton,
            "syncs": counting.syncs,
            "collectives": counting.collectives,
            "touched_mb": counting.bytes_touched / 1e6,
            "ledger": sum(loop.world.ledger.calls_by_collective().values()),
        }
