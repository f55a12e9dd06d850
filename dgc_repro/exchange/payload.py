"""What a worker sends for one tensor, as it is sent.

A payload is a handful of flat tensors (``parts``) and the few numbers both sides know without being
told (its *layout*: sizes, bits). Received parts become a payload again with ``like``. Error
feedback needs one in-place pass over a buffer whatever the method: ``subtract_from_``.

Letters: n = values of the original tensor, N = workers.

====================  ======================================================================
`Whole`               the tensor itself
`Codes`               packed b-bit codes and one float32 scale a row (kernel/codes.py)
sparse, low-rank      the same interface; a sparse payload's parts differ in length between
                      workers, which is what `GatherRagged` is for
====================  ======================================================================
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Protocol, Self

import torch
from torch import Tensor

from dgc_repro.kernel import codes as kernels
from dgc_repro.kernel import native


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


def num_bytes(payload: Payload) -> int:
    """Bytes of all parts, from the tensors that are really sent."""
    return sum(part.nbytes for part in payload.parts)


@dataclass(frozen=True, slots=True)
class Whole:
    """The tensor itself, every value of it."""

    values: Tensor  # any float type, contiguous

    @property
    def parts(self) -> tuple[Tensor, ...]:
        return (self.values.view(-1),)

    @property
    def num_floats(self) -> float:
        return self.values.nbytes / 4

    def like(self, parts: Sequence[Tensor]) -> Whole:
        (values,) = parts
        return Whole(values.view(self.values.shape))

    def add_to_(self, buffer: Tensor, weight: float) -> None:
        buffer.view(-1).add_(self.values.view(-1), alpha=weight)

    def copy_to_(self, buffer: Tensor, weight: float) -> None:
        torch.mul(self.values.view(-1), weight, out=buffer.view(-1))

    def subtract_from_(self, buffer: Tensor) -> None:
        buffer.view(-1).sub_(self.values.view(-1))

    def dense(self) -> Tensor:
        return self.values.reshape(-1).float().clone()


@dataclass(frozen=True)
class CodeLayout:
    """How n values are cut into rows: whole rows of ``width`` and one shorter last row.

    ``per_row`` says whether every row has a scale of its own or one scale serves all.
    """

    n: int
    width: int
    bits: int
    per_row: bool

    @cached_property
    def body_rows(self) -> int:
        """Whole rows. A row whose width is no multiple of a group belongs to the tail (filled up)."""
        return self.n // self.width if self.width % kernels.group(self.bits)[0] == 0 else 0

    @cached_property
    def tail_rows(self) -> int:
        """Rows that are filled up to a whole group before they are packed."""
        rest = self.n - self.body_rows * self.width
        return -(-rest // self.width)

    @cached_property
    def tail_width(self) -> int:
        """Values of a tail row after filling up; all tail rows have one width."""
        rest = self.n - self.body_rows * self.width
        codes, _ = kernels.group(self.bits)
        return -(-min(rest, self.width) // codes) * codes

    @cached_property
    def num_scales(self) -> int:
        return self.body_rows + self.tail_rows if self.per_row else min(1, self.n)

    @cached_property
    def body_plane(self) -> int:
        """Bytes of one byte plane of the whole rows (there are B planes, see kernel/codes.py)."""
        return self.body_rows * (self.width // kernels.group(self.bits)[0])

    @cached_property
    def tail_plane(self) -> int:
        """Bytes of one byte plane of the last rows."""
        return self.tail_rows * (self.tail_width // kernels.group(self.bits)[0])

    @cached_property
    def num_bytes(self) -> int:
        """Bytes that travel: scales and packed codes, filling included."""
        return 4 * self.num_scales + self.num_packed

    @cached_property
    def num_packed(self) -> int:
        """Bytes of packed codes."""
        return kernels.group(self.bits)[1] * (self.body_plane + self.tail_plane)

    @cached_property
    def native(self) -> native.Layout:
        """The same for the C kernels."""
        codes, size = kernels.group(self.bits)
        return native.Layout(
            self.n, self.width, self.body_rows, self.tail_rows, self.tail_width, self.bits, codes, size,
            self.per_row,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Codes:
    """b-bit codes of a symmetric linear quantizer: value = (code - Q) * scale, Q = 2^(b-1) - 1."""

    layout: CodeLayout
    scales: Tensor  # f32[num_scales]
    packed: Tensor  # u8[num_packed]: B planes of the whole rows, then B planes of the last rows

    @property
    def parts(self) -> tuple[Tensor, ...]:
        return (self.scales, self.packed)

    @property
    def planes(self) -> tuple[Tensor, ...]:
        """The 2 B planes as views: u8[body_plane] each, then u8[tail_plane] each."""
        count = kernels.group(self.layout.bits)[1]
        sizes = [self.layout.body_plane] * count + [self.layout.tail_plane] * count
        planes: tuple[Tensor, ...] = self.packed.split(sizes)
        return planes

    @property
    def num_floats(self) -> float:
        return self.layout.n * self.layout.bits / 32

    def like(self, parts: Sequence[Tensor]) -> Codes:
        scales, packed = parts
        if (scales.numel(), packed.numel()) != (self.layout.num_scales, self.layout.num_packed):
            raise ValueError("codes of another size than this worker's: send them with `Gather`")
        return Codes(self.layout, scales, packed)

    def add_to_(self, buffer: Tensor, weight: float) -> None:
        self._decode(buffer, weight, accumulate=True)

    def copy_to_(self, buffer: Tensor, weight: float) -> None:
        self._decode(buffer, weight, accumulate=False)

    def subtract_from_(self, buffer: Tensor) -> None:
        self._decode(buffer, -1.0, accumulate=True)

    def dense(self) -> Tensor:
        values = torch.empty(self.layout.n, device=self.scales.device)
        self.copy_to_(values, 1.0)
        return values

    def _decode(self, buffer: Tensor, weight: float, *, accumulate: bool) -> None:
        layout = self.layout
        flat = buffer.view(-1)
        if native.usable(flat):
            native.dequantize(
                flat, layout.native, [self.scales], [self.packed], weight, accumulate=accumulate
            )
            return
        num_codes, num_planes = kernels.group(layout.bits)
        all_planes = self.planes
        factor = _scalar(weight, flat.device)
        body = layout.body_rows * layout.width
        if body:
            rows = flat[:body].view(layout.body_rows, num_codes, -1)
            scales = self.scales[: layout.body_rows] if layout.per_row else self.scales
            planes = [plane.view(layout.body_rows, -1) for plane in all_planes[:num_planes]]
            kernels.dequantizer(layout.bits, accumulate)(rows, scales, factor, *planes)
        if layout.tail_rows:
            rest = flat[body:]
            shape = (layout.tail_rows, num_codes, layout.tail_width // num_codes)
            scales = self.scales[layout.body_rows :] if layout.per_row else self.scales
            planes = [plane.view(layout.tail_rows, -1) for plane in all_planes[num_planes:]]
            if rest.numel() == layout.tail_rows * layout.tail_width:  # nothing was filled up
                kernels.dequantizer(layout.bits, accumulate)(
                    rest.view(shape), scales, factor, *planes
                )
                return
            filled = rest.new_empty(shape)
            kernels.dequantizer(layout.bits, False)(filled, scales, factor, *planes)
            values = filled.view(layout.tail_rows, -1)[:, : layout.width].reshape(-1)[
                : rest.numel()
            ]
            rest.add_(values) if accumulate else rest.copy_(values)


@lru_cache(maxsize=64)
def _scalar(value: float, device: torch.device) -> Tensor:
    """A float32 scalar tensor; cached, because making one costs more than a small decode."""
    return torch.tensor(value, dtype=torch.float32, device=device)


class Gathered(Sequence[Payload]):
    """The payloads of all workers, in rank order: the answer to `Gather` and `GatherRagged`."""

    def __init__(self, payloads: Sequence[Payload]) -> None:
        self._payloads = payloads
        self._mean: Tensor | None = None

    def __len__(self) -> int:
        return len(self._payloads)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]  # int or slice, as a Sequence
        return self._payloads[index]

    def __iter__(self) -> Iterator[Payload]:
        return iter(self._payloads)

    def mean(self, buffer: Tensor) -> Tensor:
        """The average over workers, summed in rank order: the same bits on every rank.

        Written into ``buffer`` and returned. Simulated workers share one `Gathered`: the first
        one to ask pays, the others get its result.
        """
        if self._mean is None:
            weight = 1.0 / len(self)
            if not _decoded_together(self._payloads, buffer, weight):
                self._payloads[0].copy_to_(buffer, weight)
                for payload in self._payloads[1:]:
                    payload.add_to_(buffer, weight)
            self._mean = buffer
        return self._mean


def _decoded_together(payloads: Sequence[Payload], buffer: Tensor, weight: float) -> bool:
    """Whether the sum could be made in one pass over the buffer, with the bits of one after another."""
    first = payloads[0]
    if not isinstance(first, Codes) or not native.usable(buffer):
        return False
    same = [p for p in payloads if isinstance(p, Codes)]  # all: `like` gives them one layout
    scales, packed = [codes.scales for codes in same], [codes.packed for codes in same]
    native.dequantize(buffer, first.layout.native, scales, packed, weight, accumulate=False)
    return True
