"""How the values of chosen entries travel: whole, as halves, or as 8-bit codes (kernel/sparse.py)."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor

from dgc_repro.kernel import codes as code_kernels
from dgc_repro.kernel import sparse as kernels

Count = TypeVar("Count", int, kernels.Numbers)
VALUES = {"fp32": kernels.FP32, "fp16": kernels.FP16, "int8": kernels.INT8}
"""Name in the settings -> kind."""
DTYPES = {
    kernels.FP32: torch.float32, kernels.FP16: torch.float16, kernels.INT8: torch.uint8,
    kernels.SHARED: torch.float32,
}  # fmt: skip


def num_scales(k: Count, kind: int) -> Count:
    """Scales that travel beside k values."""
    return -(-k // kernels.SCALE_WIDTH) if kind == kernels.INT8 else 0 * k


def code_values(values: Tensor, kind: int) -> tuple[Tensor, Tensor | None]:
    """Values as they travel, and their scales, by tensor operations. values: f32[k] -> f32[k] (the same
    tensor), f16[k] or u8[k], and f32[num_scales] of 8-bit ones."""
    k, device = values.numel(), values.device
    if kind == kernels.FP32:
        return values, None
    if kind == kernels.FP16:
        return values.clamp(-kernels.LARGEST_HALF, kernels.LARGEST_HALF).half(), None
    coded = torch.empty(k, dtype=torch.uint8, device=device)
    scales = torch.empty(num_scales(k, kind), device=device)
    width = kernels.SCALE_WIDTH
    quantize = code_kernels.quantizer(8, code_kernels.NEAREST, own_scale=True)
    unused = torch.zeros((), dtype=torch.int32, device=device)
    for start, end, columns in ((0, k // width * width, width), (k // width * width, k, k % width)):
        if end > start:
            rows = values[start:end].view(-1, 1, columns)
            own = scales[start // width : -(-end // width)]
            quantize(rows, own, unused, unused, coded[start:end].view(-1, columns))
    return coded, scales
