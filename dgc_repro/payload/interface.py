"""What every payload can do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from torch import Tensor

from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.layout import Layout, Numbers


class Own(ABC):
    """What was sent of a batch. That of a batch of one takes its tensor as well as a `Batch`."""

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
    """What one worker sends for a batch, in the buffer in which it travels. ``ragged``: whether sizes may
    differ between workers."""

    names: tuple[str, ...]
    layout: Layout
    buffer: Tensor  # u8[layout.size]
    ragged: ClassVar[bool] = False

    @property
    def row(self) -> Tensor:
        """The bytes that travel: u8, a multiple of 8."""
        return self.buffer[: self.layout.size]

    @property
    def num_bytes(self) -> int:
        """Bytes of the parts of all tensors, without what fills the buffer up."""
        return int(self.layout.tensor_bytes.sum())

    @property
    def num_floats(self) -> float:
        """Size in the papers' unit: values only, bits / 32; indices and scales are not counted."""
        return float(self.layout.floats.sum())

    @property
    def lengths(self) -> list[int]:
        """What must travel first where sizes differ between workers."""
        raise NotImplementedError

    def announced(self, lengths: Sequence[int] | Numbers) -> list[Self]:
        """Payloads laid out as those of workers with these `lengths`, one worker after another (their values
        do not matter)."""
        raise NotImplementedError

    def like(self, row: Tensor) -> Self:
        """The payload of another worker, whose `row` arrived; its layout is this one's. Raises ValueError."""
        if row.numel() != self.layout.size:
            kind = type(self).__name__.lower()
            raise ValueError(
                f"{kind} payload: {row.numel()} bytes arrived, and this worker's has {self.layout.size}"
            )
        return replace(self, buffer=row)

    @abstractmethod
    def add_sum_to_(
        self, others: Sequence[Self], batch: Batch, weight: float, *, accumulate: bool
    ) -> None:
        """batch = or += weight * (this + others), added in this order, in one pass."""

    def add_to_(self, buffer: Batch | Tensor, weight: float) -> None:
        """buffer += weight * decoded, in one pass."""
        self.add_sum_to_((), as_batch(buffer), weight, accumulate=True)

    def copy_to_(self, buffer: Batch | Tensor, weight: float) -> None:
        """buffer = weight * decoded, in one pass."""
        self.add_sum_to_((), as_batch(buffer), weight, accumulate=False)

    def _subtract_from(self, batch: Batch) -> None:
        self.add_to_(batch, -1.0)


ALONE = "alone"
"""The name in a payload of one tensor, which does not know the tensor's own."""


def as_batch(buffer: Batch | Tensor) -> Batch:
    """A single tensor as a batch of one."""
    return buffer if isinstance(buffer, Batch) else Batch((ALONE,), [buffer])
