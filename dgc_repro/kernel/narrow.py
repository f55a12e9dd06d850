"""float32 to fp16 or bf16 and back, all tensors of a batch in one pass each way.

Rounded to nearest, ties to even; a finite value beyond the narrow type's range becomes its largest
one, what is not finite stays so. In the narrow type the tensors lie one after another in one buffer.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dgc_repro.kernel.batch import Batch, integers, starts
from dgc_repro.kernel.native import Function

KINDS = {torch.float16: 0, torch.bfloat16: 1}

_narrow = Function("dgc_narrow_all")
_widen = Function("dgc_widen_all")


def largest(dtype: torch.dtype) -> float:
    """The largest finite number of a type."""
    return torch.finfo(dtype).max


def narrow(x: Batch, to: Tensor) -> None:
    """x: f32 -> to: fp16[n] or bf16[n], where n counts the values of all tensors."""
    limit = largest(to.dtype)
    if x.native:
        _narrow(
            len(x), x.lengths, x.pointers, integers(starts(x.sizes)), to.data_ptr(), KINDS[to.dtype],
            limit,
        )  # fmt: skip
        return
    if x.on_gpu:
        from dgc_repro.kernel.gpu import dense

        dense.narrow(x, to, limit)
        return
    for tensor, half in zip(x.tensors, to.split(x.sizes), strict=True):
        flat = tensor.view(-1)
        half.copy_(torch.where(flat.isinf(), flat, flat.clamp(-limit, limit)))


def widen(
    half: Tensor, x: Batch, weight: float, *, accumulate: bool, saturate: bool = False
) -> None:
    """x (f32) = or += weight * half (fp16[n] or bf16[n]). With ``saturate`` an infinity counts as the
    narrow type's largest number."""
    limit = largest(half.dtype) if saturate else math.inf
    if x.native and half.is_contiguous():
        _widen(
            len(x), x.lengths, half.data_ptr(), integers(starts(x.sizes)), x.pointers,
            KINDS[half.dtype], weight, limit, accumulate,
        )  # fmt: skip
        return
    if x.on_gpu and half.is_contiguous():
        from dgc_repro.kernel.gpu import dense

        dense.widen(half, x, weight, limit, accumulate=accumulate)
        return
    for tensor, part in zip(x.tensors, half.split(x.sizes), strict=True):
        values = part.float()
        if saturate:
            values.clamp_(-limit, limit)
        values *= weight
        flat = tensor.view(-1)
        flat.add_(values) if accumulate else flat.copy_(values)
