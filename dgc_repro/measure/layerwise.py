"""How long compressing a gradient takes, every tensor by itself, by compression factor.

A repeat compresses the whole gradient once at each factor, in an order that turns, so that what
disturbs the machine falls on all of them. Compressing is choosing the entries and coding them.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from dgc_repro.compressor.interface import Context
from dgc_repro.compressor.sparsifier import Sparsifier, coded, select_all
from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.workspace import Workspace
from dgc_repro.measure.multilevel import WARMUP, milliseconds


def compress_ms(
    tensors: Mapping[str, Tensor], methods: Mapping[float, Sparsifier], repeats: int
) -> dict[float, list[float]]:
    """Milliseconds of each repeat, by factor. tensors: f32, by name, read only."""
    workspace = Workspace()
    batch = Batch(tuple(tensors), list(tensors.values()))

    def compress(factor: float) -> None:
        context = Context("batch", 0, 0, 0, 1, None, (0, 0), workspace, (str(factor),))
        method = methods[factor]
        coded(method, batch.names, select_all(method, batch, context), context)

    factors = list(methods)
    found: dict[float, list[float]] = {factor: [] for factor in factors}
    for number in range(WARMUP + repeats):
        turn = number % len(factors)
        for factor in (*factors[turn:], *factors[:turn]):
            took = milliseconds(lambda: compress(factor), batch.device)  # noqa: B023  # called at once
            if number >= WARMUP:
                found[factor].append(took)
    return found
