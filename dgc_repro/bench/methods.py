"""The time of a method, in multiples of a copy of the same gradients.

`table`, on the CPU: compress and decompress one tensor of 44,549,160 float32 values (ResNet101's size) with
heavy tails, buffers made beforehand. ``compress`` is a method's exchange up to its payload in the buffer that
is sent, ``decompress`` what comes after the answer; it exchanges with nobody (bench/alone.py).
DGC_REPRO_COMPILE=0 times what a machine without a C compiler gets, with the same values.

`gpu_table`: a step with the tensors of ResNet101, on this machine's GPU (`selfcheck` compares its values).
"""

from __future__ import annotations

import gc
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from dgc_repro.bench import launches
from dgc_repro.bench.alone import Alone
from dgc_repro.bench.counting import triton_counts
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
from dgc_repro.errors import UserError
from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.workspace import Workspace
from dgc_repro.launch.environment import threads
from dgc_repro.launch.overrides import composed
from dgc_repro.launch.settings import build_compressor, build_policy
from dgc_repro.study.compressing import wait_for

NUM_VALUES = 44_549_160
THREADS = min(2, os.cpu_count() or 1)
REPEATS, QUICK_REPEATS, WARMUP = 15, 5, 2
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
}
GPU_COLUMNS = {
    "method": "method",
    "step x copy": "step_x",
    "step ms": "step_ms",
    "Triton launches": "launches",
}
GPU_REPEATS, GPU_WARMUP = 20, 3
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
    seconds = 10 + exchanges * 0.15
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
        return [_row(case, found[case.name], gradient) for case in cases]


def _rounds(compressor: Compressor, gradient: Tensor, target: Tensor, repeats: int) -> Steps:
    """A copy, the method, and it with error feedback. States are made anew: those of all cases at once would
    not fit."""
    ways = {
        COPY: timed(lambda: target.copy_(gradient)),
        BARE: Alone(compressor, {"gradient": gradient}).step,
    }
    if not getattr(compressor, "expands", False):
        ways[FED] = Alone(ErrorFeedback(compressor), {"gradient": gradient}).step
    return rounds(ways, repeats, WARMUP)


def _row(case: Case, steps: Steps, gradient: Tensor) -> Row:
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
    sent_bytes, num_values = bare.iloc[-1]["sent_bytes"], gradient.numel()
    return row | {
        "sent_bits_per_value": 8 * float(sent_bytes) / num_values,
        "elias_bits_per_value": _elias_bits(case.compressor, gradient),
        "sent_bytes": int(sent_bytes),
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


def gpu_table(quick: bool) -> Table:
    """Of `make bench`. Raises UserError where torch finds no GPU."""
    if not torch.cuda.is_available():
        raise UserError(
            "only: gpu needs a GPU that torch finds (torch.cuda.is_available()); leave it out"
        )
    about = (
        f"{torch.cuda.get_device_name()}; heavy-tailed gradients of ResNet101 (44.5 M values in 314 "
        "tensors), methods as conf/compressor/ has them, layer by layer. Step: one worker's exchange "
        "with nobody, in multiples of a copy of all gradients timed right before; median of "
        f"{GPU_REPEATS} pairs (middle half)."
    )
    measured = partial(gpu_rows, torch.device("cuda"), GPU_REPEATS, launches.methods())
    return Table("gpu", "On the GPU", about, GPU_COLUMNS, measured, 300)


def gpu_rows(
    device: torch.device,
    repeats: int,
    cases: Mapping[str, Sequence[str]],
    overrides: Sequence[str] = (),
) -> list[Row]:
    """A row a method. ``overrides``: of the model."""
    base = ["model=resnet101", *overrides, "scale=none", "policy=fixed", "train.epochs=1"]
    shapes = launches.shapes_of(composed(base), 1000)
    gradients = {name: g.to(device) for name, g in gradients_of(shapes, 0).items()}
    copies = [torch.empty_like(gradient) for gradient in gradients.values()]

    def copy() -> None:
        torch._foreach_copy_(copies, list(gradients.values()))
        wait_for(device)

    made: list[Row] = []
    for name, own in cases.items():
        config = composed([*base, *own, "policy=fixed"])
        compressor = build_compressor(config, build_policy(config))
        alone = Alone(compressor, gradients, unit=config["exchange"]["unit"])
        found = rounds({COPY: timed(copy), BARE: alone.step}, repeats, GPU_WARMUP)
        before, *_ = triton_counts()
        alone.step()
        row = {"method": name, "launches": triton_counts()[0] - before}
        seconds = found[BARE]["seconds"]
        row |= Spread.of(seconds / found[COPY]["seconds"]).columns("step_x")
        made.append(row | Spread.of(1e3 * seconds).columns("step_ms"))
        gc.collect()
    return made
