"""How long compressing a gradient takes, every tensor by itself, by compression factor.

A repeat compresses the whole gradient once at each factor, in an order that turns, so that what
disturbs the machine falls on all of them. Compressing is choosing the entries and coding them.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from dgc_repro.compressor.interface import Context
from dgc_repro.compressor.sparsifier import Sparsifier, coded
from dgc_repro.kernel.workspace import Workspace
from dgc_repro.measure.multilevel import WARMUP, milliseconds


def compress_ms(
    tensors: Mapping[str, Tensor], methods: Mapping[float, Sparsifier], repeats: int
) -> dict[float, list[float]]:
    """Milliseconds of each repeat, by factor. tensors: f32, by name, read only."""
    workspace = Workspace()
    device = next(iter(tensors.values())).device

    def compress(factor: float) -> None:
        for name, tensor in tensors.items():
            context = Context(name, 0, 0, 0, 1, None, (0, 0), workspace, (str(factor),))
            coded(methods[factor], methods[factor].select(tensor, context), context.scratch)

    factors = list(methods)
    found: dict[float, list[float]] = {factor: [] for factor in factors}
    for number in range(WARMUP + repeats):
        turn = number % len(factors)
        for factor in (*factors[turn:], *factors[:turn]):
            took = milliseconds(lambda: compress(factor), device)  # noqa: B023  # called at once
            if number >= WARMUP:
                found[factor].append(took)
    return found
