"""What `make bench-network` measures: the ways to exchange, the points, and how often each."""

from __future__ import annotations

import hashlib
import itertools
from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import dgc_repro
from dgc_repro.bench.record import Recorded
from dgc_repro.bench.replay import NO_COMPUTE, Case, Compute, overlap_text
from dgc_repro.compressor.dense import Dense
from dgc_repro.compressor.dgc_sampled import DGCSampled
from dgc_repro.compressor.error_feedback import ErrorFeedback
from dgc_repro.compressor.fp16 import FP16
from dgc_repro.compressor.interface import Compressor
from dgc_repro.compressor.momentum_correction import MomentumCorrection
from dgc_repro.compressor.per_layer import PerLayer
from dgc_repro.compressor.powersgd import PowerSGD
from dgc_repro.compressor.randomk import RandomK
from dgc_repro.compressor.topk import TopK
from dgc_repro.compressor.uniform import Uniform
from dgc_repro.exchange.ledger import moved_by
from dgc_repro.network.profile import TCP_SHARE
from dgc_repro.network.units import bits_per_second
from dgc_repro.network.units import seconds as duration

LOOPBACK = "loopback"
NONE, GPU = "none", "gpu"
PLAIN, AGAIN = "plain", "plain-again"
PLACE = ("model", "workers", "rate", "compute")
V100_FLOPS, V100_SHARE = 15.7e12, 0.5
"""A V100's peak in float32 (its data sheet), and the share of it that training is assumed to reach."""
GPU_SECONDS = {"resnet101": 16e-3}
"""Where starting operations takes longer than they do: what gravac/fig1a (conf/paper/gravac.yaml) assumes for
32 images of 32x32 on the same V100 (31 Gflop at that speed, 10 us for each of 1214 operations)."""


@dataclass(frozen=True)
class Method:
    """``share``: of the dense bytes that it hands over, about: only for the estimate of durations.
    ``gathers``: by allgather, not by allreduce."""

    label: str
    compressor: Compressor | None
    share: float
    gathers: bool = False
    hook: str = "allreduce"


METHODS: Mapping[str, Method] = {
    PLAIN: Method("plain DDP", None, 1.0),
    AGAIN: Method("plain DDP, again", None, 1.0),
    "torch-fp16": Method("torch's fp16 hook", None, 0.5, hook="fp16"),
    "torch-powersgd": Method("torch's PowerSGD hook, rank 4", None, 0.02, hook="powersgd"),
    "dense": Method("dense", Dense(), 1.0),
    "fp16": Method("fp16", FP16(), 0.5),
    "uniform8": Method("uniform 8 bits", Uniform(8, block=2048), 0.25, True),
    "uniform4": Method("uniform 4 bits", Uniform(4, block=512), 0.127, True),
    "topk1": Method("top-k 1 %", PerLayer(ErrorFeedback(TopK(0.01))), 0.016, True),
    "topk01": Method("top-k 0.1 %", PerLayer(ErrorFeedback(TopK(0.001))), 0.003, True),
    "dgc": Method(
        "DGC 0.1 %",
        MomentumCorrection(PerLayer(ErrorFeedback(DGCSampled(0.001)))),
        0.003,
        True,
    ),
    "randomk1": Method("random-k 1 %", PerLayer(ErrorFeedback(RandomK(0.01))), 0.01, True),
    "powersgd4": Method("PowerSGD rank 4", PerLayer(ErrorFeedback(PowerSGD(4))), 0.02),
}
"""Vectors go uncompressed where an error feedback is (the default of a run); quantizers go without one. Plain
DDP is there twice: how far from 1 the noise alone goes."""


@dataclass(frozen=True)
class Point:
    """One measurement: a method on the links of a model's ranks. ``overlap``: None for torch's own."""

    model: str
    workers: int
    rate: str
    compute: str
    method: str
    overlap: bool | None

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Point:
        """Of a kept row."""
        return cls(**{field.name: row[field.name] for field in fields(cls)})

    @property
    def place(self) -> tuple[Any, ...]:
        """All but the case."""
        return tuple(getattr(self, name) for name in PLACE)

    @property
    def where(self) -> str:
        """The place in words."""
        return f"{self.model}, {self.workers} workers, {self.rate}, compute {self.compute}"

    @property
    def about(self) -> Method:
        return METHODS[self.method]

    @property
    def case(self) -> Case:
        """The ranks' case."""
        return Case(self.about.label, self.about.compressor, self.overlap, self.about.hook)

    @property
    def exchange(self) -> str:
        """The case in words."""
        return self.about.label + overlap_text(self.overlap)


@dataclass(frozen=True)
class Task:
    """A point that could be measured. ``expected``: about how many seconds a step takes; ``paired``: whether
    each step follows one of plain DDP; ``left_out``: why it is not worth its time, empty where it is."""

    point: Point
    compute: Compute
    expected: float
    paired: bool
    left_out: str

    def seconds(self, repeats: int) -> float:
        """About, of all its steps."""
        return repeats * self.expected * (1 + self.paired)


