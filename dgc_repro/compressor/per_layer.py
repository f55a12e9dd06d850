"""Per-layer choice: some tensors go as they are, all others through the wrapped compressor.

Papers that leave biases and normalization layers uncompressed (PowerSGD: "vector-shaped
parameters") do it with this wrapper; those that compress every tensor (GraVAC) go without.
Asks: `Mean` for the exempt tensors, what the wrapped compressor asks for the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Annotated

from torch import Tensor

from dgc_repro.checked import checked, within
from dgc_repro.compressor.dense import Dense
from dgc_repro.compressor.interface import Compressor, Context, State
from dgc_repro.exchange.requests import Exchange

VECTORS = "vectors"


@checked
class PerLayer:
    """``dense``: what goes uncompressed, each entry ``vectors`` (tensors of at most one dimension)
    or a pattern on parameter names such as ``fc.*``; ``smaller_than``: so do tensors with fewer
    values."""

    inner: Compressor
    dense: Annotated[Sequence[str], "`vectors` or patterns, as ['vectors', 'fc.*']"] = (VECTORS,)
    smaller_than: Annotated[int, within(0, name="a number of values")] = 0

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
