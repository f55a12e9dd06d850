"""Random-k: k entries chosen at random.

Paper: Stich, Cordonnier, Jaggi, "Sparsified SGD with memory", NeurIPS 2018 (arXiv:1809.07599),
definition 2.1, with error feedback; as GRACE (Xu et al., ICDCS 2021) and GraVAC use it.
Asks: with shared places `Mean` of k = max(1, round(n density)) values: 4 k (fp32) or 2 k (fp16) bytes,
no index travels. With places of each worker's own `Gather` of k values and the key that tells the
places: 8 + 4 k, 8 + 2 k or (int8) 8 + k + 4 ceil(k / 2048) bytes. With shared places and int8 `Gather`
of the values alone: k + 4 ceil(k / 2048) bytes.
Differs: places are the first k of a keyed permutation (kernel/permute.py), distinct for certain, and
those of a stronger setting are the first of a weaker one's. The key is of (seed, step, name), and of
the worker where places are not shared; the rung of a ladder is no part of it, so that rungs nest. The
papers send float32 values. 8-bit codes have a scale each worker's own and no sum: an allreduce cannot
average them, so that with shared places they are gathered, and their bytes on the wire grow with the
number of workers as they do with places of one's own. The mean of shared halves is made in fp16 by the
allreduce, as of compressor=fp16: each worker's share is rounded after it was sent, which no error
feedback sees.
Silent: whether workers choose the same places. They do by default: the average then has k entries and
costs an allreduce.

``unbiased`` sends n / k times the value, so that the expectation over the places is the gradient. Its
variance grows as n / k, and it is no contraction: with a residual it is refused. So are fp16 and int8 values:
they round to nearest, fp16 saturates too, and the mean would be biased. A value that n / k takes past
float32's range comes out infinite, never as another number: the next step's gradient is then not finite,
and the run ends with a line.

Letters: n = values, k = entries sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dgc_repro.checked import checked
from dgc_repro.compressor.explained import explained_of_each
from dgc_repro.compressor.gathering import average, gathered
from dgc_repro.compressor.interface import Context, Step
from dgc_repro.compressor.sparsifier import (
    Density,
    Factor,
    Selecting,
    Values,
    num_kept,
    share_sent,
)
from dgc_repro.kernel import counter, permute
from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.cached import cached
from dgc_repro.kernel.narrow import widen
from dgc_repro.kernel.select import Selection, at
from dgc_repro.payload import Keyed, KeyedLayout, keyed_layout

if TYPE_CHECKING:
    from dgc_repro.exchange.world import World


@checked
class RandomK(Selecting):
    """``density``: share of the entries to send (0.01 where neither is given). ``factor``: send one
    entry of so many: 100 is density 0.01.
    ``shared``: all workers choose the same places. ``unbiased``: values are scaled by n / k.
    ``values``: how values travel; fp32 where unbiased."""

    density: Density | None = None
    factor: Factor | None = None
    shared: bool = True
    unbiased: bool = False
    values: Values = "fp32"
    ragged = False
    sends_selected = False  # places are drawn again, in the order of the permutation
    gather_only = True  # a shard's places would have to travel

    def __post_init__(self) -> None:
        share_sent(self.density, self.factor)
        if self.unbiased and self.values != "fp32":
            raise ValueError(
                f"values: {self.values} rounds, and unbiased=true promises the right mean; use "
                "values=fp32 or unbiased=false"
            )

    @property
    def needs_feedback(self) -> bool:
        return not self.unbiased

    @property
    def expands(self) -> bool:
        """Scaled up, it is unbiased and farther from its tensor than nothing is."""
        return self.unbiased

    @property
    def refines(self) -> bool:
        """A selection holds values as they are, in the order of their places: neither scaled, nor with
        the scales that 8-bit codes have in the order of the permutation."""
        return not self.unbiased and self.values != "int8"

    def step(self, xs: Sequence[Batch], out: Batch, world: World, context: Context) -> Step:
        sent = [self.coded(x, context.at(worker)) for worker, x in enumerate(xs)]
        if not self.shared or self.values == "int8":
            average((yield from gathered(sent, world, context)), out)
            return sent
        first = sent[0].coded
        values = context.scratch("mean", first.numel(), first.dtype, first.device).copy_(first)
        yield world.mean([values, *(one.coded for one in sent[1:])])
        if self.values == "fp16":
            values = self._widened(values, context)
        whole = keyed_layout(sent[0].layout.sizes, sent[0].layout.counts)
        replace(sent[0], layout=whole, buffer=values.view(torch.uint8)).copy_to_(out, 1.0)
        return sent

    def energies(self, batch: Batch, context: Context) -> Tensor:
        return explained_of_each(batch, self.coded(batch, context), context)

    def coded(self, batch: Batch, context: Context, kind: str = "") -> Keyed:
        """What is sent of every tensor, as it is sent, or as values of another ``kind``."""
        layout = _layout(
            batch.sizes, share_sent(self.density, self.factor), kind or self.values, not self.shared
        )
        buffer = context.scratch("sent", layout.size, torch.uint8, batch.device)
        keys = counter.keys((context.seed, context.step), batch.names, self._after(context))
        on_device = torch.from_numpy(keys).to(batch.device, non_blocking=True)
        return Keyed.of(batch, layout, on_device, buffer, scaled=self.unbiased)

    def select(self, tensor: Tensor, context: Context) -> Selection:
        """The entries to send, not scaled."""
        n, device = tensor.numel(), tensor.device
        places = permute.places(n, self.key(context), self._kept(n), device)
        return at(tensor.view(-1), places.sort().values)

    def refine(self, survivors: Selection, context: Context) -> Selection:
        """Those of the survivors that come first in the permutation: among a weaker setting's, those
        that `select` would have chosen."""
        key, available = self.key(context), survivors.indices.numel()
        k = min(self._kept(survivors.n), available)
        places = permute.places(survivors.n, key, k, survivors.indices.device)
        sought = places.sort().values.to(survivors.indices.dtype)
        chosen = torch.searchsorted(survivors.indices, sought).clamp_(max=max(0, available - 1))
        if not torch.equal(survivors.indices[chosen], sought):  # another method's survivors
            ranks = permute.ranks(survivors.indices, survivors.n, key)
            chosen = ranks.topk(k, largest=False, sorted=False).indices.sort().values
        return Selection(survivors.values[chosen], survivors.indices[chosen], survivors.n)

    def key(self, context: Context) -> int:
        """32 bits that tell the places of this step and tensor, on all rungs alike."""
        return counter.key(context.seed, context.step, context.name, *self._after(context))

    def draw(self, tensor: Tensor, context: Context) -> Tensor:
        """What is sent, before it is coded: f32[k], in the order of the permutation."""
        batch = Batch((context.name,), [tensor])
        drawn = self.coded(batch, context, "fp32")
        return drawn.layout.view(drawn.buffer, 0, 2)

    def draw_again(self, drawn: Tensor, n: int) -> Tensor:
        """What is sent, from what a weaker setting has drawn of n values: the first k of them."""
        k = self._kept(n)
        first = drawn[:k]
        return first * (drawn.numel() / k) if self.unbiased and k else first

    def _widened(self, halves: Tensor, context: Context) -> Tensor:
        """A mean of halves as float32; one that was rounded up past their range is their largest."""
        values = context.scratch("mean_values", halves.numel(), torch.float32, halves.device)
        widen(halves, Batch(("values",), [values]), 1.0, accumulate=False, saturate=True)
        return values

    def _after(self, context: Context) -> tuple[int | str, ...]:
        """What keys are made of besides seed, step and name: neither path nor rung."""
        return ("randomk", -1 if self.shared else context.rank)

    def _kept(self, n: int) -> int:
        return num_kept(n, share_sent(self.density, self.factor))


@cached()
def _layout(sizes: tuple[int, ...], share: float, kind: str, travels: bool) -> KeyedLayout:
    """For tensors of these sizes."""
    return keyed_layout(sizes, tuple([num_kept(n, share) for n in sizes]), kind, travels)
