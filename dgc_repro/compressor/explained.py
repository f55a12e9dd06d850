"""How much of a tensor a payload explains: what a policy compares.

||x||^2 - ||x - C(x)||^2 is ||C(x)||^2 where C keeps entries of x as they are (the ratio of GraVAC,
section III), and unlike it never counts noise that a quantizer adds as signal.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dgc_repro.compressor.interface import Context
from dgc_repro.kernel import batch as kernels
from dgc_repro.kernel.batch import Batch


def explained_of_each(batch: Batch, payload: Any, context: Context) -> Tensor:
    """||x||^2 - ||x - C(x)||^2 of each tensor: f64[tensors]. Below zero sending nothing
    would be nearer.

    batch: x; payload: C(x)."""
    rest = Batch(batch.names, context.buffers("unexplained", batch))
    torch._foreach_copy_(list(rest.tensors), list(batch.tensors))
    payload.subtract_from_(rest)
    return kernels.energies(batch) - kernels.energies(rest)