def tasks(asked: Namespace, recorded: Recorded, workers: int, cores: int) -> Iterator[Task]:
    """All points of a model and a number of workers, case by case. ``asked``: with lists of methods, overlap,
    rates and compute."""
    for method, overlap, rate, compute in itertools.product(
        asked.methods, (None, *asked.overlap), asked.rates, asked.compute
    ):
        if (METHODS[method].compressor is None) != (overlap is None):
            continue
        asleep = compute_of(compute, recorded)
        point = Point(recorded.model, workers, rate, compute, method, overlap)
        plain = replace(point, method=PLAIN, overlap=None)
        expected, beside = (
            expected_seconds(one, recorded.values, asleep.seconds, cores) for one in (point, plain)
        )
        pairs = method != PLAIN and beside <= PAIRED_BELOW_SECONDS
        yield Task(point, asleep, expected, pairs, left_out(point, expected, asleep.seconds))


def compute_of(name: str, recorded: Recorded) -> Compute:
    """``none``, ``gpu``, or a duration such as ``50ms``. Raises ValueError."""
    if name == NONE:
        return NO_COMPUTE
    if name == GPU:
        return Compute.of(GPU, gpu_seconds(recorded))
    seconds = duration("compute", name)
    if not seconds > 0:
        raise ValueError(f"compute: a duration above 0, or {NONE}, got {name!r}")
    return Compute.of(name, seconds)


def gpu_seconds(recorded: Recorded) -> float:
    """Forward and backward of a batch: 2 operations a multiply-add, backward twice as many as
    forward; or what is assumed of the model."""
    if recorded.model in GPU_SECONDS:
        return GPU_SECONDS[recorded.model]
    forward = 2 * sum(recorded.multiply_adds.values())
    return 3 * forward / (V100_SHARE * V100_FLOPS)


def payload_rate(rate: str) -> float | None:
    """Bytes of payload a second that a link carries, headers of full packets taken off; None on
    loopback. Raises ValueError."""
    return None if rate == LOOPBACK else bits_per_second("rates", rate) * TCP_SHARE / 8


CPU_SECONDS_PER_VALUE = 5e-9  # of a core: compress, copy, add, measured on 2 cores (AMD EPYC)
STEP_SECONDS = 5e-3  # Python and small messages
WORLD_SECONDS = 9.0  # start the ranks, load the gradients
OPEN_STEPS = 5.5  # warm-up, and making a model
PAIRED_BELOW_SECONDS = 0.5
"""Steps of plain DDP shorter than this stand right before each step they are compared with."""
SMALL_PART = 0.1
"""Of a step: with less compute than this in it, it is measured without compute only."""
LONG_SECONDS, MOST_SECONDS = 4.0, 10.0
"""A longer step is measured with or without overlap only or, with more than two workers, not at all: without
compute the two differ by milliseconds, and such a step moves as much as plain DDP's."""
LONG_AGAIN_SECONDS = 2.0
COMPUTE_WORKERS = 2
"""The GPU's compute, which overlap needs, is measured with so many workers."""


def expected_seconds(point: Point, values: int, compute: float, cores: int) -> float:
    """About how long one step takes."""
    moved = moved_by("allgather" if point.about.gathers else "allreduce", point.workers)
    speed = payload_rate(point.rate)
    wire = 4 * values * point.about.share * moved / speed if speed else 0.0
    return wire + compute + STEP_SECONDS + local_seconds(point.workers, values, cores)


def local_seconds(workers: int, values: int, cores: int) -> float:
    """What a step costs the cores that all workers share, about."""
    return CPU_SECONDS_PER_VALUE * values * max(1.0, workers / cores)


def left_out(point: Point, expected: float, compute: float) -> str:
    """Why a point is not worth its time; empty where it is."""
    two = point.workers == COMPUTE_WORKERS
    if point.method == AGAIN and expected > LONG_AGAIN_SECONDS:
        return f"a second step of plain DDP over {LONG_AGAIN_SECONDS:g} s"
    if point.method == PLAIN:
        return ""
    if point.compute == GPU and not two:
        return f"compute is measured with {COMPUTE_WORKERS} workers"
    if 0 < compute < SMALL_PART * expected:
        return f"compute is less than {SMALL_PART:.0%} of the step"
    if not two and point.rate == LOOPBACK and point.overlap is False:
        return "without links the workers wait for the cores, with overlap as without"
    if not two and expected >= MOST_SECONDS:
        return f"too long: a step over {MOST_SECONDS:g} s"
    # With two workers, communication without overlap is compared with dense's.
    if point.overlap is two and expected > LONG_SECONDS:
        return f"too long: a step over {LONG_SECONDS:g} s, with or without overlap only"
    return ""


def repeats_of(task: Task) -> int:
    """Steps of a point. Most targets are about two workers' steps."""
    expected = task.expected
    if task.point.workers == COMPUTE_WORKERS:
        return 1 if expected > LONG_SECONDS else 3
    return 1 if expected > 3 else 2 if expected > 1 else 3


def code_hash() -> str:
    """Of the code that decides what a step takes: points of other code are not taken over."""
    package = Path(dgc_repro.__file__).parent
    digest = hashlib.sha256()
    for part in ("compressor", "exchange", "kernel", "payload", "policy"):
        for file in sorted((package / part).rglob("*.[pch]*")):
            if file.suffix in (".py", ".c", ".h"):
                digest.update(file.read_bytes())
    for part in ("bench/network_points", "bench/replay", "bench/runner", "network/lab"):
        digest.update((package / f"{part}.py").read_bytes())
    return digest.hexdigest()[:12]
