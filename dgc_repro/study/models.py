"""How large models are, from the networks as they are built: nothing is trained, nothing is random.

Layers are those that papers count: convolutions and linear layers on the way from input to output
(shortcuts' projections not among them); of a recurrent network its recurrent layers.

Paper: GraVAC, Table I.
"""

from __future__ import annotations

from dataclasses import dataclass

from dgc_repro.study.given import TENSORS, Row, Tensors

VALUE_BYTES, MIB = 4, 2**20


@dataclass(frozen=True)
class Models:
    """Takes the tensors of one model."""

    takes = TENSORS

    def run(self, seed: int, tensors: Tensors) -> list[Row]:
        """One row, the same for every seed."""
        parameters = sum(tensors.sizes)
        return [
            {
                "layers": tensors.layers,
                "tensors": len(tensors.sizes),
                "parameters": parameters,
                "mib": VALUE_BYTES * parameters / MIB,
            }
        ]
