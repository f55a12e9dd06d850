"""Operations of a training step, counted on a model without memory (torch's meta device)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode


class Operations(NamedTuple):
    """What forward and backward of a batch do.

    floating_point  multiplications and additions of matrix products and convolutions
    dispatched      operations of torch; a recurrent layer is one, as cuDNN computes it on a GPU
    kept_bytes      what forward keeps for backward, but for the weights
    """

    floating_point: int
    dispatched: int
    kept_bytes: int


class _Dispatched(TorchDispatchMode):
    """Counts operations of torch, those of backward too."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.count += 1
        return function(*args, **(kwargs or {}))


def operations_of(module: nn.Module, shape: Sequence[int], *, words: bool) -> Operations:
    """Count one batch. ``module``: on the meta device; ``shape``: of its input, f32, or i64 where it reads
    ``words`` and takes a hidden state."""
    kept: dict[int, int] = {}
    inside = forward = 0  # operations of recurrent layers, of the whole model

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage._cdata] = storage.nbytes()
        return tensor

    def begin(*_: Any) -> None:
        nonlocal inside
        inside -= dispatched.count

    def end(*_: Any) -> None:
        nonlocal inside
        inside += dispatched.count - 1

    for layer in module.modules():
        if isinstance(layer, nn.RNNBase):
            layer.register_forward_pre_hook(begin)
            layer.register_forward_hook(end)
    with torch.device("meta"), FlopCounterMode(display=False) as flops, _Dispatched() as dispatched:
        with saved_tensors_hooks(keep, lambda tensor: tensor):
            if words:
                outputs, _ = module(torch.zeros(shape, dtype=torch.int64), None)
            else:
                outputs = module(torch.zeros(shape))
        forward = dispatched.count
        outputs.sum().backward()
    weights = {parameter.untyped_storage()._cdata for parameter in module.parameters()}
    activations = sum(size for storage, size in kept.items() if storage not in weights)
    on_gpu = round(dispatched.count * (forward - inside) / forward)
    return Operations(flops.get_total_flops(), on_gpu, activations)
