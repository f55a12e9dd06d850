"""Compress and decompress one large gradient, in multiples of a `copy_` of the same tensor.

44,549,160 float32 values (ResNet101's size) with heavy tails, buffers made beforehand. ``eager`` is
what a machine without a C++ compiler or Python's headers gets, with the same values.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from bench_measure import Row, Spread, seconds
from torch import Tensor

from dgc_repro.compressor.error_feedback import ErrorFeedback
from dgc_repro.compressor.interface import Compressor, Context, State
from dgc_repro.compressor.uniform import Uniform
from dgc_repro.exchange.packing import places
from dgc_repro.exchange.payload import Codes, Gathered, num_bytes
from dgc_repro.kernel import native
from dgc_repro.kernel.fused import Compiler
from dgc_repro.kernel.workspace import Workspace

NUM_VALUES = 44_549_160
THREADS = min(2, os.cpu_count() or 1)
WARMUP = 2
COMPRESS_AT_MOST = {"nearest": 1.5, "stochastic": 2.6}
DECOMPRESS_AT_MOST = 1.2

SETTINGS = tuple(
    Uniform(bits=bits, rounding=rounding, block=block)
    for bits, block in ((8, 2048), (4, 512), (8, 512), (4, 2048), (8, None), (4, None))
    for rounding in ("nearest", "stochastic")
)

COLUMNS = {
    "setting": "setting",
    "compress": "compress_x",
    "at most": "compress_at_most",
    "verdict": "compress_verdict",
    "decompress, copy": "copy_to_x",
    "decompress, add": "add_to_x",
    "at most ": "decompress_at_most",
    "verdict ": "decompress_verdict",
    "error feedback adds": "error_feedback_x",
    "bits held a value": "held_bits_per_value",
    "bits sent a value": "sent_bits_per_value",
    "eager compress": "eager_compress_x",
    "eager decompress": "eager_copy_to_x",
}


@dataclass(frozen=True)
class Plan:
    """How much to measure."""

    num_values: int = NUM_VALUES
    repeats: int = 15
    eager_repeats: int = 2
    settings: Sequence[Uniform] = SETTINGS

    def describe(self) -> str:
        """For the head of the table."""
        return (
            f"{self.num_values:,} float32 values, {THREADS} threads; multiples of a copy_ into an "
            f"existing buffer timed right before; median of {self.repeats} repeats (middle half)"
        )


def measure(plan: Plan) -> list[Row]:
    """One row a setting."""
    before = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    try:
        gradient = heavy_tailed(plan.num_values)
        target = torch.empty_like(gradient)
        return [_row(setting, plan, gradient, target) for setting in plan.settings]
    finally:
        torch.set_num_threads(before)


def heavy_tailed(num_values: int) -> Tensor:
    """A normal number times a log-normal one: a few values are hundreds of times the median."""
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(num_values, generator=generator)
    return values.mul_(torch.randn(num_values, generator=generator).exp_())


def name(setting: Uniform) -> str:
    """A setting in words."""
    scale = f"block {setting.block}" if setting.block else "one scale"
    return f"{setting.bits} bits, {scale}, {setting.rounding}"


def _row(setting: Uniform, plan: Plan, gradient: Tensor, target: Tensor) -> Row:
    context = Context("gradient", 0, 0, 0, 2, None, (0, 0), Workspace())

    def compress() -> Codes:
        return setting.encode(gradient, context)

    payload = compress()

    def copy_out() -> None:
        payload.copy_to_(target, 0.5)

    def add_out() -> None:
        payload.add_to_(target, 0.5)

    def copy() -> None:
        target.copy_(gradient)

    compressing, copying, adding = _ratios([compress, copy_out, add_out], copy, plan.repeats)
    feedback = _error_feedback_extra(setting, gradient, copy, plan.repeats)
    with _eagerly():
        eager = _ratios([compress, copy_out], copy, plan.eager_repeats, warmup=0)
    # The targets are for blocks: one scale for all takes a pass over everything beforehand.
    compress_at_most = COMPRESS_AT_MOST[setting.rounding] if setting.block else None
    slower = max(copying, adding, key=lambda spread: spread.median)
    # What packing lays into the buffer that goes out, its alignment included.
    _, sent = places([(part.numel(), part.dtype) for part in payload.parts])
    return {
        "setting": name(setting),
        **compressing.columns("compress_x"),
        "compress_at_most": compress_at_most,
        "compress_verdict": compressing.verdict(compress_at_most),
        **copying.columns("copy_to_x"),
        **adding.columns("add_to_x"),
        "decompress_at_most": DECOMPRESS_AT_MOST,
        "decompress_verdict": slower.verdict(DECOMPRESS_AT_MOST),
        **feedback.columns("error_feedback_x"),
        "held_bits_per_value": 8 * num_bytes(payload) / plan.num_values,
        "sent_bits_per_value": 8 * sent / plan.num_values,
        "held_bytes": num_bytes(payload),
        "sent_bytes": sent,
        "eager_compress_x": eager[0].median,
        "eager_copy_to_x": eager[1].median,
        "copy_ms": 1e3 * Spread.of([seconds(copy) for _ in range(3)]).median,
    }


def _ratios(
    actions: Sequence[Callable[[], object]],
    unit: Callable[[], object],
    repeats: int,
    warmup: int = WARMUP,
) -> list[Spread]:
    """Each action in multiples of ``unit``, which runs right before it every time."""
    for action in actions:
        for _ in range(warmup):
            action()
    found: list[list[float]] = [[] for _ in actions]
    for _ in range(repeats):
        for action, ratios in zip(actions, found, strict=True):
            one = seconds(unit)
            ratios.append(seconds(action) / one)
    return [Spread.of(ratios) for ratios in found]


def _error_feedback_extra(
    setting: Uniform, gradient: Tensor, copy: Callable[[], object], repeats: int
) -> Spread:
    """A whole exchange (compress, decode the answer) with error feedback, less one without."""
    bare, wrapped = _Alone(setting, gradient), _Alone(ErrorFeedback(setting), gradient)
    for _ in range(WARMUP):
        bare.exchange()
        wrapped.exchange()
    extras = []
    for _ in range(repeats):
        one = seconds(copy)
        without = seconds(bare.exchange)
        extras.append((seconds(wrapped.exchange) - without) / one)
    return Spread.of(extras)


class _Alone:
    """A compressor that exchanges with nobody: its own payload is the answer."""

    def __init__(self, compressor: Compressor, gradient: Tensor) -> None:
        self._compressor = compressor
        self._gradient = gradient
        self._state: State = compressor.init(gradient)
        self._context = Context("alone", 0, 0, 0, 1, None, (0, 0), Workspace())

    def exchange(self) -> None:
        """One step."""
        running = self._compressor.exchange(self._gradient, self._state, self._context)
        asked = next(running)
        try:
            running.send(Gathered([asked.payload]))
        except StopIteration as end:
            self._state = end.value.state
            return
        raise AssertionError("a quantizer asks once")


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
