"""The clock: spans of a step add up, warm-up is left out, waiting has its own steps."""

from __future__ import annotations

import pytest
import torch

from dgc_repro.exchange import clock as module
from dgc_repro.exchange.clock import SPANS, WAIT_EVERY, WARMUP_STEPS, Clock


class Time:
    """A time that moves when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    made = Time()
    monkeypatch.setattr(module, "time", made)
    return made


def spend(clock: Clock, time: Time, **seconds: float) -> None:
    for name, length in seconds.items():
        with clock.span(name):
            time.now += length


def test_spans_of_a_step_add_up_and_steps_are_averaged(time: Time) -> None:
    clock = Clock(torch.device("cpu"))
    for _ in range(WARMUP_STEPS):
        spend(clock, time, compress=1000.0)
        clock.end_step(1000.0)
    assert clock.report() == {}
    spend(clock, time, compute=1.0, compress=0.25, communicate=0.5)
    spend(clock, time, compress=0.25, decompress=0.125)
    clock.end_step(2.125)
    spend(clock, time, compute=3.0)
    clock.end_step(3.0)
    report = clock.report()
    assert report == {
        "time/compute_ms": 2000.0,
        "time/compress_ms": 250.0,
        "time/communicate_ms": 250.0,
        "time/decompress_ms": 62.5,
    }  # no step has waited
    assert sum(report.values()) == 1e3 * (2.125 + 3.0) / 2
    assert clock.seconds == 1000.0 * WARMUP_STEPS + 5.125
    assert clock.report() == {}


def test_waiting_is_averaged_over_the_steps_that_measure_it(time: Time) -> None:
    clock = Clock(torch.device("cpu"))
    measured = 0
    for _ in range(2 * WAIT_EVERY):
        if clock.measures_wait:
            measured += 1
            spend(clock, time, wait=0.5)
        clock.end_step(0.0)
    assert measured == 2
    assert clock.report()["time/wait_ms"] == 500.0


def test_a_span_may_be_named_when_it_is_known_what_it_was(time: Time) -> None:
    clock = Clock(torch.device("cpu"))
    for _ in range(WARMUP_STEPS + 1):
        with clock.span("decompress") as span:
            time.now += 1.0
            span.name = "compress"
        clock.end_step(1.0)
    report = clock.report()
    assert report["time/compress_ms"] == 1000.0
    assert report["time/decompress_ms"] == 0.0
    assert set(report) == {f"time/{name}_ms" for name in SPANS if name != "wait"}
