"""How much of a tensor a payload explains: what `Choose` compares.

||x||^2 - ||x - C(x)||^2 is ||C(x)||^2 where C keeps entries of x as they are (the ratio of GraVAC,
section III), and unlike it never counts noise that a quantizer adds as signal.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dgc_repro.compressor.interface import Context
from dgc_repro.exchange.payload import Payload
from dgc_repro.kernel import batch as kernels
from dgc_repro.kernel import select
from dgc_repro.kernel.batch import Batch


def explained(tensor: Tensor, payload: Payload, context: Context) -> Tensor:
    """||x||^2 - ||x - C(x)||^2: f64[], below zero where sending nothing would be nearer.

    tensor: x, f32, contiguous; payload: C(x)."""
    flat = tensor.view(-1)
    rest = context.scratch("unexplained", flat.numel(), torch.float32, flat.device).copy_(flat)
    payload.subtract_from_(rest)
    return select.energy(flat) - select.energy(rest)


def explained_of_each(batch: Batch, payload: Any, context: Context) -> Tensor:
    """The same of each tensor of a batch: f64[tensors]."""
    rest = Batch(batch.names, context.buffers("unexplained", batch), set())
    torch._foreach_copy_(list(rest.tensors), list(batch.tensors))
    payload.subtract_from_(rest)
    return kernels.energies(batch) - kernels.energies(rest)
