"""Lower bounds of a step on a GPU, from counts (bench/launches.py): stated rates, nothing measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

BATCH = 32
"""Samples for which operations are counted."""
USED = 0.4
"""Share of a GPU's stated rate that forward and backward are taken to reach (an assumption)."""
LAUNCH_SECONDS, WAIT_SECONDS = 5e-6, 30e-6


@dataclass(frozen=True)
class GPU:
    """A GPU by the numbers of its maker: floating-point operations a second in float32 and in half precision,
    bytes that its memory moves a second, and bytes that it holds. ``tf32``: operations a second of
    convolutions in torch's default, 0 where the GPU has no TF32."""

    operations: float
    memory: float
    half: float
    bytes: float
    tf32: float = 0.0


GPUS = {
    "t4": GPU(8.1e12, 300e9, 65e12, 16e9),
    "v100": GPU(15.7e12, 900e9, 125e12, 16e9),
    "a100": GPU(19.5e12, 1555e9, 312e12, 40e9, 156e12),
    "h100": GPU(66.9e12, 3350e9, 990e12, 80e9, 495e12),
}
SHOWN = ("t4", "v100")
"""GPUs in the table of settings.py."""


def exchange_seconds(row: Mapping[str, float], larger: float, gpu: GPU) -> float:
    """Of compress and decompress, one after another: bytes, launches and waits that were counted for a model,
    for one that is ``larger`` times as large."""
    return (
        larger * row["touched_mb"] * 1e6 / gpu.memory
        + LAUNCH_SECONDS * row["launches"]
        + WAIT_SECONDS * row["syncs"]
    )


def compute_seconds(gflop: float, batch: int, gpu: GPU) -> float:
    """Of forward and backward of so many samples. ``gflop``: of `BATCH` samples."""
    return gflop * 1e9 * batch / BATCH / (USED * gpu.operations)
