"""EDEN and DRIVE: blocks are rotated at random, and their entries quantized to 1 to 4 bits.

Paper: Vargaftik et al., "EDEN: communication-efficient and robust distributed mean estimation for federated
learning", ICML 2022 (arXiv:2108.08842), algorithm 1, with the Hadamard rotation; with one bit, Vargaftik et
al., "DRIVE: one-bit distributed mean estimation", NeurIPS 2021 (arXiv:2105.08339), algorithm 1. Rotation,
levels and scale were compared with the authors' code (amitport/EDEN-Distributed-Mean-Estimation).
Asks: to gather a 32-bit key (not where it is ``shared``), one float32 scale a block and b bits an entry:
4 + 4 ceil(n / block) + D b / 8 bytes, D = n with the last block filled up to a power of two (at least 32).
Differs: the authors rotate a whole model filled up to a power of two; here blocks of ``block`` values have a
rotation and a scale of their own, so that at most one block a tensor is filled up. The authors' fractional
bits and entropy coding are left out. A key is drawn for each tensor, worker and step. A block whose largest
magnitude is below float32's normal range (2^-126) is sent as 0, and a value that float32 cannot hold as the
largest that it can. The scale travels with the factor d^(-rotations / 2): in a block whose largest magnitude
is below 2^-126 d^((1 + rotations) / 2) it loses digits, at worst all (5e-35 with the defaults; 1e-26 with the
longest block and 3 rotations).

    R = H D x, H the orthonormal Hadamard matrix, D random signs
    Q = the level next to sqrt(d) R_i / ||x||, for each entry;  sent: the numbers of Q, and s
    decoded = s (H D)^-1 Q
    unbiased:    s = ||x||^2 / <R, Q>      least_error: s = <R, Q> / ||Q||^2

Levels are Lloyd's and Max's of a standard normal variable. With one bit Q is the sign, and least_error is
DRIVE's ||R||_1 / d.

Expected ||C(x) - x||^2 / ||x||^2 of a large block, from E Q^2 of a standard normal variable:

    ============  ======  ======  ======  ======
    bits               1       2       3       4
    unbiased      0.5708  0.1331  0.0358  0.0096      1 / E Q^2 - 1, with one bit pi / 2 - 1
    least_error   0.3634  0.1175  0.0345  0.0095      1 - E Q^2, with one bit 1 - 2 / pi
    ============  ======  ======  ======  ======

The papers prove E[C(x)] = x for a uniformly random rotation. A Hadamard rotation is not one. The projection
on x is right in every draw, but a value with the share t of its block's norm is too long on average: with one
bit by t^2 / 3 of it (measured: 0.013 for t = 0.2, 0.055 for 0.4, 0.167 for 0.7), and the others are too short
to make up for it. Beside t = 0.9 one bit keeps 0.24 of the others, beside 0.99 nothing: they turn no sign.
With 4 bits this begins at t = 0.999. ``rotations=2`` rotates twice: no bias was measured up to t = 0.99 for
d = 256 (others right to 0.01) and up to 0.999 for d = 4096; beyond, 3 rotations help.

With ``shared`` all workers rotate alike: their sum is rotated back once, but the errors of workers with alike
gradients do not average out. For error feedback take least_error, whose loss is below ||x||^2 for every x;
what unbiased loses of one bit is all of ||x||^2 where two equal values are the only ones of a block.

Letters: n = values, b = bits, d = values of a block.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from torch import Tensor

from dgc_repro.checked import checked, one_of, within
from dgc_repro.compressor.encoding import Quantizer
from dgc_repro.compressor.interface import Context
from dgc_repro.kernel import rotate
from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.cached import cached
from dgc_repro.kernel.rotate import RotatedLayout
from dgc_repro.kernel.workspace import at_a_time
from dgc_repro.payload import Rotated
from dgc_repro.payload.rotated import pack

LEVELS = {
    1: (1.0,),  # in place of sqrt(2 / pi): the scale takes back any factor of all levels
    2: (0.4527800346, 1.5104176085),
    3: (0.2450941789, 0.7560052812, 1.3439092785, 2.1519457045),
    4: (
        *(0.1283950299, 0.3880482995, 0.6567591185, 0.9423404565),
        *(1.2562311973, 1.6180463860, 2.0690172265, 2.7325895710),
    ),
}
"""The positive levels of each number of bits (Max, "Quantizing for minimum distortion", 1960, table I)."""
UNBIASED, LEAST_ERROR = "unbiased", "least_error"
LONGEST = 1 << 20
_SMALLEST_NORMAL = torch.finfo(torch.float32).tiny


@checked
class EDEN(Quantizer):
    """``bits``: of an entry that is sent; 1 is DRIVE. ``block``: values that are rotated together, a power
    of two. ``scale``: unbiased, or least_error. ``rotations``: 2 where single values dominate their block.
    ``shared``: all workers rotate alike."""

    bits: Annotated[int, within(1, 4)] = 4
    block: Annotated[int, within(rotate.SHORTEST, LONGEST), "a power of two"] = 4096
    scale: Annotated[str, one_of((UNBIASED, LEAST_ERROR))] = UNBIASED
    rotations: Annotated[int, within(1, 3)] = 1
    shared: bool = False

    def __post_init__(self) -> None:
        if self.block & (self.block - 1):
            raise ValueError(f"block: a power of two, got {self.block}")

    @property
    def gather_only(self) -> bool:
        """The owner of a shard rotates its mean by keys of its own, and shared keys do not travel."""
        return self.shared

    def encode_batch(self, batch: Batch, context: Context) -> Rotated:
        """Rotate, quantize and pack."""
        layout, device = _layout(batch.sizes, self.block, self.bits, not self.shared), batch.device
        drawn = torch.from_numpy(context.keys(batch.names, shared=self.shared))
        keys = drawn.to(device, non_blocking=True)
        payload = Rotated(
            batch.names,
            layout,
            context.scratch("rotated", layout.size, torch.uint8, device),
            levels(self.bits, device),
            keys,
            self.rotations,
            context.scratch("blocks", layout.work_size, torch.float32, device),
        )
        payload.write_keys()
        rotate.copy_in(batch, payload.work, layout)
        for d, _, rows in layout.matrices(payload.work):
            tensor, first = rotate.places(layout, d, device)
            packed, scales = self._quantized(rows, keys[tensor], first)
            payload.write(d, packed, scales)
        return payload

    def _quantized(self, rows: Tensor, keys: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
        """Packed codes and scales of blocks: u8[rows, d b / 8], f32[rows]. rows: f32[rows, d], which is
        overwritten."""
        found, table, d = [], levels(self.bits, rows.device), rows.shape[1]
        edges = (table[1:] + table[:-1]) / 2
        step = max(1, at_a_time(rows.device) // d)
        for x, key, start in zip(
            rows.split(step), keys.split(step), first.split(step), strict=True
        ):
            peak = x.abs().amax(1, keepdim=True)
            x.div_(peak.masked_fill(peak < _SMALLEST_NORMAL, torch.inf))
            squares = _sum(x.double().square_())
            rotate.rotate(x, key, start, self.rotations)  # x = d^(rotations / 2) R
            ratio = d ** ((1 - self.rotations) / 2) / squares.sqrt()
            code = rotate.nearest_levels(x, ratio.float(), edges)
            q = table[code]
            product = _sum(x.double().mul_(q))
            if self.scale == UNBIASED:
                scale = squares / product
            else:
                scale = product / (_sum(q.double().square_()) * float(d**self.rotations))
            scale = torch.where(squares == 0, squares, scale * peak[:, 0])
            found.append((pack(code, self.bits), scale.float()))
        packed, scales = zip(*found, strict=True)
        return torch.cat(packed), torch.cat(scales)


@checked
class DRIVE(EDEN):
    """EDEN with one bit (compressor=drive). Its other settings are those of `EDEN`."""

    bits: Literal[1] = 1


def _sum(rows: Tensor) -> Tensor:
    """The sum of each row, by halves: the same order everywhere. rows: f64[rows, d], which is overwritten."""
    while (d := rows.shape[1]) > 1:
        rows = rows[:, : d // 2].add_(rows[:, d // 2 :])
    return rows[:, 0].clone()


_layout = cached()(RotatedLayout)


@cached()
def levels(bits: int, device: torch.device) -> Tensor:
    """All levels, ascending: f32[2^bits]."""
    upper = LEVELS[bits]
    return torch.tensor([*(-level for level in reversed(upper)), *upper], device=device)
