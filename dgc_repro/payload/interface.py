"""The interface of payloads, and the payloads of all workers together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, Self, TypeVar

import torch
from torch import Tensor

from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.layout import Kind, Layout, Numbers


class Payload(Protocol):
    """What one worker sends for one tensor. Its buffers are f32, n contiguous values."""

    @property
    def parts(self) -> tuple[Tensor, ...]:
        """Contiguous 1-d tensors, exactly the bytes that travel; wider element types first."""

    @property
    def num_floats(self) -> float:
        """Size in the papers' unit: values only, bits / 32; indices and scales are not counted."""

    def like(self, parts: Sequence[Tensor]) -> Self:
        """The payload of another worker, whose parts arrived; its layout is this one's."""

    def add_to_(self, buffer: Tensor, weight: float) -> None:
        """buffer += weight * decoded, in one pass."""

    def copy_to_(self, buffer: Tensor, weight: float) -> None:
        """buffer = weight * decoded, in one pass."""

    def subtract_from_(self, buffer: Tensor) -> None:
        """buffer -= decoded, in one pass."""


class Own(ABC):
    """What was sent of a batch: the ``own`` of an `Outcome`. That of a batch of one takes its tensor as
    well as a `Batch`."""

    @property
    @abstractmethod
    def parts(self) -> tuple[Tensor, ...]:
        """As of `Payload`."""

    @abstractmethod
    def like(self, parts: Sequence[Tensor]) -> Self:
        """As of `Payload`."""

    def subtract_from_(self, buffer: Batch | Tensor) -> None:
        """buffer -= decoded, in one pass."""
        self._subtract_from(as_batch(buffer))

    def zero_at_(self, buffer: Batch | Tensor) -> None:
        """Zero the entries that were sent; nothing where the payload has no places."""
        self._zero_at(as_batch(buffer))

    @abstractmethod
    def _subtract_from(self, batch: Batch) -> None: ...

    def _zero_at(self, batch: Batch) -> None:  # noqa: B027
        ...


@dataclass(frozen=True, slots=True)
class BatchPayload(Own):
    """What one worker sends for a batch, in the buffer in which it travels. That of one tensor is a `Payload`
    too. ``ragged``: whether sizes may differ between workers."""

    names: tuple[str, ...]
    layout: Layout
    buffer: Tensor  # u8[layout.size]
    ragged: ClassVar[bool] = False

    @property
    def parts(self) -> tuple[Tensor, ...]:
        ((length, unit),) = self.sent
        return (self.buffer[: length * unit.itemsize].view(unit),)

    @property
    def sent(self) -> list[Kind]:
        """Length and type of the one part. (To make it takes longer.)"""
        unit = self.layout.unit
        return [(-(-self.layout.end // unit.itemsize), unit)]

    @property
    def num_floats(self) -> float:
        return float(self.layout.floats.sum())

    @property
    def lengths(self) -> list[int]:
        """What must travel first where sizes differ between workers."""
        raise NotImplementedError

    def announced(self, lengths: Sequence[int] | Numbers) -> list[Self]:
        """Payloads laid out as those of workers with these `lengths`, one worker after another (their values
        do not matter)."""
        raise NotImplementedError

    def like(self, parts: Sequence[Tensor]) -> Self:
        ((length, unit),) = self.sent
        if [part.nbytes for part in parts] != [length * unit.itemsize]:
            kind = type(self).__name__.lower()
            raise ValueError(f"{kind} of another size than this worker's: send them with `Gather`")
        return replace(self, buffer=parts[0].view(torch.uint8))

    @abstractmethod
    def add_sum_to_(
        self, others: Sequence[Self], batch: Batch, weight: float, *, accumulate: bool
    ) -> None:
        """batch = or += weight * (this + others), added in this order, in one pass."""

    def add_to_(self, buffer: Batch | Tensor, weight: float) -> None:
        """As of `Payload`."""
        self.add_sum_to_((), as_batch(buffer), weight, accumulate=True)

    def copy_to_(self, buffer: Batch | Tensor, weight: float) -> None:
        """As of `Payload`."""
        self.add_sum_to_((), as_batch(buffer), weight, accumulate=False)

    def _subtract_from(self, batch: Batch) -> None:
        self.add_to_(batch, -1.0)


def as_batch(buffer: Batch | Tensor) -> Batch:
    """A single tensor as a batch of one."""
    return buffer if isinstance(buffer, Batch) else Batch((ALONE,), [buffer])


ALONE = "alone"
"""The name in a payload of one tensor, which does not know the tensor's own."""


def num_bytes(payload: Payload) -> int:
    """Bytes of all parts, from the tensors that are really sent, without what fills a buffer up."""
    if isinstance(payload, BatchPayload):
        return int(payload.layout.tensor_bytes.sum())
    return sum(part.nbytes for part in payload.parts)


Buffer = TypeVar("Buffer", Tensor, Batch)


class Gathered(Sequence[Payload]):
    """The payloads of all workers, in rank order: the answer to `Gather` and `GatherRagged`."""

    def __init__(self, payloads: Sequence[Payload]) -> None:
        self._payloads = payloads
        self._mean: Any = None

    def __len__(self) -> int:
        return len(self._payloads)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]  # int or slice, as a Sequence
        return self._payloads[index]

    def __iter__(self) -> Iterator[Payload]:
        return iter(self._payloads)

    def mean(self, buffer: Buffer) -> Buffer:
        """The average over workers, summed in rank order: the same bits on every rank.

        Written into ``buffer`` and returned. Simulated workers share one `Gathered`: the first
        one to ask pays, the others get its result.
        """
        return self.once(_average, buffer)

    def once(self, combine: Callable[[Sequence[Any], Buffer], None], buffer: Buffer) -> Buffer:
        """Another answer than the average: ``combine`` writes it into ``buffer``, for all simulated
        workers together."""
        if self._mean is None:
            combine(self._payloads, buffer)
            self._mean = buffer
        found: Buffer = self._mean
        return found


def _average(payloads: Sequence[Any], buffer: Tensor | Batch) -> None:
    weight = 1.0 / len(payloads)
    first, *others = payloads
    if isinstance(first, BatchPayload):
        first.add_sum_to_(others, as_batch(buffer), weight, accumulate=False)
        return
    first.copy_to_(buffer, weight)
    for payload in others:
        payload.add_to_(buffer, weight)
