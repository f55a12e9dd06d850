"""Tensors on a GPU that need not exist.

Inside `Pretended`, a tensor on a GPU is a fake one (`FakeTensorMode`): it has a size and no values. Tensors
on the CPU stay real. A read is answered with the values that the host itself has sent to the device, or else
as if all gradients were finite. Where a size depends on values (`nonzero`), torch raises
DynamicOutputShapeException.

exchange/ahead.py finds in this way which kernels a step will start; bench/counting.py counts what a step asks
of a GPU.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, Self
from unittest.mock import patch

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

FAKE = FakeTensorMode(allow_non_fake_inputs=True)  # one for all: cached tensors belong to it
COPIES = ("_to_copy", "copy_")
STORAGE = 48  # bits: of places within a storage

_data_ptr = torch.UntypedStorage.data_ptr


class Pretended(TorchDispatchMode):
    """Inside, tensors on a GPU are fake. Not for several threads at once."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._values: dict[int, bytes] = {}  # by storage: what the host has sent there
        self._inside = ExitStack()

    def read(self, tensor: Tensor, by: str, to: Tensor | None = None) -> Tensor:
        """The values of a tensor on the device, on the CPU. ``by``: the operation that reads; ``to``: where
        it puts them on the host without waiting, if that is pinned."""
        known = self._known(tensor)
        with _disable_current_modes():
            # One bool says that all is well; zeros are no flags, and a mask without entries.
            well = tensor.dtype == torch.bool and tensor.dim() == 0
            return torch.full(tensor.shape, well, dtype=tensor.dtype) if known is None else known

    def numbers(self, tensor: Tensor, by: str = "tolist") -> Any:
        """The same as Python's numbers."""
        values = self.read(tensor, by)
        with _disable_current_modes():
            return values.tolist()

    def stand_ins(self) -> list[tuple[Any, str, Any]]:
        """What is replaced inside: attributes of objects."""

        def numbers(tensor: Tensor) -> Any:
            return self.numbers(tensor)

        return [
            (FakeTensor, "tolist", numbers),
            (FakeTensor, "data_ptr", lambda x: storage_of(x) + x.storage_offset() * x.itemsize),
            (torch.UntypedStorage, "data_ptr", _address),
        ]

    def __enter__(self) -> Self:
        self._inside.enter_context(FAKE)
        for owner, name, instead in self.stand_ins():
            self._inside.enter_context(patch.object(owner, name, instead))
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._inside.close()

    def __torch_dispatch__(
        self, function: Any, types: Any, given: Any = (), named: Any = None
    ) -> Any:
        named = named or {}
        name, inputs = function.overloadpacket.__name__, tensors_in((given, named))
        to = named.get("device")
        if not any(map(on_gpu, inputs)) and (to is None or to.type == "cpu"):
            with _disable_current_modes():  # the host's own work has real values
                return function(*given, **named)
        if name == "_local_scalar_dense":
            return self.numbers(inputs[0].view(()), "item")
        if name == "_to_copy" and to is not None and to.type == "cpu":
            values = self.read(inputs[0], name)
            with _disable_current_modes():
                return values.to(named.get("dtype") or values.dtype)
        if name == "copy_" and not on_gpu(given[0]):
            at_once = named.get("non_blocking") or True in given[2:]
            values = self.read(given[1], name, given[0] if at_once else None)
            with _disable_current_modes():
                return given[0].copy_(values)
        answer = function(*given, **named)
        self.seen(function, given, named, inputs, tensors_in(answer))
        return answer

    def seen(
        self, function: Any, given: Any, named: Any, inputs: list[Tensor], outputs: list[Tensor]
    ) -> None:
        """An operation has run on the device."""
        if not function.is_view and function.namespace not in ("prim", "c10d"):
            for tensor in outputs:
                self._values.pop(storage_of(tensor), None)
            name = function.overloadpacket.__name__
            if name in COPIES:
                self._remember(outputs[0], self._known(inputs[-1]))
            elif name == "cat" and all(one.dim() == 1 for one in inputs):
                values = [known for one in inputs if (known := self._known(one)) is not None]
                with _disable_current_modes():
                    joined = torch.cat(values) if len(values) == len(inputs) else None
                self._remember(outputs[0], joined)

    def _known(self, tensor: Tensor) -> Tensor | None:
        """The values of a contiguous tensor, where the host knows them."""
        if not on_gpu(tensor):
            return tensor
        values = self._values.get(storage_of(tensor))
        start = tensor.storage_offset() * tensor.itemsize
        if values is None or len(values) < start + tensor.nbytes:
            return None
        here = bytearray(values[start : start + tensor.nbytes])
        with _disable_current_modes():
            if not here:  # frombuffer takes no empty buffer
                return torch.empty(tensor.shape, dtype=tensor.dtype)
            return torch.frombuffer(here, dtype=tensor.dtype).view(tensor.shape)

    def _remember(self, tensor: Tensor, values: Tensor | None, times: int = 1) -> None:
        if values is not None and values.numel() and not tensor.storage_offset():
            with _disable_current_modes():
                self._values[storage_of(tensor)] = values.numpy().tobytes() * times


def storage_of(tensor: Tensor) -> int:
    """An address for the storage of a fake tensor, which has none."""
    number: int = tensor.untyped_storage()._cdata
    return number << STORAGE


def on_gpu(tensor: Tensor) -> bool:
    """Asking a fake tensor for its device costs a dispatch."""
    return isinstance(tensor, FakeTensor) and tensor.fake_device.type == "cuda"


def tensors_in(nest: Any) -> list[Tensor]:
    """All tensors of a nest."""
    return [leaf for leaf in tree_leaves(nest) if isinstance(leaf, Tensor)]


def _address(storage: torch.UntypedStorage) -> int:
    fake = storage.device.type == "meta"
    return storage._cdata << STORAGE if fake else _data_ptr(storage)
