"""Count what a step would ask of a GPU, on a machine that need not have one.

Tensors are fake CUDA tensors (`FakeTensorMode`): they have a size and no values. A `Counting` sees every
operation on them:

- launches: torch operations but views and allocations, each as one kernel (`_kernels` has the exceptions),
  and Triton launches;
- collectives of `torch.distributed`, which the `fake` process group answers at once. Every worker is taken
  to send what this one sends;
- host syncs: where the host waits for the device. That is every read of a value, every copy to the host (but
  a ``non_blocking`` one into pinned memory), a copy from the host that is not ``non_blocking``, a barrier,
  and a wait for an event, a stream or the device (bench/waits.py). All work is taken to be on one stream: an
  event is over when the host has waited for something that was begun later;
- bytes: what operations read and write (inputs and outputs, whole), and what Triton kernels are handed
  (kernel/gpu/launch.py). Collectives are not among them.

A read is answered with the values that the host itself has sent to the device, or else as if all gradients
were finite. Where a size depends on values (`nonzero`), torch raises DynamicOutputShapeException.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from typing import Any, Self
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensor, FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from dgc_repro.bench.waits import event_waits
from dgc_repro.kernel.batch import on_gpu

CUDA = torch.device("cuda", 0)
FAKE = FakeTensorMode(allow_non_fake_inputs=True)  # one for all: cached tensors belong to it
ALLOCATIONS = ("empty", "new_empty", "_unsafe_view", "resize_", "set_")
COPIES = ("_to_copy", "copy_")
ONLY_WRITE = ("copy_", "fill_", "zero_")  # their first argument
IN_LISTS, CHUNK, CHUNKS = (110, 64, 48, 36, 30), 65536, 320
"""A kernel of `torch._foreach_...` takes so many tensors of a list (by the number of lists) and so many
chunks of so many values; with CUDA 13 it takes more."""
IN_CAT = 128  # a kernel of `torch.cat` takes so many tensors
STORAGE = 48  # bits: of places within a storage


class Counting(TorchDispatchMode):
    """Inside, everything is counted."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._values: dict[int, bytes] = {}  # by storage: what the host has sent there
        self._pinned: set[int] = set()  # addresses on the host
        self._begun = self._over = 0  # events that were recorded, and those of them that are over
        self.waits: list[str] = []  # for the device, but those of `triton_counts`
        self._inside = ExitStack()
        self.clear()

    def clear(self) -> None:
        """Count from zero."""
        self.operations: list[str] = []
        self.waits.clear()
        self.unanswered = ""  # an operation whose result has a size that depends on values
        self.collectives = self._bytes = 0
        self._before = triton_counts()

    @property
    def triton(self) -> int:
        """Launches of our own kernels."""
        return self._of_triton(0)

    @property
    def launches(self) -> int:
        """Of all kernels, where each operation is one."""
        return len(self.operations) + self.triton

    @property
    def bytes_touched(self) -> int:
        """Read and written."""
        return self._bytes + self._of_triton(1)

    @property
    def syncs(self) -> int:
        """How often the host has waited for the device."""
        return len(self.waits) + self._of_triton(2)

    def _of_triton(self, which: int) -> int:
        return triton_counts()[which] - self._before[which]

    def sync(self, *_: object) -> None:
        """The host waits for the device."""
        self._wait("device")

    def record(self) -> tuple[int, int]:
        """Begin an event: how `is_over` knows it."""
        self._begun += 1
        return self._begun, self._of_triton(2)

    def is_over(self, event: tuple[int, int]) -> bool:
        """Whether the host has waited for the event, or for something that was begun later."""
        return event[0] <= self._over or self._of_triton(2) > event[1]

    def end(self, event: tuple[int, int]) -> None:
        """The host has waited for the event."""
        self._over = max(self._over, event[0])

    def _wait(self, by: str) -> None:
        """The host waits for all that was begun."""
        self.waits.append(by)
        self._end_all()

    def _end_all(self, *_: object) -> None:
        self._over = self._begun

    def read(self, tensor: Tensor, by: str, *, waits: bool = True) -> Tensor:
        """The values of a tensor on the device, on the CPU."""
        if waits:
            self._wait(by)
        known = self._known(tensor)
        with _disable_current_modes():
            if (
                known is None
            ):  # one bool says that all is well; zeros are no flags, and a mask without entries
                well = tensor.dtype == torch.bool and tensor.dim() == 0
                known = torch.full(tensor.shape, well, dtype=tensor.dtype)
            return known

    def numbers(self, tensor: Tensor, by: str = "tolist") -> Any:
        """The same as Python's numbers."""
        values = self.read(tensor, by)
        with _disable_current_modes():
            return values.tolist()

    def __enter__(self) -> Self:
        def numbers(tensor: Tensor) -> Any:
            return self.numbers(tensor)

        def pinned(tensor: Tensor) -> Tensor:
            self._pinned.add(tensor.data_ptr())
            return tensor

        self._inside.enter_context(FAKE)
        for owner, name, function in (
            (torch.cuda, "Event", _events(self)),
            (torch.cuda, "current_stream", lambda device=None: _Stream()),
            (torch.Tensor, "pin_memory", pinned),
            (FakeTensor, "tolist", numbers),
            (FakeTensor, "data_ptr", lambda x: _storage(x) + x.storage_offset() * x.itemsize),
            (torch.UntypedStorage, "data_ptr", lambda storage: storage._cdata << STORAGE),
            (torch.cuda, "synchronize", self._end_all),
        ):
            self._inside.enter_context(patch.object(owner, name, function, create=True))
        waits, self.waits = self.waits, self._inside.enter_context(event_waits())
        self.waits += waits
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._inside.close()

    def __torch_dispatch__(
        self, function: Any, types: Any, given: Any = (), named: Any = None
    ) -> Any:
        named = named or {}
        name, inputs = function.overloadpacket.__name__, _tensors((given, named))
        to = named.get("device")
        if not any(map(_on_gpu, inputs)) and (to is None or to.type == "cpu"):
            with _disable_current_modes():  # the host's own work has real values
                return function(*given, **named)
        if name == "_local_scalar_dense":
            return self.numbers(inputs[0].view(()), "item")
        if name == "_to_copy" and to is not None and to.type == "cpu":
            values = self.read(inputs[0], name)
            with _disable_current_modes():
                return values.to(named.get("dtype") or values.dtype)
        if name == "copy_" and not _on_gpu(given[0]):
            is_pinned = given[0].data_ptr() in self._pinned and (
                named.get("non_blocking") or True in given[2:]
            )
            values = self.read(given[1], name, waits=not is_pinned)
            with _disable_current_modes():
                return given[0].copy_(values)
        try:
            answer = function(*given, **named)
        except DynamicOutputShapeException:
            self.unanswered = str(function)
            raise
        outputs = _tensors(answer)
        if function.namespace == "c10d":
            self.collectives += 1
            if name == "barrier":
                self._wait(name)
            if name == "_allgather_base_":
                everybody, own = inputs
                self._remember(everybody, self._known(own), everybody.nbytes // max(1, own.nbytes))
        elif not function.is_view and function.namespace != "prim":
            for tensor in outputs:
                self._values.pop(_storage(tensor), None)
            if name in COPIES:
                self._remember(outputs[0], self._known(inputs[-1]))
            if not name.startswith(ALLOCATIONS) and any(x.numel() for x in (*inputs, *outputs)):
                self.operations += [name] * _kernels(name, given)
                self._bytes += _touched(function, given, named, outputs)
                if _waits(name, inputs, given, named):
                    self._wait(name)
        return answer

    def _known(self, tensor: Tensor) -> Tensor | None:
        """The values of a contiguous tensor, where the host knows them."""
        if not _on_gpu(tensor):
            return tensor
        values = self._values.get(_storage(tensor))
        if values is None:
            return None
        start = tensor.storage_offset() * tensor.itemsize
        here = bytearray(values[start : start + tensor.nbytes])
        with _disable_current_modes():
            return torch.frombuffer(here, dtype=tensor.dtype).view(tensor.shape)

    def _remember(self, tensor: Tensor, values: Tensor | None, times: int = 1) -> None:
        if values is not None and values.numel():
            with _disable_current_modes():
                self._values[_storage(tensor)] = values.numpy().tobytes() * times


def _events(counting: Counting) -> type:
    """A class in place of `torch.cuda.Event`."""

    class Event:
        def __init__(self, **_: bool) -> None:
            self.record()

        def record(self, stream: object = None) -> None:
            self._event = counting.record()

        def query(self) -> bool:
            return counting.is_over(self._event)

        def synchronize(self) -> None:
            counting.end(self._event)

        def elapsed_time(self, end: Event) -> float:
            if not (self.query() and end.query()):
                raise RuntimeError("device not ready")  # as CUDA says
            return 1.0

    return Event


class _Stream:
    """The one stream of the fake device."""

    cuda_stream = 0

    def record_event(self) -> Any:
        event = torch.cuda.Event()
        event.record()
        return event

    def wait_event(self, event: Any) -> None:
        """All is on this stream."""


def triton_counts() -> tuple[int, int, int]:
    """Of our kernels, in this process: launches, bytes that they touch on fake tensors, and reads of their
    numbers (answered with expected ones)."""
    if not on_gpu(()):  # no Triton here
        return 0, 0, 0
    from dgc_repro.kernel.gpu.launch import Launches

    return Launches.count, Launches.touched, getattr(Launches, "reads", 0)


@contextmanager
def fake_workers(number: int) -> Iterator[None]:
    """Inside, this process is rank 0 of so many. The others do not exist, and collectives return at once."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=number)
    try:
        yield
    finally:
        dist.destroy_process_group()


def _storage(tensor: Tensor) -> int:
    """An address for the storage of a fake tensor, which has none."""
    number: int = tensor.untyped_storage()._cdata
    return number << STORAGE


def _on_gpu(tensor: Tensor) -> bool:
    """Asking a fake tensor for its device costs a dispatch."""
    return isinstance(tensor, FakeTensor) and tensor.fake_device.type == "cuda"


def _kernels(name: str, given: Any) -> int:
    """How many kernels an operation starts: one, but for many tensors more (torch's MultiTensorApply.cuh and
    Shape.cu)."""
    lists = [_tensors(one) for one in given if isinstance(one, list | tuple)]
    if name.startswith("_foreach_"):
        chunks = sum(-(-x.numel() // CHUNK) for x in lists[0])
        return max(-(-len(lists[0]) // IN_LISTS[len(lists) - 1]), -(-chunks // CHUNKS))
    return -(-len(lists[0]) // IN_CAT) if name in ("cat", "stack") else 1


def _waits(name: str, inputs: list[Tensor], given: Any, named: Any) -> bool:
    """Whether an operation copies from the host and waits for it. A number is an argument of the kernel."""
    from_host = any(not _on_gpu(x) and (x.dim() > 0 or name in COPIES) for x in inputs)
    return from_host and not (named.get("non_blocking") or (name == "copy_" and True in given[2:]))


def _tensors(nest: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(nest) if isinstance(leaf, Tensor)]


@lru_cache(maxsize=1024)
def _roles(function: Any) -> dict[str, tuple[bool, bool]]:
    """Whether an operation reads and writes each of its arguments."""
    found = {}
    for place, argument in enumerate(function._schema.arguments):
        writes = argument.alias_info is not None and argument.alias_info.is_write
        only_out = writes and argument.kwarg_only
        first_of = place == 0 and function.overloadpacket.__name__ in ONLY_WRITE
        found[argument.name] = not (only_out or first_of), writes
    return found


def _touched(function: Any, given: Any, named: Any, outputs: list[Tensor]) -> int:
    """Bytes on the device that an operation reads and writes."""
    roles = _roles(function)
    arguments = dict(zip(roles, given, strict=False)) | named
    reads = [x for name, value in arguments.items() if roles[name][0] for x in _tensors(value)]
    writes = [x for name, value in arguments.items() if roles[name][1] for x in _tensors(value)]
    every = (*reads, *(writes or outputs))
    return sum(min(x.nbytes, x.untyped_storage().nbytes()) for x in every if _on_gpu(x))
