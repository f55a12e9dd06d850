"""Copy numbers from a device to the host without waiting for what the device gets to do afterwards."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def fetched(tensor: Tensor) -> Callable[[], Tensor]:
    """Begin to copy a tensor to the host, and return a function that gives the copy.

    On a GPU the function waits until the copy is there; work that was begun later goes on meanwhile. A tensor
    of the CPU is given as it is."""
    if not tensor.is_cuda:
        return lambda: tensor
    copy = torch.empty(tensor.shape, dtype=tensor.dtype).pin_memory()
    copy.copy_(tensor, non_blocking=True)
    landed = torch.cuda.current_stream(tensor.device).record_event()

    def get() -> Tensor:
        landed.synchronize()
        return copy

    return get
