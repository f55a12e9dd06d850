"""Per-layer choice: some tensors go as they are, all others through the wrapped compressor.

Papers that leave biases and normalization layers uncompressed (PowerSGD: "vector-shaped
parameters") do it with this wrapper; those that compress every tensor (GraVAC) go without.
Asks: `Mean` for the exempt tensors, what the wrapped compressor asks for the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from torch import Tensor

from dgc_repro.compressor.dense import Dense
from dgc_repro.compressor.interface import Compressor, Context, State
from dgc_repro.exchange.requests import Exchange

VECTORS = "vectors"


@dataclass(frozen=True)
class PerLayer:
    """``dense``: what goes uncompressed, each entry ``vectors`` (tensors of at most one dimension)
    or a pattern on parameter names such as ``fc.*``; ``smaller_than``: so do tensors with fewer
    values."""

    inner: Compressor
    dense: Sequence[str] = (VECTORS,)
    smaller_than: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.dense, str) or not all(isinstance(entry, str) for entry in self.dense):
            raise ValueError(
                f"dense: a list of `vectors` and name patterns such as ['vectors', 'fc.*'], "
                f"got {self.dense!r}"
            )
        if not isinstance(self.smaller_than, int) or self.smaller_than < 0:
            raise ValueError(f"smaller_than: a number of values from 0, got {self.smaller_than!r}")

    def init(self, tensor: Tensor) -> State:
        if self._exempt_by_shape(tensor):
            return {}
        # The name is not known here: where a pattern exempts the tensor, `inner`'s state lies idle.
        return {"inner": self.inner.init(tensor)}

    def exchange(self, tensor: Tensor, state: State, context: Context) -> Exchange:
        if self.exempt(tensor, context.name):
            return (yield from Dense().exchange(tensor, state, context))
        outcome = yield from self.inner.exchange(
            tensor, state["inner"], context.within("per_layer")
        )
        return type(outcome)(outcome.mean, outcome.own, {"inner": outcome.state})

    def exempt(self, tensor: Tensor, name: str) -> bool:
        """Whether this tensor goes dense."""
        return self._exempt_by_shape(tensor) or any(
            entry != VECTORS and fnmatchcase(name, entry) for entry in self.dense
        )

    def _exempt_by_shape(self, tensor: Tensor) -> bool:
        vector = tensor.dim() <= 1 and VECTORS in self.dense
        return vector or tensor.numel() < self.smaller_than
