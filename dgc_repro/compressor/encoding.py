"""What quantizers share: the exchange, and how values become packed codes with scales."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dgc_repro.compressor.explained import explained_of_each
from dgc_repro.compressor.gathering import average, gathered
from dgc_repro.compressor.interface import Compressor, Context, Step
from dgc_repro.kernel import codes as kernels
from dgc_repro.kernel import signs
from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.cached import cached
from dgc_repro.kernel.codes import CodeLayout, CodeLayouts
from dgc_repro.payload import BatchPayload, Codes, Signs

if TYPE_CHECKING:
    from dgc_repro.exchange.world import World

# Values packed together where one scale serves the tensor. Longer rows are slower: their parts lie
# 4096 bytes apart, where a processor takes a load for one that waits for a store.
TENSOR_ROW = 512


class Quantizer(Compressor):
    """A method without state that sends its coding of each tensor to everybody."""

    def step(self, xs: Sequence[Batch], out: Batch, world: World, context: Context) -> Step:
        sent = [self.encode_batch(x, context.at(worker)) for worker, x in enumerate(xs)]
        self.combine((yield from gathered(sent, world, context)), out)
        return sent

    def combine(self, payloads: Sequence[Any], out: Batch) -> None:
        """The answer, from what all workers have sent: their average."""
        average(payloads, out)

    def energies(self, batch: Batch, context: Context) -> Tensor:
        own = self.encode_batch(batch, context.within("energy"))
        return explained_of_each(batch, own, context)

    @abstractmethod
    def encode_batch(self, batch: Batch, context: Context) -> BatchPayload:
        """Quantize and pack."""


@cached()
def layouts_of(sizes: tuple[int, ...], bits: int, block: int | None) -> CodeLayouts:
    """How tensors of these sizes are cut into rows: blocks with a scale each, or one scale a tensor."""
    return CodeLayouts([CodeLayout(n, block or TENSOR_ROW, bits, block is not None) for n in sizes])


def encode(
    batch: Batch,
    context: Context,
    layout: CodeLayouts,
    rounding: int,
    *,
    levels: int | None = None,
    rule: int = kernels.LARGEST,
    scales: Tensor | None = None,
) -> Codes:
    """Quantize and pack.

    Codes reach from -levels to levels (None: Q, all that the bits hold). ``rule``: what a scale is
    (kernel/codes.py). ``scales``: f32, one for each tensor that is not empty, in place of a rule."""
    buffer = context.scratch("codes", layout.size, torch.uint8, batch.device)
    if scales is not None:
        layout.put(buffer, scales)
        rule = kernels.GIVEN
    drawn = rounding == kernels.STOCHASTIC
    keys = context.keys(batch.names, shared=False) if drawn else None
    kernels.quantize(batch, layout, buffer, rounding, keys, levels=levels, rule=rule)
    return Codes(batch.names, layout, buffer)


def signs_of(
    batch: Batch,
    context: Context,
    num_levels: tuple[int, ...],
    levels: Tensor | None = None,
    *,
    zero_too: bool = False,
) -> Signs:
    """Pack the signs. ``num_levels``: of each tensor (kernel/signs.py's `SignLayout`); ``levels``: f32, of
    one tensor after another; ``zero_too``: send a 0 as a negative value."""
    layout = _sign_layout(batch.sizes, num_levels)
    buffer = context.scratch("signs", layout.size, torch.uint8, batch.device)
    if levels is not None:
        layout.put(buffer, levels)
    signs.pack(batch, layout, buffer, zero_too=zero_too)
    return Signs(batch.names, layout, buffer)


_sign_layout = cached()(signs.SignLayout)


def of_filled(values: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """The entries of values[tensors] whose tensors are not empty: these alone have a scale."""
    return values if all(sizes) else values[_filled(sizes, values.device)]


@cached()
def _filled(sizes: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor([i for i, n in enumerate(sizes) if n], dtype=torch.int64, device=device)


@cached()
def counts(sizes: tuple[int, ...], device: torch.device) -> Tensor:
    """How many values each tensor has: f64[tensors]."""
    return torch.tensor(sizes, dtype=torch.float64, device=device)
