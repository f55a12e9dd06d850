"""One of several workers whose exchange is answered at once: every other is taken to send what it sends.

The exchange is the real one (exchange/exchange.py). So `make bench` and `recommend` time a method without
other workers, and count what it hands over.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import torch
from torch import Tensor

from dgc_repro.bench.rounds import Numbers
from dgc_repro.compressor.interface import Compressor
from dgc_repro.exchange.clock import Clock
from dgc_repro.exchange.exchange import Exchange, in_memory_order
from dgc_repro.exchange.world import World
from dgc_repro.policy.interface import Plan
from dgc_repro.study.compressing import wait_for

FIXED = Plan(0)


class Alone:
    """The exchange of one worker. ``gradients``: f32, by parameter name, read only. ``calls``: by collective
    of the last step, their number and payload bytes."""

    def __init__(
        self,
        compressor: Compressor,
        gradients: Mapping[str, Tensor],
        workers: int = 1,
        unit: str = "layer",
        plan: Plan = FIXED,
    ) -> None:
        self._gradients = {name: in_memory_order(g) for name, g in gradients.items()}
        self._given = {name: torch.empty_like(g) for name, g in self._gradients.items()}
        self._device, self._plan = next(iter(self._given.values())).device, plan
        self._clock = Clock(self._device)
        self.calls: dict[str, tuple[float, float]] = {}
        world = World(1, size=workers, device=self._device, clock=self._clock, cost=self._note)
        self._exchange = Exchange(compressor, self._gradients, world, unit=unit)

    def step(self) -> Numbers:
        """Seconds of a step, those of its compress and decompress, and the bytes handed over."""
        self.calls.clear()
        for name, gradient in self._gradients.items():
            self._given[name].copy_(gradient)  # the exchange writes means into them
        wait_for(self._device)
        begin = time.perf_counter()
        self._exchange.average([self._given], self._plan)
        wait_for(self._device)
        seconds = time.perf_counter() - begin
        self._clock.end_step(0.0)
        spans = self._clock.last
        return {
            "seconds": seconds,
            "compress_seconds": spans["compress"],
            "decompress_seconds": spans["decompress"],
            "sent_bytes": sum(size for _, size in self.calls.values()),
        }

    def _note(self, collective: str, payload_bytes: int) -> float:
        count, size = self.calls.get(collective, (0.0, 0.0))
        self.calls[collective] = (count + 1, size + payload_bytes)
        return 0.0
