"""Compress and decompress one large gradient, in multiples of a `copy_` of the same tensor.

44,549,160 float32 values (ResNet101's size) with heavy tails, buffers made beforehand. ``compress``
is a method's exchange up to its payload in the buffer that is sent, ``decompress`` what comes after the
answer; it exchanges with nobody (bench/alone.py). ``eager`` is what a machine without a C compiler gets, with
the same values.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from dgc_repro.bench.alone import Alone
from dgc_repro.bench.rounds import ROUNDS, Steps, rounds, spread_out, timed
from dgc_repro.bench.tables import Row, Spread, Table
from dgc_repro.compressor.bf16 import BF16
from dgc_repro.compressor.blockfloat import BlockFloat
from dgc_repro.compressor.dgc_sampled import DGCSampled
from dgc_repro.compressor.eden import EDEN
from dgc_repro.compressor.ef_signsgd import EFSignSGD
from dgc_repro.compressor.error_feedback import ErrorFeedback
from dgc_repro.compressor.fp16 import FP16
from dgc_repro.compressor.interface import Compressor, Context
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
from dgc_repro.kernel import native
from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.workspace import Workspace
from dgc_repro.launch.environment import threads

NUM_VALUES = 44_549_160
THREADS = min(2, os.cpu_count() or 1)
REPEATS, QUICK_REPEATS, WARMUP, EAGER_REPEATS = 15, 5, 2, 1
PARTS = ("compress_seconds", "decompress_seconds")
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
    Case("eden 4 bits", EDEN(4), None, None, False),
    Case("drive", EDEN(1), None, None, False),
    Case("mxfp8", BlockFloat("mxfp8"), None, None, False),
    Case("nvfp4", BlockFloat("nvfp4"), None, None, False),
    Case("onebit", OneBit(), None, None),
    Case("signsgd", SignSGD(), 1.2, 0.9),
    Case("ef_signsgd", EFSignSGD(), None, None, False),
    Case("topk 10x", TopK(factor=10), 10.0),
    Case("topk 100x", TopK(factor=100), 3.0),
    Case("topk 1000x", TopK(factor=1000), 1.8),
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
    "bits sent a value": "sent_bits_per_value",
    "Elias-coded": "elias_bits_per_value",
    "eager compress": "eager_compress_x",
    "eager decompress": "eager_decompress_x",
}
COPY, BARE, FED = "copy", "bare", "with error feedback"


def table(quick: bool) -> Table:
    """Of `make bench`. ``quick``: fewer repeats and settings."""
    repeats = QUICK_REPEATS if quick else REPEATS
    cases = [case for case in CASES if case.in_short or not quick]
    about = (
        f"{NUM_VALUES:,} float32 values, {THREADS} threads; multiples of a copy_ into an existing buffer "
        f"timed right before; median of {repeats} repeats (middle half), in up to {ROUNDS} rounds over all "
        "methods. "
        "Decompress: one worker's payload to the mean; error feedback adds: to both together."
    )
    exchanges = len(cases) * 2 * (repeats + WARMUP * ROUNDS)  # of some 25 copies each
    seconds = 10 + exchanges * 0.15 + len(cases) * 3
    return Table("methods", "Methods", about, COLUMNS, partial(measure, cases, repeats), seconds)


def measure(cases: Sequence[Case], repeats: int) -> list[Row]:
    """One row a method."""
    with threads(THREADS):
        # A matrix as square as can be, for methods that want one.
        side = next(d for d in range(math.isqrt(NUM_VALUES), 0, -1) if NUM_VALUES % d == 0)
        gradient = heavy_tailed((side, NUM_VALUES // side), torch.Generator().manual_seed(0))
        target = torch.empty_like(gradient)
        ways = {case.name: partial(_rounds, case.compressor, gradient, target) for case in cases}
        found = spread_out(ways, repeats)
        return [_row(case, found[case.name], gradient, target) for case in cases]


def _rounds(
    compressor: Compressor, gradient: Tensor, target: Tensor, repeats: int, warmup: int = WARMUP
) -> Steps:
    """A copy, the method, and it with error feedback. States are made anew: those of all cases at once would
    not fit."""
    ways = {
        COPY: timed(lambda: target.copy_(gradient)),
        BARE: Alone(compressor, {"gradient": gradient}).step,
    }
    if warmup and not getattr(compressor, "expands", False):
        ways[FED] = Alone(ErrorFeedback(compressor), {"gradient": gradient}).step
    return rounds(ways, repeats, warmup)


def _row(case: Case, steps: Steps, gradient: Tensor, target: Tensor) -> Row:
    with patch.object(native, "library", lambda: None):
        eager = _rounds(case.compressor, gradient, target, EAGER_REPEATS, warmup=0)
    copy, bare = steps[COPY]["seconds"], steps[BARE]
    ratios = {
        "compress": (bare["compress_seconds"] / copy, case.compress_at_most),
        "decompress": (bare["decompress_seconds"] / copy, case.decompress_at_most),
    }
    if FED in steps:
        extra = (steps[FED][list(PARTS)] - bare[list(PARTS)]).sum(axis=1)
        ratios["error_feedback"] = (extra / copy, FEEDBACK_AT_MOST)
    row: dict[str, Any] = {"setting": case.name}
    for name, (values, at_most) in ratios.items():
        found = Spread.of(values)
        row |= {**found.columns(f"{name}_x"), f"{name}_at_most": at_most}
        row[f"{name}_verdict"] = found.verdict(at_most)
    last, num_values = bare.iloc[-1], gradient.numel()
    for part in ("compress", "decompress"):
        times = eager[BARE][f"{part}_seconds"] / eager[COPY]["seconds"]
        row[f"eager_{part}_x"] = float(times.median())
    return row | {
        "sent_bits_per_value": 8 * float(last["sent_bytes"]) / num_values,
        "elias_bits_per_value": _elias_bits(case.compressor, gradient),
        "sent_bytes": int(last["sent_bytes"]),
    }


def _elias_bits(compressor: Compressor, gradient: Tensor) -> float | None:
    """Bits a value of the paper's variable-length code, where the method has one."""
    if not isinstance(compressor, QSGD):
        return None
    context = Context(0, 0, 0, 1, Workspace())
    own = compressor.encode_batch(Batch(("gradient",), [gradient]), context)
    return elias_bits(own) / gradient.numel()


def heavy_tailed(shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """Normal numbers times log-normal ones: a few values are hundreds of times the median."""
    values = torch.randn(shape, generator=generator)
    return values.mul_(torch.randn(shape, generator=generator).exp_())


def gradients_of(shapes: Mapping[str, torch.Size], worker: int) -> dict[str, Tensor]:
    """A worker's gradients of a model, f32 by name, with such values."""
    generator = torch.Generator().manual_seed(worker)
    return {name: heavy_tailed(shape, generator) for name, shape in shapes.items()}
