"""The interface of payloads, and the payloads of all workers together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Protocol, Self, TypeVar

import torch
from torch import Tensor

from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.layout import Kind


class Payload(Protocol):
    """What one worker sends for one tensor."""

    @property
    def parts(self) -> tuple[Tensor, ...]:
        """Contiguous 1-d tensors, exactly the bytes that travel; wider element types first."""

    @property
    def num_floats(self) -> float:
        """Size in the papers' unit: values only, bits / 32; indices and scales are not counted."""

    def like(self, parts: Sequence[Tensor]) -> Self:
        """The payload of another worker, whose parts arrived; its layout is this one's."""

    def add_to_(self, buffer: Tensor, weight: float) -> None:
        """buffer += weight * decoded, in one pass. buffer: f32, n contiguous values."""

    def copy_to_(self, buffer: Tensor, weight: float) -> None:
        """buffer = weight * decoded, in one pass."""

    def subtract_from_(self, buffer: Tensor) -> None:
        """buffer -= decoded, in one pass."""

    def dense(self) -> Tensor:
        """The decoded values as a new tensor: f32[n]. For tests and references."""


class BatchPayload(ABC):
    """What one worker sends for a batch, in the buffer in which it travels. Decoding takes a `Batch` where
    a payload of one tensor takes a buffer; `dense` gives a list."""

    names: tuple[str, ...]
    buffer: Tensor  # u8, its size a multiple of 8
    unit: ClassVar[torch.dtype] = (
        torch.int64
    )  # the widest type inside: where another payload may follow

    @property
    def parts(self) -> tuple[Tensor, ...]:
        size = self.unit.itemsize
        return (self.buffer[: -(-self.num_bytes // size) * size].view(self.unit),)

    @property
    @abstractmethod
    def num_bytes(self) -> int:
        """Bytes from the first value to the last."""

    @abstractmethod
    def by_tensor(self) -> list[tuple[int, float]]:
        """Bytes of the parts of each tensor, and its size in the papers' unit."""

    @property
    def tensor_kinds(self) -> Sequence[tuple[Kind, ...]]:
        """Lengths and types of the parts of each tensor; as bytes, where a payload tells no more."""
        return [((size, torch.uint8),) for size, _ in self.by_tensor()]

    @property
    def num_floats(self) -> float:
        """As of `Payload`."""
        return sum(floats for _, floats in self.by_tensor())

    ragged: ClassVar[bool] = False  # whether sizes may differ between workers

    @property
    def lengths(self) -> list[int]:
        """What must travel first where sizes differ between workers."""
        raise NotImplementedError

    def kinds(self, lengths: Sequence[int]) -> list[Kind]:
        """Length and type of the part that comes from a worker with these lengths."""
        raise NotImplementedError

    def like_ragged(self, parts: Sequence[Tensor], lengths: Sequence[int]) -> Any:
        """The payload of a worker with these lengths, whose part arrived."""
        raise NotImplementedError

    @abstractmethod
    def like(self, parts: Sequence[Tensor]) -> Any:
        """As of `Payload`."""

    @abstractmethod
    def add_sum_to_(
        self, others: Sequence[Any], batch: Batch, weight: float, *, accumulate: bool
    ) -> None:
        """batch = or += weight * (this + others), added in this order, in one pass."""

    def add_to_(self, batch: Batch, weight: float) -> None:
        self.add_sum_to_((), batch, weight, accumulate=True)

    def copy_to_(self, batch: Batch, weight: float) -> None:
        self.add_sum_to_((), batch, weight, accumulate=False)

    def copy_sum_to_(self, others: Sequence[Any], batch: Batch, weight: float) -> bool:
        self.add_sum_to_(others, batch, weight, accumulate=False)
        return True

    def subtract_from_(self, batch: Batch) -> None:
        self.add_to_(batch, -1.0)

    def zero_at_(self, batch: Batch) -> None:  # noqa: B027
        """Zero the entries that were sent; nothing where the payload has no places."""


AnyPayload = Payload | BatchPayload


def num_bytes(payload: AnyPayload) -> int:
    """Bytes of all parts, from the tensors that are really sent."""
    if hasattr(payload, "num_bytes"):
        return int(payload.num_bytes)
    return sum(part.nbytes for part in payload.parts)


class DecodesTogether(Protocol):
    """What a payload may have besides: a sum with others of its kind in one pass over the buffer."""

    def copy_sum_to_(self, others: Sequence[Any], buffer: Tensor, weight: float) -> bool:
        """buffer = weight * (this + others), added in this order with the bits of `copy_to_` and
        `add_to_` one after another. False, and nothing done, where it cannot be had here."""


Buffer = TypeVar("Buffer", Tensor, Batch)


class HasPlaces(Protocol):
    """What a payload may have besides, when it holds some entries of a tensor and not others."""

    @property
    def indices(self) -> Tensor:
        """Their places: i32[k] or i64[k], ascending."""


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
    together = getattr(first, "copy_sum_to_", None)  # isinstance of a protocol is slow
    if together is None or not together(others, buffer, weight):
        first.copy_to_(buffer, weight)
        for payload in others:
            payload.add_to_(buffer, weight)
