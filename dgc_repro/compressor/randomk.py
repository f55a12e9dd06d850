"""Random-k: k entries chosen at random.

Paper: Stich, Cordonnier, Jaggi, "Sparsified SGD with memory", NeurIPS 2018 (arXiv:1809.07599),
definition 2.1, with error feedback; as GRACE (Xu et al., ICDCS 2021) and GraVAC use it.
Asks: with shared places the mean of k = max(1, round(n density)) values: 4 k bytes, no index travels. With
places of each worker's own it gathers k values and the key that tells the places: 8 + 4 k bytes.
Differs: places are the first k of a keyed permutation (kernel/permute.py), distinct for certain, and
those of a stronger setting are the first of a weaker one's. The key is of (seed, step, name), and of
the worker where places are not shared; the rung of a ladder is no part of it, so that rungs nest.
Silent: whether workers choose the same places. They do by default: the average then has k entries and
costs an allreduce.

``unbiased`` sends n / k times the value, so that the expectation over the places is the gradient. Its
variance grows as n / k, and it is no contraction: with a residual it is refused. A value that n / k takes
past float32's range comes out infinite, never as another number: the next step's gradient is then not
finite, and the run ends with a line.

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
from dgc_repro.compressor.interface import Context, Step
from dgc_repro.compressor.sparsifier import (
    Density,
    Factor,
    Selecting,
    num_kept,
    share_sent,
)
from dgc_repro.kernel import counter, permute
from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.cached import cached
from dgc_repro.kernel.select import Selection, at
from dgc_repro.payload import Keyed, KeyedLayout

if TYPE_CHECKING:
    from dgc_repro.exchange.world import World


@checked
class RandomK(Selecting):
    """``density``: share of the entries to send (0.01 where neither is given). ``factor``: send one
    entry of so many: 100 is density 0.01.
    ``shared``: all workers choose the same places. ``unbiased``: values are scaled by n / k."""

    density: Density | None = None
    factor: Factor | None = None
    shared: bool = True
    unbiased: bool = False
    ragged = False
    sends_selected = False  # places are drawn again, in the order of the permutation
    gather_only = True  # a shard's places would have to travel

    def __post_init__(self) -> None:
        share_sent(self.density, self.factor)

    @property
    def needs_feedback(self) -> bool:
        return not self.unbiased

    @property
    def expands(self) -> bool:
        """Scaled up, it is unbiased and farther from its tensor than nothing is."""
        return self.unbiased

    @property
    def refines(self) -> bool:
        """A selection holds values as they are, not scaled."""
        return not self.unbiased

    def encode(self, x: Batch, context: Context) -> Keyed:
        layout = _layout(x.sizes, share_sent(self.density, self.factor), not self.shared)
        buffer = context.scratch("sent", layout.size, torch.uint8, x.device)
        keys = counter.keys((context.seed, context.step), x.names, self._after(context))
        on_device = torch.from_numpy(keys).to(x.device, non_blocking=True)
        return Keyed.of(x, layout, on_device, buffer, scaled=self.unbiased)

    def send(self, sent: Sequence[Keyed], out: Batch, world: World, context: Context) -> Step:
        if not self.shared:
            return (yield from super().send(sent, out, world, context))
        first = sent[0].values
        mean = context.scratch("mean", first.numel(), first.dtype, first.device)
        yield world.mean([one.values for one in sent], mean)
        replace(sent[0], buffer=mean.view(torch.uint8)).copy_to_(out, 1.0)
        return sent

    def energies(self, batch: Batch, context: Context) -> Tensor:
        return explained_of_each(batch, self.encode(batch, context), context)

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
        drawn = self.encode(batch, context)
        return drawn.layout.view(drawn.buffer, 0, 1)

    def draw_again(self, drawn: Tensor, n: int) -> Tensor:
        """What is sent, from what a weaker setting has drawn of n values: the first k of them."""
        k = self._kept(n)
        first = drawn[:k]
        return first * (drawn.numel() / k) if self.unbiased and k else first

    def _after(self, context: Context) -> tuple[int | str, ...]:
        """What keys are made of besides seed, step and name: neither path nor rung."""
        return ("randomk", -1 if self.shared else context.rank)

    def _kept(self, n: int) -> int:
        return num_kept(n, share_sent(self.density, self.factor))


@cached()
def _layout(sizes: tuple[int, ...], share: float, travels: bool) -> KeyedLayout:
    """For tensors of these sizes."""
    return KeyedLayout(sizes, tuple([num_kept(n, share) for n in sizes]), travels)
