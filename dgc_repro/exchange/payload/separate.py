"""Payloads of a batch whose tensors were not all compressed together: one by one, or in parts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from torch import Tensor

from dgc_repro.exchange.payload.interface import num_bytes
from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.layout import Kind


@dataclass(frozen=True, slots=True)
class Several(ABC):
    """What was sent of a batch, in several payloads. It is never sent as such: its payloads have been."""

    payloads: tuple[Any, ...]

    @abstractmethod
    def views(self, batch: Batch) -> Iterable[Any]:
        """What each payload is of: a tensor, or a batch."""

    @abstractmethod
    def by_tensor(self) -> list[tuple[int, float]]:
        """Bytes and floats of each tensor."""

    @abstractmethod
    def dense(self) -> list[Tensor]:
        """f32[n] of each tensor."""

    @property
    def parts(self) -> tuple[Tensor, ...]:
        return tuple(part for payload in self.payloads for part in payload.parts)

    @property
    def num_floats(self) -> float:
        number: float = sum(payload.num_floats for payload in self.payloads)
        return number

    def like(self, parts: Sequence[Tensor]) -> Self:
        given = iter(parts)
        payloads = [p.like([next(given) for _ in p.parts]) for p in self.payloads]
        return replace(self, payloads=tuple(payloads))

    def subtract_from_(self, batch: Batch) -> None:
        for payload, view in zip(self.payloads, self.views(batch), strict=True):
            payload.subtract_from_(view)

    def zero_at_(self, batch: Batch) -> None:
        """Zero the entries that were sent; nothing where a payload has no places."""
        for payload, view in zip(self.payloads, self.views(batch), strict=True):
            zero_where_sent(view, payload)


@dataclass(frozen=True, slots=True)
class Separate(Several):
    """A payload for each tensor."""

    def views(self, batch: Batch) -> Sequence[Tensor]:
        return batch.tensors

    def by_tensor(self) -> list[tuple[int, float]]:
        return [(num_bytes(payload), payload.num_floats) for payload in self.payloads]

    def dense(self) -> list[Tensor]:
        return [payload.dense() for payload in self.payloads]


def zero_where_sent(tensor: Any, payload: Any) -> None:
    """Zero the entries that were sent; nothing where the payload has no places."""
    if hasattr(payload, "zero_at_"):
        payload.zero_at_(tensor)
        return
    indices = getattr(payload, "indices", None)  # HasPlaces; isinstance of a protocol is slow
    if indices is not None:
        tensor.view(-1).index_fill_(0, indices.long(), 0.0)


@dataclass(frozen=True, slots=True)
class Parted(Several):
    """A payload for each part of a batch. ``places``: which tensors a part has."""

    places: tuple[tuple[int, ...], ...]

    def views(self, batch: Batch) -> list[Batch]:
        return [batch.part(where) for where in self.places]

    def by_tensor(self) -> list[tuple[int, float]]:
        return self._in_order(payload.by_tensor() for payload in self.payloads)

    def dense(self) -> list[Tensor]:
        return self._in_order(payload.dense() for payload in self.payloads)

    def _in_order(self, by_part: Iterable[Sequence[Any]]) -> list[Any]:
        found = {
            place: value
            for of_part, where in zip(by_part, self.places, strict=True)
            for place, value in zip(where, of_part, strict=True)
        }
        return [found[place] for place in sorted(found)]


@dataclass(frozen=True, slots=True)
class Alone:
    """The payload of a batch of one, as that of its tensor."""

    payload: Any

    @property
    def parts(self) -> tuple[Tensor, ...]:
        parts: tuple[Tensor, ...] = self.payload.parts
        return parts

    @property
    def num_floats(self) -> float:
        number: float = self.payload.num_floats
        return number

    @property
    def num_bytes(self) -> int:
        """Without what fills a buffer up."""
        return int(self.payload.by_tensor()[0][0])

    @property
    def ragged(self) -> bool:
        return bool(getattr(self.payload, "ragged", False))

    @property
    def lengths(self) -> list[int]:
        numbers: list[int] = self.payload.lengths
        return numbers

    def kinds(self, lengths: Sequence[int]) -> list[Kind]:
        kinds: list[Kind] = self.payload.kinds(lengths)
        return kinds

    def like_ragged(self, parts: Sequence[Tensor], lengths: Sequence[int]) -> Alone:
        return Alone(self.payload.like_ragged(parts, lengths))

    def like(self, parts: Sequence[Tensor]) -> Alone:
        return Alone(self.payload.like(parts))

    def add_to_(self, buffer: Tensor, weight: float) -> None:
        self.payload.add_to_(_batch(buffer), weight)

    def copy_to_(self, buffer: Tensor, weight: float) -> None:
        self.payload.copy_to_(_batch(buffer), weight)

    def copy_sum_to_(self, others: Sequence[Alone], buffer: Tensor, weight: float) -> bool:
        every = [other.payload for other in others]
        together: bool = self.payload.copy_sum_to_(every, _batch(buffer), weight)
        return together

    def subtract_from_(self, buffer: Tensor) -> None:
        self.payload.subtract_from_(_batch(buffer))

    def zero_at_(self, buffer: Tensor) -> None:
        self.payload.zero_at_(_batch(buffer))

    @property
    def indices(self) -> Tensor:
        """The places of what was sent; AttributeError where the payload has none."""
        selections: Any = self.payload.selections
        (own,) = selections()
        indices: Tensor = own.indices
        return indices

    def dense(self) -> Tensor:
        (values,) = self.payload.dense()
        alone: Tensor = values
        return alone


def _batch(tensor: Tensor) -> Batch:
    return Batch(("alone",), [tensor])
