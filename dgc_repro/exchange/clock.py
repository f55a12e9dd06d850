"""Time: compute, compress, communicate, decompress, wait.

On a GPU the spans are CUDA events on the current stream of the clock's own device. The events of a step are
read when the next step ends, or earlier where somebody asks for the times: until then nothing waits for the
device. ``wait`` is measured by a barrier before the signals on one step in
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
        self._device = device
        self._cuda = device.type == "cuda"
        self._now = dict.fromkeys(SPANS, 0.0)
        self._events: list[tuple[str, Any, Any]] = []
        # Of a step that has ended and was not read: its events, and whether it is a step of the warm-up.
        self._unread: tuple[list[tuple[str, Any, Any]], bool] | None = None
        self._last = dict.fromkeys(SPANS, 0.0)
        self._sums = dict.fromkeys(SPANS, 0.0)
        self._steps = 0
        self._steps_waited = 0
        self._seen = 0  # steps of this process: warm-up is a matter of the process, not of the run
        self.marks_trace = False  # spans are marked in the profiler's trace (train/profile.py)
        self.waits_for = ""  # in words: the collective this process waits for (collective.py)
        self.seconds = 0.0  # training time since the start of the run, checkpointed

    @contextmanager
    def span(self, name: str) -> Iterator[Span]:
        """Time what is inside."""
        span, event = Span(name), self._event() if self._cuda else None
        begin = time.perf_counter()
        with torch.profiler.record_function(name) if self.marks_trace else nullcontext():
            try:
                yield span
            finally:
                if event is None:
                    self._now[span.name] += time.perf_counter() - begin
                else:
                    self._events.append((span.name, event, self._event()))

    def _event(self) -> Any:
        """Now, on the device's own clock: a CUDA event that is read later."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    @property
    def measures_wait(self) -> bool:
        """Whether this step begins its exchange with a barrier."""
        return self._seen % WAIT_EVERY == WARMUP_STEPS

    def end_step(self, seconds: float) -> None:
        """Close a step that took ``seconds`` of wall time."""
        self.seconds += seconds
        self._read()  # the step before: its events are over long since
        is_warm_up = self._seen < WARMUP_STEPS
        self._seen += 1
        if self._cuda:
            self._unread, self._events = (self._events, is_warm_up), []
        else:
            self._take(self._now, is_warm_up)
            self._now = dict.fromkeys(SPANS, 0.0)

    @property
    def last(self) -> dict[str, float]:
        """Seconds by span, of the last step. On a GPU this waits until that step is over."""
        self._read()
        return self._last

    def catch_up(self) -> None:
        """Wait until the device has done the last step. That is a part of the training time."""
        if self._unread is not None:
            begin = time.perf_counter()
            self._read()
            self.seconds += time.perf_counter() - begin

    def drain(self) -> None:
        """Wait until the device has done the spans of this step."""
        for _, _, end in reversed(self._events):  # with the last one, those before it are over
            end.synchronize()

    def _read(self) -> None:
        """Read the events of the last step, unless they have been read."""
        if self._unread is None:
            return
        (events, is_warm_up), self._unread = self._unread, None
        spans = dict.fromkeys(SPANS, 0.0)
        for _, _, end in reversed(events):
            end.synchronize()
        for name, begin, end in events:
            spans[name] += begin.elapsed_time(end) / 1e3
        self._take(spans, is_warm_up)

    def _take(self, spans: dict[str, float], is_warm_up: bool) -> None:
        """Count the seconds of a step."""
        self._last = spans
        if is_warm_up:
            return
        self._steps += 1
        self._steps_waited += spans["wait"] > 0
        for name in SPANS:
            self._sums[name] += spans[name]

    def report(self, *, waits: bool = True) -> dict[str, float]:
        """Mean milliseconds a step by span since the last report; empty when all were warm-up. On a GPU this
        waits until the last step is over, or else leaves that step to the next report."""
        if waits:
            self._read()
        if not self._steps:
            return {}
        steps = dict.fromkeys(SPANS, self._steps) | {"wait": self._steps_waited}
        means = {f"time/{n}_ms": 1e3 * self._sums[n] / steps[n] for n in SPANS if steps[n]}
        self._sums = dict.fromkeys(SPANS, 0.0)
        self._steps = self._steps_waited = 0
        return means
