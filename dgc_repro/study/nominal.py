"""What a nominal compression ratio is in bytes, counted on the tensors of a model: nothing is trained.

MLS-Bench's task states one ratio, 1 / density, for three methods, and counts no bytes. Counted here, of one
step and worker:

    values        entries that carry a value
    tensor bytes  the tensors that the task's code returns as what would be sent: float32 values with int64
                  places (top-k), int16 codes and a float32 norm a tensor (QSGD), uint8 signs and a float32
                  scale a tensor (signSGD)
    payload       the same tensors as packed here: `SparseLayout` (places as int32, or in the fewest bytes),
                  codes of ceil(log2(2 s + 1)) bits, one bit a sign; ``qsgd_elias``: the paper's Elias codes
                  (compressor/qsgd.py) of Gaussian values, whose number of zeros is an assumption
    wire          what a collective moves of it for one of N workers: ring allreduce of dense gradients,
                  2 (N - 1) / N of the payload; allgather, N - 1 times the payload

Letters: n = values of a tensor, k = max(1, floor(n density)) entries sent, s = levels, N = workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import torch

from dgc_repro.checked import Count, checked, within
from dgc_repro.compressor.encoding import layouts_of
from dgc_repro.compressor.qsgd import QSGD, omega_bits
from dgc_repro.kernel.signs import SignLayout
from dgc_repro.payload.sparse import SparseLayout
from dgc_repro.study.given import TENSORS, FromTwo, Row, Tensors

FLOAT, INT64, INT16, UINT8 = 4, 8, 2, 1  # bytes


@checked
class Nominal:
    """``density``: of top-k; ``levels``: s of QSGD; ``workers``: the numbers N."""

    density: Annotated[float, within(0, 1)]
    levels: Count
    workers: FromTwo
    takes = TENSORS

    def run(self, seed: int, tensors: Tensors) -> list[Row]:
        """A row for each method and number of workers. Only ``qsgd_elias`` depends on the seed."""
        sizes, n, scales = tensors.sizes, sum(tensors.sizes), FLOAT * len(tensors.sizes)
        kept = tuple(max(1, int(one * self.density)) for one in sizes)  # as the task's code rounds
        k, bits = sum(kept), QSGD(levels=self.levels, bucket=None).bits
        places = {name: SparseLayout(sizes, kept, name) for name in ("int32", "auto")}
        signs = SignLayout(sizes, (1,) * len(sizes))
        counted = {  # values, tensor bytes, payload
            "dense": (n, FLOAT * n, FLOAT * n),
            "topk_int32": (k, (FLOAT + INT64) * k, places["int32"].size),
            "topk": (k, (FLOAT + INT64) * k, places["auto"].size),
            "qsgd": (n, INT16 * n + scales, layouts_of(sizes, bits, None).size),
            "qsgd_elias": (n, INT16 * n + scales, elias_bytes(sizes, self.levels, seed)),
            "signsgd": (n, UINT8 * n + scales, signs.size),
        }
        return [
            {
                "method": method,
                "parameters": n,
                "values": values,
                "tensor_bytes": taken,
                "payload_bytes": payload,
                "workers": count,
                "wire_bytes": payload * (2 / count if method == "dense" else 1) * (count - 1),
            }
            for method, (values, taken, payload) in counted.items()
            for count in self.workers
        ]


def elias_bytes(sizes: Sequence[int], levels: int, seed: int) -> int:
    """Bytes of QSGD's Elias codes of Gaussian tensors, one norm a tensor: of every value that is not 0 the
    distance to the last one, a sign and the level."""
    draw, bits = torch.Generator().manual_seed(seed), 0
    for n in sizes:
        x = torch.randn(n, generator=draw)
        level = (levels * x.abs() / x.norm() + torch.rand(n, generator=draw)).long()
        places = level.nonzero().view(-1)
        gaps = torch.diff(places, prepend=places.new_full((1,), -1))
        bits += 8 * FLOAT + int((omega_bits(gaps) + 1 + omega_bits(level[places])).sum())
    return -(-bits // 8)
