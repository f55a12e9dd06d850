"""Time: compute, compress, communicate, decompress, wait.

On a GPU the spans are CUDA events, read once when the step is over: nothing waits for the device
inside a step. ``wait`` is measured by a barrier before the signals on one step in
``WAIT_EVERY``: the time this worker stood waiting for the slowest one. With local steps the barrier
comes once a round and the mean of ``wait`` is per round; means of the other spans are per step.
Warm-up steps, in which kernels compile and buffers are made, are discarded.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

WARMUP_STEPS = 3
WAIT_EVERY = 50
SPANS = ("compute", "compress", "communicate", "decompress", "wait")


@dataclass
class Span:
    """One timed stretch. ``name`` may be set inside, when it is known only then."""

    name: str


class Clock:
    """Adds up spans of a step, and their means over the steps since the last report."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._now = dict.fromkeys(SPANS, 0.0)
        self._events: list[tuple[str, Any, Any]] = []
        self.last = dict.fromkeys(SPANS, 0.0)  # seconds by span, of the last step
        self._sums = dict.fromkeys(SPANS, 0.0)
        self._steps = 0
        self._steps_waited = 0
        self._seen = 0  # steps of this process: warm-up is a matter of the process, not of the run
        self.marks_trace = False  # spans are marked in the profiler's trace (train/profile.py)
        self.waits_for = ""  # in words: the collective this process waits for (exchange/wire.py)
        self.seconds = 0.0  # training time since the start of the run, checkpointed

    @contextmanager
    def span(self, name: str) -> Iterator[Span]:
        """Time what is inside."""
        span = Span(name)
        with torch.profiler.record_function(name) if self.marks_trace else nullcontext():
            begin = self._instant()
            try:
                yield span
            finally:
                end = self._instant()
                if self._cuda:
                    self._events.append((span.name, begin, end))
                else:
                    self._now[span.name] += end - begin

    def _instant(self) -> Any:
        """Now, on the device's own clock: seconds, or a CUDA event that is read later."""
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    @property
    def measures_wait(self) -> bool:
        """Whether this step begins its exchange with a barrier."""
        return self._seen % WAIT_EVERY == WARMUP_STEPS

    def end_step(self, seconds: float) -> None:
        """Close a step that took ``seconds`` of wall time."""
        self.seconds += seconds
        if self._events:
            self._events[-1][2].synchronize()
            for name, start, end in self._events:
                self._now[name] += start.elapsed_time(end) / 1e3
            self._events.clear()
        if self._seen >= WARMUP_STEPS:
            self._steps += 1
            self._steps_waited += self._now["wait"] > 0
            for name in SPANS:
                self._sums[name] += self._now[name]
        self._seen += 1
        self.last = self._now
        self._now = dict.fromkeys(SPANS, 0.0)

    def report(self) -> dict[str, float]:
        """Mean milliseconds a step by span since the last report; empty when all were warm-up."""
        if not self._steps:
            return {}
        steps = dict.fromkeys(SPANS, self._steps) | {"wait": self._steps_waited}
        means = {f"time/{n}_ms": 1e3 * self._sums[n] / steps[n] for n in SPANS if steps[n]}
        self._sums = dict.fromkeys(SPANS, 0.0)
        self._steps = self._steps_waited = 0
        return means
