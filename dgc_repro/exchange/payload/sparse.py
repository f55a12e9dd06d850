"""Values and their places as a payload.

It begins with a header of 8 bytes that says how the rest is coded: from the highest byte down
`MAGIC`, coding of the places, type of the values, and 5 bytes of k. The codings are those of
kernel/sparse.py. What arrives is checked against its header, by whoever has received it: what is gathered
is found broken by every rank alike, what goes to one rank (`AllToAll`: shards, trees) by that rank alone.
It raises, and the others wait for it in their next collective; a run then ends on all ranks with what it
raised (launch/hang_report.py), an own loop when that rank's process ends or its group's timeout is over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from dgc_repro.exchange.payload.values import DTYPES, VALUES, buffer, code_values, num_scales
from dgc_repro.kernel import native
from dgc_repro.kernel import sparse as kernels
from dgc_repro.kernel.select import Scratch, Selection, index_type

AUTO = "auto"
PLAIN = "int32"
INDICES = {"delta16": kernels.DELTA16, "bitmap": kernels.BITMAP}
CODINGS = (AUTO, PLAIN, *INDICES)
MAGIC = 0x53  # 'S'; another number when the coding changes
_COUNT_BITS = 40
DAMAGED = "it was damaged on its way, or comes from another version of this package"


@dataclass(frozen=True, slots=True)
class SparseLayout:
    """How k entries of n values are coded, in the numbers of kernel/sparse.py."""

    n: int
    k: int
    coding: int
    kind: int

    @classmethod
    @lru_cache(maxsize=4096)
    def of(cls, n: int, k: int, indices: str = PLAIN, values: str = "fp32") -> SparseLayout:
        """By the names of the settings: ``indices`` of `CODINGS`, ``values`` of `VALUES`."""
        smallest = kernels.smallest(n, k) if indices == AUTO else kernels.plain(n)
        return cls(n, k, INDICES.get(indices, smallest), VALUES[values])

    @property
    def header(self) -> int:
        """The 8 bytes."""
        return MAGIC << 56 | self.coding << 48 | self.kind << 40 | self.k

    @property
    def num_words(self) -> int:
        """Words of the places, of 4 bytes."""
        return kernels.num_words(self.n, self.k, self.coding)

    @property
    def num_scales(self) -> int:
        return num_scales(self.k, self.kind)

    @property
    def num_bytes(self) -> int:
        """Bytes that travel: header, places, scales, values."""
        value = DTYPES[self.kind].itemsize
        return 8 + 4 * self.num_words + 4 * self.num_scales + value * self.k

    def check(self, num_words: int, num_scales: int, num_coded: int) -> None:
        """Raise ValueError where another number of words of places, scales or values came."""
        sizes, expected = (
            (num_words, num_scales, num_coded),
            (self.num_words, self.num_scales, self.k),
        )
        if sizes != expected:
            raise ValueError(
                f"sparse payload: {sizes} words of places, scales and values came with a header that "
                f"announces {expected}: {DAMAGED}"
            )


@dataclass(frozen=True, slots=True)
class Sparse:
    """k entries of a tensor of n values."""

    layout: SparseLayout
    header: Tensor  # i64[1]
    words: Tensor  # i32[num_words]: the places
    coded: Tensor  # f32[k], f16[k] or u8[k]: the values
    scales: Tensor | None  # f32[num_scales] of 8-bit values

    @classmethod
    def of(
        cls,
        selection: Selection,
        indices: str = PLAIN,
        values: str = "fp32",
        scratch: Scratch | None = None,
    ) -> Sparse:
        """The payload that sends a selection. ``scratch``: where codes are kept."""
        layout = SparseLayout.of(selection.n, selection.values.numel(), indices, values)
        device = selection.values.device
        words = selection.indices.to(index_type(selection.n)).contiguous()
        if layout.coding == kernels.INT64:
            words = words.view(torch.int32)
        elif layout.coding in INDICES.values():
            codes = buffer(scratch, "words", layout.num_words, torch.int32, device)
            kernels.encode_places(words, layout.n, layout.coding, codes)
            words = codes
        coded, scales = code_values(selection.values, layout.kind, scratch)
        return cls(layout, _header(layout.header, device), words, coded, scales)

    @property
    def n(self) -> int:
        return self.layout.n

    @property
    def values(self) -> Tensor:
        """f32[k], as they are decoded."""
        return kernels.decode_values(self.coded, self.scales, self.layout.kind)

    @property
    def indices(self) -> Tensor:
        """i32[k] or i64[k], ascending. Raises ValueError where the places are broken."""
        layout = self.layout
        return kernels.decode_places(self.words, layout.n, layout.k, layout.coding)

    @property
    def parts(self) -> tuple[Tensor, ...]:
        if self.scales is None:
            return (self.header, self.words, self.coded)
        return (self.header, self.words, self.scales, self.coded)

    @property
    def num_floats(self) -> float:
        return self.coded.nbytes / 4

    def like(self, parts: Sequence[Tensor]) -> Sparse:
        header, words, *scales, coded = parts
        if header.numel() != 1:
            raise ValueError(
                f"sparse payload: a header of {header.numel()} words of 8 bytes, not 1"
            )
        layout = announced(int(header), self.n, self.layout.kind)
        layout.check(words.numel(), sum(part.numel() for part in scales), coded.numel())
        return Sparse(layout, header, words, coded, scales[0] if scales else None)

    def selection(self) -> Selection:
        """The entries as they are decoded."""
        return Selection(self.values, self.indices, self.n)

    def add_to_(self, buffer: Tensor, weight: float) -> None:
        self._scatter([self], buffer, weight, zero=False)

    def copy_to_(self, buffer: Tensor, weight: float) -> None:
        self._scatter([self], buffer, weight, zero=True)

    def subtract_from_(self, buffer: Tensor) -> None:
        self.add_to_(buffer, -1.0)

    def copy_sum_to_(self, others: Sequence[Sparse], buffer: Tensor, weight: float) -> bool:
        self._scatter([self, *others], buffer, weight, zero=True)
        return True

    def dense(self) -> Tensor:
        values = torch.empty(self.n, device=self.coded.device)
        self.copy_to_(values, 1.0)
        return values

    @staticmethod
    def _scatter(payloads: list[Sparse], buffer: Tensor, weight: float, *, zero: bool) -> None:
        flat = buffer.view(-1)
        if native.usable(flat):
            sources = [
                kernels.source(p.words, p.coded, p.scales, p.layout.coding, p.layout.kind)
                for p in payloads
            ]
            kernels.scatter(flat, sources, weight, zero=zero)
            return
        if zero:
            flat.zero_()
        for payload in payloads:
            # Not index_add_(alpha=weight): the product is rounded before the sum, as in C.
            flat.index_add_(0, payload.indices, payload.values * weight)


def announced(header: int, n: int, kind: int) -> SparseLayout:
    """What a header that arrived says of a tensor of n values, of which this worker sends values of a
    ``kind``. Raises ValueError."""
    coding, theirs = header >> 48 & 0xFF, header >> 40 & 0xFF
    count = header & (1 << _COUNT_BITS) - 1
    if header >> 56 != MAGIC:
        raise ValueError(f"sparse payload: {header:#x} is not a header of one: {DAMAGED}")
    if coding not in (kernels.plain(n), *INDICES.values()):
        raise ValueError(f"sparse payload: its places have the unknown coding {coding}: {DAMAGED}")
    if theirs != kind:
        raise ValueError(
            f"sparse payload: its values are of type {theirs}, this worker's of type "
            f"{kind} (of {', '.join(VALUES)}): all workers need one setting `values`"
        )
    if count > n:
        raise ValueError(f"sparse payload: {count} entries of {n}: {DAMAGED}")
    return SparseLayout(n, count, coding, kind)


@lru_cache(maxsize=4096)
def _header(number: int, device: torch.device) -> Tensor:
    """Cached, because making a tensor costs more than a small exchange's other work; never written."""
    return torch.tensor([number], device=device)
