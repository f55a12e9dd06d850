"""Time: compute, compress, communicate, decompress, wait.

On a GPU the spans are CUDA events, read once when the step is over: nothing waits for the device
inside a step. ``wait`` is measured by a barrier before the signals on one step in
``WAIT_EVERY``: the time this worker stood waiting for the slowest one. Warm-up steps, in which
kernels compile and buffers are made, are discarded.
"""

from __future__ import annotations

import time
from typing import Any, Self

import torch

WARMUP_STEPS = 3
WAIT_EVERY = 50
SPANS = ("compute", "compress", "communicate", "decompress", "wait")


class Span:
    """One timed stretch. ``name`` may be set inside, when it is known only then."""

    __slots__ = ("_begin", "_clock", "_mark", "name")

    def __init__(self, clock: Clock, name: str) -> None:
        self._clock = clock
        self.name = name

    def __enter__(self) -> Self:
        if self._clock.marks_trace:
            self._mark = torch.profiler.record_function(self.name)
            self._mark.__enter__()
        self._begin = self._clock.instant()
        return self

    def __exit__(self, *error: object) -> None:
        self._clock.add(self.name, self._begin, self._clock.instant())
        if self._clock.marks_trace:
            self._mark.__exit__(None, None, None)


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
        self.waits_for = (
            ""  # the collective that this process waits for, in words (exchange/wire.py)
        )
        self.seconds = 0.0  # training time since the start of the run, checkpointed

    def span(self, name: str) -> Span:
        """A context manager that times what is inside."""
        return Span(self, name)

    def add(self, name: str, begin: Any, end: Any) -> None:
        """A span from ``begin`` to ``end``: seconds, or CUDA events that are read later."""
        if self._cuda:
            self._events.append((name, begin, end))
        else:
            self._now[name] += end - begin

    def instant(self) -> Any:
        """Now, on the device's own clock."""
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
            self._steps_waited += self.measures_wait
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
