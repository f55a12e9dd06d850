"""Compress and decompress one large gradient, in multiples of a `copy_` of the same tensor.

44,549,160 float32 values (ResNet101's size) with heavy tails, buffers made beforehand. ``compress``
is a method's exchange up to its last request, ``decompress`` what comes after the last answer; it
exchanges with nobody, so that its own payload is the answer. ``eager`` is what a machine without a
C compiler gets, with the same values.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from dgc_repro.bench.tables import ROUNDS, Row, Spread, seconds, shares
from dgc_repro.compressor.bf16 import BF16
from dgc_repro.compressor.dgc_sampled import DGCSampled
from dgc_repro.compressor.ef_signsgd import EFSignSGD
from dgc_repro.compressor.error_feedback import ErrorFeedback
from dgc_repro.compressor.fp16 import FP16
from dgc_repro.compressor.interface import Compressor, Context, State
from dgc_repro.compressor.natural import Natural
from dgc_repro.compressor.onebit import OneBit
from dgc_repro.compressor.powersgd import PowerSGD
from dgc_repro.compressor.qsgd import QSGD, elias_bits
from dgc_repro.compressor.randomk import RandomK
from dgc_repro.compressor.redsync import RedSync
from dgc_repro.compressor.sidco import SIDCo
from dgc_repro.compressor.signsgd import SignSGD
from dgc_repro.compressor.terngrad import TernGrad
from dgc_repro.compressor.threshold import Threshold
from dgc_repro.compressor.topk import TopK
from dgc_repro.compressor.uniform import Uniform
from dgc_repro.exchange.packing import places
from dgc_repro.exchange.payload import Gathered, num_bytes
from dgc_repro.exchange.requests import Gather, GatherRagged
from dgc_repro.kernel import native
from dgc_repro.kernel.fused import Compiler
from dgc_repro.kernel.workspace import Workspace
from dgc_repro.launch.environment import threads

NUM_VALUES = 44_549_160
THREADS = min(2, os.cpu_count() or 1)
WARMUP = 2
FEEDBACK_AT_MOST = 2.5


@dataclass(frozen=True)
class Case:
    """A method and its ceilings, in copies (None: none is set)."""

    name: str
    compressor: Compressor
    compress_at_most: float | None = None
    decompress_at_most: float | None = None
    in_short: bool = True  # part of ``--quick``


CASES = (
    Case("fp16", FP16(), 1.0, 1.0),
    Case("bf16", BF16(), 1.0, 1.0, False),
    Case("uniform 8 bits, block 2048", Uniform(8, block=2048), 1.3, 1.0),
    Case("uniform 8 bits, stochastic", Uniform(8, "stochastic", 2048), None, 1.0, False),
    Case("uniform 8 bits, one scale", Uniform(8), None, 1.0, False),
    Case("uniform 4 bits, block 512", Uniform(4, block=512), 1.4, 1.0),
    Case("uniform 4 bits, stochastic", Uniform(4, "stochastic", 512), None, 1.0, False),
    Case("qsgd 8 bits", QSGD(127), 2.6, 1.1),
    Case("qsgd 2 bits", QSGD(1), None, None, False),
    Case("natural", Natural(), 1.4, 1.0),
    Case("terngrad", TernGrad(), 1.7, 1.0),
    Case("onebit", OneBit(), None, None),
    Case("signsgd", SignSGD(), 1.2, 0.9),
    Case("ef_signsgd", EFSignSGD(), None, None, False),
    Case("topk 10x", TopK(factor=10), 10.0),
    Case("topk 100x", TopK(factor=100), 3.0),
    Case("topk 1000x", TopK(factor=1000), 1.8),
    Case("topk 100x, int32 places", TopK(factor=100, indices="int32"), 3.0, None, False),
    Case("topk 100x, 8-bit values", TopK(factor=100, values="int8"), 3.0, None, False),
    Case("dgc_sampled 100x", DGCSampled(factor=100), 2.0),
    Case("redsync 100x", RedSync(factor=100), 3.0),
    Case("redsync 100x, quantized", RedSync(factor=100, quantized=True), None, None, False),
    Case("sidco 100x", SIDCo(factor=100), None),
    Case("threshold 100x", Threshold(factor=100), None, None, False),
    Case("randomk 100x", RandomK(factor=100), 1.6),
    Case("powersgd rank 4", PowerSGD(4), 3.5, 1.8),
)

COLUMNS = {
    "method": "setting",
    "compress": "compress_x",
    "at most": "compress_at_most",
    "verdict": "compress_verdict",
    "decompress": "decompress_x",
    "at most ": "decompress_at_most",
    "verdict ": "decompress_verdict",
    "error feedback adds": "error_feedback_x",
    f"verdict (at most {FEEDBACK_AT_MOST})": "error_feedback_verdict",
    "bits held a value": "held_bits_per_value",
    "bits sent a value": "sent_bits_per_value",
    "Elias-coded": "elias_bits_per_value",
    "eager compress": "eager_compress_x",
    "eager decompress": "eager_decompress_x",
}


@dataclass(frozen=True)
class Plan:
    """How much to measure."""

    num_values: int = NUM_VALUES
    repeats: int = 15
    rounds: int = ROUNDS
    eager_repeats: int = 1
    cases: Sequence[Case] = CASES

    @property
    def expected_seconds(self) -> float:
        """About, on two cores (AMD EPYC): some 25 copies an exchange, and tensor operations are slow."""
        exchanges = len(self.cases) * 2 * (self.repeats + WARMUP * self.rounds)
        return 10 + self.num_values / NUM_VALUES * (exchanges * 0.15 + len(self.cases) * 3)

    def describe(self) -> str:
        """For the head of the table."""
        return (
            f"{self.num_values:,} float32 values, {THREADS} threads; multiples of a copy_ into an "
            f"existing buffer timed right before; median of {self.repeats} repeats (middle half), in up to "
            f"{self.rounds} rounds over all methods, so that a slow minute of the machine meets each alike. "
            "Decompress: one worker's payload to the mean; error feedback adds: to both together."
        )


def measure(plan: Plan) -> list[Row]:
    """One row a method."""
    with threads(THREADS):
        gradient = heavy_tailed(plan.num_values)
        target = torch.empty_like(gradient)
        measured = [Measured(case, gradient, target) for case in plan.cases]
        for repeats in shares(plan.repeats, plan.rounds):
            for one in measured:
                one.add(repeats)
        return [one.row(plan.eager_repeats) for one in measured]


def heavy_tailed(num_values: int) -> Tensor:
    """A normal number times a log-normal one: a few values are hundreds of times the median. A matrix
    as square as can be, for methods that want one."""
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(num_values, generator=generator)
    values.mul_(torch.randn(num_values, generator=generator).exp_())
    rows = next(d for d in range(math.isqrt(num_values), 0, -1) if num_values % d == 0)
    return values.view(rows, -1)


@dataclass
class Measured:
    """A case, and what was measured of it: compress, decompress, and what error feedback adds to both, in
    copies timed right before."""

    case: Case
    gradient: Tensor
    target: Tensor
    compress: list[float] = field(default_factory=list)
    decompress: list[float] = field(default_factory=list)
    extra: list[float] = field(default_factory=list)
    copies: list[float] = field(default_factory=list)
    bare: Alone | None = None  # of the last round

    def add(self, repeats: int, warmup: int = WARMUP, *, feeds_back: bool = True) -> None:
        """Measure more. States are made anew: those of all cases at once would not fit."""
        compressor = self.case.compressor
        bare, fed = Alone(compressor, self.gradient), None
        if feeds_back and not getattr(compressor, "expands", False):
            fed = Alone(ErrorFeedback(compressor), self.gradient)
        for _ in range(warmup):
            bare.exchange()
            if fed:
                fed.exchange()
        for _ in range(repeats):
            one = seconds(lambda: self.target.copy_(self.gradient))
            first, second = bare.exchange()
            self.copies.append(one)
            self.compress.append(first / one)
            self.decompress.append(second / one)
            if fed:
                self.extra.append((sum(fed.exchange()) - first - second) / one)
        bare.forget()
        self.bare = bare

    def row(self, eager_repeats: int) -> Row:
        """Of the table."""
        assert self.bare is not None, "nothing was measured"
        case, num_values, bare = self.case, self.gradient.numel(), self.bare
        eager = Measured(case, self.gradient, self.target)
        with _eagerly():
            eager.add(eager_repeats, 0, feeds_back=False)
        row: dict[str, Any] = {"setting": case.name}
        for name, ratios, at_most in (
            ("compress", self.compress, case.compress_at_most),
            ("decompress", self.decompress, case.decompress_at_most),
            ("error_feedback", self.extra, FEEDBACK_AT_MOST),
        ):
            if not ratios:
                continue
            found = Spread.of(ratios)
            row |= {**found.columns(f"{name}_x"), f"{name}_at_most": at_most}
            row[f"{name}_verdict"] = found.verdict(at_most)
        return row | {
            "held_bits_per_value": 8 * bare.held_bytes / num_values,
            "sent_bits_per_value": 8 * bare.sent_bytes / num_values,
            "elias_bits_per_value": bare.elias_bits / num_values if bare.elias_bits else None,
            "held_bytes": bare.held_bytes,
            "sent_bytes": bare.sent_bytes,
            "eager_compress_x": statistics.median(eager.compress),
            "eager_decompress_x": statistics.median(eager.decompress),
            "copy_ms": 1e3 * statistics.median(self.copies),
        }


@dataclass
class Alone:
    """A compressor that exchanges with nobody: what it asks about is the answer."""

    compressor: Compressor
    gradient: Tensor
    workspace: Workspace = field(default_factory=Workspace)
    step: int = 0
    held_bytes: int = 0
    sent_bytes: int = 0
    elias_bits: int = 0  # of the paper's variable-length code, where the method has one

    def __post_init__(self) -> None:
        self.state: State = self.compressor.init(self.gradient)

    def forget(self) -> None:
        """Let go of what takes memory; what was counted stays."""
        self.state, self.workspace = {}, Workspace()

    def exchange(self) -> tuple[float, float]:
        """One step; seconds until the last request, and from its answer to the end."""
        context = Context("alone", self.step, 0, 0, 1, None, (0, 0), self.workspace)
        parts: list[tuple[int, torch.dtype]] = []
        begin = time.perf_counter()
        running = self.compressor.exchange(self.gradient, self.state, context)
        asked = next(running)
        while True:
            last = time.perf_counter()
            try:
                following = running.send(self._answer(asked, parts))
            except StopIteration as end:
                finished = time.perf_counter()
                self.state, self.step = end.value.state, self.step + 1
                self.held_bytes = num_bytes(end.value.own)
                # What packing lays into the buffer that goes out, its alignment included.
                self.sent_bytes = places(parts)[1]
                if isinstance(self.compressor, QSGD) and not self.elias_bits:
                    self.elias_bits = elias_bits(end.value.own.payload)
                return last - begin, finished - last
            asked = following

    def _answer(self, asked: Any, parts: list[tuple[int, torch.dtype]]) -> object:
        if isinstance(asked, Gather | GatherRagged):
            parts += [(part.numel(), part.dtype) for part in asked.payload.parts]
            return Gathered([asked.payload])
        parts.append((asked.tensor.numel(), asked.tensor.dtype))
        return asked.tensor


@contextmanager
def _eagerly() -> Iterator[None]:
    """Kernels as they run without a compiler."""
    before, usable = Compiler.enabled, native.usable
    Compiler.enabled = False
    native.usable = lambda tensor: False
    try:
        yield
    finally:
        Compiler.enabled, native.usable = before, usable
