"""The clock: spans of a step add up, warm-up is left out, waiting has its own steps."""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch

from dgc_repro.bench.counting import CUDA, Counting
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


class Event:
    """A CUDA event that knows its stream, and when it was recorded."""

    streams: ClassVar[list[torch.device]] = []

    def __init__(self, *, enable_timing: bool) -> None:
        assert enable_timing

    def record(self, stream: Stream) -> None:
        self.at, self.waited = module.time.perf_counter(), False
        self.streams.append(stream.device)

    def synchronize(self) -> None:
        self.waited = True

    def elapsed_time(self, end: Event) -> float:
        assert end.waited
        return 1e3 * (end.at - self.at)


class Stream:
    def __init__(self, device: torch.device) -> None:
        self.device = device


@pytest.fixture
def cuda(time: Time, monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of a second GPU."""
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(Event, "streams", [])
    return Clock(torch.device("cuda", 1))


def test_on_a_gpu_times_are_those_of_a_cpu_each_of_its_step(time: Time, cuda: Clock) -> None:
    clocks = Clock(torch.device("cpu")), cuda
    lasts: list[dict[str, float]] = []
    for clock in clocks:
        for step in range(2 * WAIT_EVERY):
            if clock.measures_wait:
                spend(clock, time, wait=0.5)
            spend(clock, time, compress=1.0 + step, communicate=2.0, decompress=3.0)
            clock.end_step(6.0)
            if step == WARMUP_STEPS + 1:
                lasts.append(clock.last)
    here, there = (clock.report() for clock in clocks)
    assert here == there
    assert here["time/wait_ms"] == 500.0
    assert lasts[0] == lasts[1]
    assert lasts[0]["compress"] == 5.0
    assert [clock.report() for clock in clocks] == [{}, {}]
    assert set(Event.streams) == {torch.device("cuda", 1)}


def test_a_step_of_a_gpu_is_read_when_the_next_one_has_waited_and_needs_no_wait_itself() -> None:
    with Counting() as counting:
        clock = Clock(CUDA)
        for _ in range(WARMUP_STEPS + 2):
            with clock.span("compute"):
                pass
            counting.clear()
            torch.empty(1, device=CUDA).tolist()  # the signals
            with clock.span("decompress"):
                pass
            clock.end_step(0.0)
            assert counting.waits == ["tolist"]
        counting.clear()
        assert clock.report(waits=False)["time/decompress_ms"] == 1.0  # of the step before
        assert clock.report(waits=False) == {}
        assert counting.waits == []
        assert clock.report()["time/decompress_ms"] == 1.0
        assert counting.waits == ["event"]
        assert clock.report() == {}


def test_the_end_of_the_last_step_is_training_time(time: Time, cuda: Clock) -> None:
    spend(cuda, time, compute=1.0)
    cuda.end_step(1.0)
    end = cuda._unread[0][-1][2] if cuda._unread else None
    assert end is not None

    def late() -> None:
        time.now += 0.25
        end.waited = True

    end.synchronize = late
    cuda.catch_up()
    cuda.catch_up()
    assert cuda.seconds == 1.25
