"""Count what a step would ask of a GPU, on a machine that need not have one.

Tensors are fake CUDA tensors (exchange/pretended.py). A `Counting` sees every operation on them:

- launches: torch operations but views and allocations, each as one kernel (`_kernels` has the exceptions),
  and Triton launches;
- collectives of `torch.distributed`, which the `fake` process group answers at once. Every worker is taken
  to send what this one sends;
- host syncs: where the host waits for the device. That is every read of a value, every copy to the host (but
  a ``non_blocking`` one into pinned memory), a copy from the host that is not ``non_blocking``, a barrier,
  and a wait for an event, a stream or the device (`event_waits`). All work is taken to be on one stream: an
  event is over when the host has waited for something that was begun later;
- bytes: what operations read and write (inputs and outputs, whole), and what Triton kernels are handed
  (kernel/gpu/launch.py). Collectives are not among them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from typing import Any, Self
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor
from torch._subclasses.fake_tensor import DynamicOutputShapeException
from torch.testing._internal.distributed.fake_pg import FakeStore

from dgc_repro.exchange.pretended import COPIES, Pretended, tensors_in
from dgc_repro.exchange.pretended import on_gpu as _on_gpu
from dgc_repro.kernel.batch import on_gpu

CUDA = torch.device("cuda", 0)
ALLOCATIONS = ("empty", "new_empty", "_unsafe_view", "resize_", "set_")
ONLY_WRITE = ("copy_", "fill_", "zero_")  # their first argument
IN_LISTS, CHUNK, CHUNKS = (110, 64, 48, 36, 30), 65536, 320
"""A kernel of `torch._foreach_...` takes so many tensors of a list (by the number of lists) and so many
chunks of so many values; with CUDA 13 it takes more."""
IN_CAT = 128  # a kernel of `torch.cat` takes so many tensors


class Counting(Pretended):
    """Inside, everything is counted."""

    def __init__(self) -> None:
        super().__init__()
        self._pinned: set[int] = set()  # addresses on the host
        self._begun = self._over = 0  # events that were recorded, and those of them that are over
        self.waits: list[str] = []  # for the device, but those of `triton_counts`
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

    def read(self, tensor: Tensor, by: str, to: Tensor | None = None) -> Tensor:
        """The values of a tensor on the device, on the CPU."""
        if to is None or to.data_ptr() not in self._pinned:
            self._wait(by)
        return super().read(tensor, by, to)

    def stand_ins(self) -> list[tuple[Any, str, Any]]:
        """What is replaced inside: attributes of objects."""

        def pinned(tensor: Tensor) -> Tensor:
            self._pinned.add(tensor.data_ptr())
            return tensor

        return [
            (torch.cuda, "Event", _events(self)),
            (torch.cuda, "current_stream", lambda device=None: _Stream()),
            (torch.Tensor, "pin_memory", pinned),
            (torch.cuda, "synchronize", self._end_all),
            *super().stand_ins(),
        ]

    def __enter__(self) -> Self:
        super().__enter__()
        waits, self.waits = self.waits, self._inside.enter_context(event_waits())
        self.waits += waits
        return self

    def __torch_dispatch__(
        self, function: Any, types: Any, given: Any = (), named: Any = None
    ) -> Any:
        try:
            return super().__torch_dispatch__(function, types, given, named)
        except DynamicOutputShapeException:
            self.unanswered = str(function)
            raise

    def seen(
        self, function: Any, given: Any, named: Any, inputs: list[Tensor], outputs: list[Tensor]
    ) -> None:
        """Count an operation on the device."""
        super().seen(function, given, named, inputs, outputs)
        name = function.overloadpacket.__name__
        if function.namespace == "c10d":
            self.collectives += 1
            if name == "barrier":
                self._wait(name)
            if name == "_allgather_base_":
                everybody, own = inputs
                self._remember(everybody, self._known(own), everybody.nbytes // max(1, own.nbytes))
            return
        if function.is_view or function.namespace == "prim" or name.startswith(ALLOCATIONS):
            return
        if any(x.numel() for x in (*inputs, *outputs)):
            self.operations += [name] * _kernels(name, given)
            self._bytes += _touched(function, given, named, outputs)
            if _waits(name, inputs, given, named):
                self._wait(name)


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


@contextmanager
def event_waits() -> Iterator[list[str]]:
    """Inside, each wait of any thread of this process joins the list: ``event``, ``stream`` or ``device``.
    A wait for an event or a stream that is over already is none. torch itself reports the other waits, reads
    of values and copies that block (`torch.cuda.set_sync_debug_mode`)."""
    found: list[str] = []

    def counted(name: str, wait: Callable[..., Any]) -> Callable[..., Any]:
        def waits(*given: Any, **named: Any) -> Any:
            if name == "device" or not given[0].query():
                found.append(name)
            return wait(*given, **named)

        return waits

    with ExitStack() as inside:
        for owner, name in (
            (torch.cuda.Event, "event"),
            (torch.cuda.Stream, "stream"),
            (torch.cuda, "device"),
        ):
            wait = counted(name, owner.synchronize)
            inside.enter_context(patch.object(owner, "synchronize", wait))
        yield found


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


def _kernels(name: str, given: Any) -> int:
    """How many kernels an operation starts: one, but for many tensors more (torch's MultiTensorApply.cuh and
    Shape.cu)."""
    lists = [tensors_in(one) for one in given if isinstance(one, list | tuple)]
    if name.startswith("_foreach_"):
        chunks = sum(-(-x.numel() // CHUNK) for x in lists[0])
        return max(-(-len(lists[0]) // IN_LISTS[len(lists) - 1]), -(-chunks // CHUNKS))
    return -(-len(lists[0]) // IN_CAT) if name in ("cat", "stack") else 1


def _waits(name: str, inputs: list[Tensor], given: Any, named: Any) -> bool:
    """Whether an operation copies from the host and waits for it. A number is an argument of the kernel."""
    from_host = any(not _on_gpu(x) and (x.dim() > 0 or name in COPIES) for x in inputs)
    return from_host and not (named.get("non_blocking") or (name == "copy_" and True in given[2:]))


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
    reads = [x for name, value in arguments.items() if roles[name][0] for x in tensors_in(value)]
    writes = [x for name, value in arguments.items() if roles[name][1] for x in tensors_in(value)]
    every = (*reads, *(writes or outputs))
    return sum(min(x.nbytes, x.untyped_storage().nbytes()) for x in every if _on_gpu(x))
