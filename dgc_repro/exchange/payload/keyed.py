"""Values whose places a key tells as a payload.

Where the key travels, it does so in a header of 8 bytes: key + 2^32 kind, the kind of its values. The
key is a signed number of 32 bits, so that of whole values it is the header.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dgc_repro.exchange.payload.values import VALUES, code_values, num_scales
from dgc_repro.kernel import permute
from dgc_repro.kernel import sparse as kernels
from dgc_repro.kernel.select import Scratch


@dataclass(frozen=True, slots=True)
class Keyed:
    """k entries of a tensor of n values, at the first places of the permutation that the key draws
    (kernel/permute.py). The key travels where workers have keys of their own, else all know it."""

    n: int
    key: int
    coded: Tensor  # f32[k], f16[k] or u8[k]: the values, in the order of the permutation
    header: Tensor | None = None  # i64[1]: the key and the kind, where they travel
    kind: int = kernels.FP32
    scales: Tensor | None = None  # f32[num_scales] of 8-bit values

    @classmethod
    def of(
        cls,
        n: int,
        key: int,
        values: Tensor,
        kind: str = "fp32",
        *,
        travels: bool = False,
        scratch: Scratch | None = None,
    ) -> Keyed:
        """The payload that sends values (f32[k]), of a kind in `VALUES`. ``travels``: whether the key
        does; ``scratch``: where codes are kept."""
        number = VALUES[kind]
        header = torch.tensor([key + (number << 32)], device=values.device) if travels else None
        coded, scales = code_values(values, number, scratch)
        return cls(n, key, coded, header, number, scales)

    @property
    def values(self) -> Tensor:
        """f32[k], as they are decoded, in the order of the permutation."""
        return kernels.decode_values(self.coded, self.scales, self.kind)

    @property
    def parts(self) -> tuple[Tensor, ...]:
        parts = (self.header, self.scales, self.coded)
        return tuple(part for part in parts if part is not None)

    @property
    def indices(self) -> Tensor:
        """i64[k], in the order of the permutation."""
        return permute.places(self.n, self.key, self.coded.numel(), self.coded.device)

    @property
    def num_floats(self) -> float:
        return self.coded.nbytes / 4

    def like(self, parts: Sequence[Tensor]) -> Keyed:
        rest = list(parts)
        header = rest.pop(0) if self.header is not None and rest else None
        scales = rest.pop(0) if self.scales is not None and rest else None
        if (
            len(rest) != 1
            or rest[0].numel() != self.coded.numel()
            or (scales is not None and scales.numel() != num_scales(rest[0].numel(), self.kind))
        ):
            raise ValueError("keyed payload: another number of values than this worker's")
        if header is None:
            return replace(self, coded=rest[0], scales=scales)
        return Keyed(self.n, self._announced(header), rest[0], header, self.kind, scales)

    def add_to_(self, buffer: Tensor, weight: float) -> None:
        permute.scatter(buffer.view(-1), self.key, weight, self.values)

    def copy_to_(self, buffer: Tensor, weight: float) -> None:
        buffer.zero_()
        self.add_to_(buffer, weight)

    def subtract_from_(self, buffer: Tensor) -> None:
        self.add_to_(buffer, -1.0)

    def dense(self) -> Tensor:
        values = torch.zeros(self.n, device=self.coded.device)
        self.add_to_(values, 1.0)
        return values

    def _announced(self, header: Tensor) -> int:
        """The key that a header holds. Raises ValueError."""
        number = int(header[0])
        kind = number + 2**31 >> 32
        if kind not in VALUES.values():
            raise ValueError(
                f"keyed payload: its header holds {number}, which is no key of 32 bits"
            )
        if kind != self.kind:
            raise ValueError(
                f"keyed payload: its values are of type {kind}, this worker's of type {self.kind} (of "
                f"{', '.join(VALUES)}): all workers need one setting `values`"
            )
        return number - (kind << 32)
