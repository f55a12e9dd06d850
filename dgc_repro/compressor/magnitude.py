"""Global magnitude: the k entries of largest magnitude of the whole model, wherever they lie.

Paper: Aji and Heafield, "Sparse communication for distributed gradient descent", EMNLP 2017
(arXiv:1704.05021), section 3 (one global threshold against one for each tensor); the global
constraint of magnitude pruning (Han et al., "Learning both weights and connections for efficient
neural networks", NeurIPS 2015, arXiv:1506.02626), applied to gradients.
Asks: `Gather` of k = max(1, round(n density)) entries, n = values of the model: 8 bytes of header,
places and values as in topk.
Differs: exact, not from a sample; ties go to the lower index. It needs all gradients in one vector:
exchange.unit=model, and is refused with exchange.unit=layer, where it would be top-k of each tensor.

Letters: n = values of the model, k = entries sent.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from dgc_repro.compressor.interface import Context, State
from dgc_repro.compressor.selected import mark_finite
from dgc_repro.compressor.sparsifier import (
    check_coding,
    check_density,
    exchange_selected,
    explained_by,
    num_kept,
)
from dgc_repro.exchange.requests import Exchange
from dgc_repro.kernel import select
from dgc_repro.kernel.select import Selection


@dataclass(frozen=True)
class Magnitude:
    """``density``: the share of the model's entries to send, above 0 to 1; or ``factor``: one of so
    many.
    ``indices``: auto (the smallest), int32, delta16 or bitmap;
    ``values``: fp32, fp16 or int8."""

    density: float | None = None
    factor: float | None = None
    indices: str = "auto"
    values: str = "fp32"
    ragged = False
    unit = "model"

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
        return mark_finite(chosen, flat, context)

    def refine(self, survivors: Selection, context: Context) -> Selection:
        return select.refine(survivors, self.num_largest(survivors.n), scratch=context.scratch)

    def energy(self, tensor: Tensor, context: Context) -> Tensor:
        return explained_by(self, self.select(tensor, context))

    def num_largest(self, n: int) -> int:
        return num_kept(n, check_density(self.density, self.factor))
