"""Exact top-k: the k entries of largest magnitude.

Paper: Aji and Heafield, "Sparse communication for distributed gradient descent", EMNLP 2017
(arXiv:1704.05021), with a fixed number of entries; Stich et al., "Sparsified SGD with memory",
NeurIPS 2018 (arXiv:1809.07599), definition 2.1, which analyses it with error feedback.
Asks: `Gather` of k = max(1, round(n density)) entries: 8 bytes of header; places: the fewest of 4 k
(int32), 2 (k + (n - k) // 65535) (delta16) and n / 8 (bitmap) bytes, filled up to whole words of 4;
values: 4 k (fp32), 2 k (fp16) or k + 4 ceil(k / 2048) (int8) bytes.
Differs: ties go to the lower index, so that all kernels and rungs choose the same. The papers send
float32 values and do not say how places are coded.

Letters: n = values, k = entries sent.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from dgc_repro.compressor.interface import Context, State
from dgc_repro.compressor.sparsifier import (
    check_coding,
    check_density,
    exchange_selected,
    explained_by,
    num_kept,
)
from dgc_repro.exchange.requests import Exchange
from dgc_repro.kernel import native, select
from dgc_repro.kernel.select import Selection


@dataclass(frozen=True)
class TopK:
    """``density``: the share of entries to send, above 0 to 1; or ``factor``: one of so many.
    ``indices``: auto (the smallest), int32, delta16 or bitmap; ``values``: fp32, fp16 or int8."""

    density: float | None = None
    factor: float | None = None
    indices: str = "auto"
    values: str = "fp32"
    ragged = False

    def __post_init__(self) -> None:
        check_density(self.density, self.factor)
        check_coding(self.indices, self.values)

    def init(self, tensor: Tensor) -> State:
        return {}

    def exchange(self, tensor: Tensor, state: State, context: Context) -> Exchange:
        return (yield from exchange_selected(self, tensor, state, context))

    def select(self, tensor: Tensor, context: Context) -> Selection:
        flat = tensor.view(-1)
        chosen = select.topk(flat, self.num_largest(flat.numel()), scratch=context.scratch)
        if native.usable(flat) and native.all_finite(chosen.values):
            context.found_finite(flat)  # a NaN or infinity would be among the largest
        return chosen

    def refine(self, survivors: Selection, context: Context) -> Selection:
        return select.refine(survivors, self.num_largest(survivors.n), scratch=context.scratch)

    def energy(self, tensor: Tensor, context: Context) -> Tensor:
        return explained_by(self, self.select(tensor, context))

    def num_largest(self, n: int) -> int:
        return num_kept(n, check_density(self.density, self.factor))
