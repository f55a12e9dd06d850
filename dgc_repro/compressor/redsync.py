"""RedSync: trimmed top-k for tensors of middle size, a search for the threshold for large ones.

Paper: Fang et al., "RedSync: reducing synchronization bandwidth for distributed deep learning
training system", Journal of Parallel and Distributed Computing, 2019 (arXiv:1808.04357),
algorithm 2 (trimmed top-k), algorithm 3 (threshold binary search), section on quantization.
Asks: to gather k' entries, k <= k' <= 2 k (and at most n), k = max(1, round(n density)); k' = k
below ``search_from`` values: 8 bytes of header, places and values as in topk. ``quantized``: header,
places and one value of 4 bytes; there k' < k where fewer than k entries have the sign of the step.
Differs: k' lies in [k, 2 k] whatever the data: where the search finds no such threshold (equal
magnitudes, or more than half of a tensor wanted) the k largest are sent; nothing is ever empty.
Trimming is a means to exact top-k, which `chosen.topk` reaches faster. The search compares the same
thresholds as the paper's, but counts nothing: the k-th and the 2 k + 1st largest magnitude, which exact top-k
finds in one pass, say whether fewer than k or more than 2 k entries pass a threshold. A threshold is not
used again for the next steps (no state). Tensors under 128 KB, which the paper leaves uncompressed, are the
wrapper per_layer's: wrap=[per_layer] with smaller_than: 32768.
Quantized: the paper sends the k entries of the largest signed value and the k of the smallest in turns,
each time with their mean for a value. Here entries of the other sign are never among them, so k' may be
below k; where no entry has the sign of the step, the other sign is sent. The turn is the step's parity, the
same for all tensors and workers. The paper does not quantize the output layer; here every tensor that
reaches the method is quantized. What is sent of a single entry may be farther from it than 0 is; the tensor
as a whole comes nearer. One sign waits in every step, so the mode needs an error feedback.

    mean, max of |x|;  l, r = 0, 1
    repeat: ratio = (l + r) / 2;  t = mean + ratio (max - mean);  c = #{|x| > t}
            k <= c <= 2 k: stop;  c < k: r = ratio;  c > 2 k: l = ratio
    quantized: x = max(x, 0) on even steps, min(x, 0) on odd; values sent = their mean

Letters: n = values, k = entries wanted, t = threshold.
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import torch

from dgc_repro.checked import checked, within
from dgc_repro.compressor.interface import Context
from dgc_repro.compressor.sparsifier import DensitySparsifier
from dgc_repro.kernel import chosen, thresholds
from dgc_repro.kernel.batch import Batch, narrow
from dgc_repro.kernel.cached import cached
from dgc_repro.kernel.chosen import Late, Selections
from dgc_repro.kernel.thresholds import Keys, Mask
from dgc_repro.payload import Sparse

SEARCH_FROM = 1_048_576  # values: 4 MB
HALVINGS = 32  # of the range between mean and max; then its ends are neighbours in float32


@checked
class RedSync(DensitySparsifier):
    """``density`` or ``factor``: as in `DensitySparsifier`.
    ``search_from``: values from which a tensor is searched instead of trimmed. ``quantized``: send
    places and one mean value, of positive entries on even steps (from 0) and of negative ones on odd."""

    search_from: Annotated[int, within(0), f"the paper's 4 MB are {SEARCH_FROM}"] = SEARCH_FROM
    quantized: bool = False
    ragged = True

    @property
    def gather_only(self) -> bool:
        """Sums of places that share a value share none."""
        return self.quantized

    @property
    def refines(self) -> bool:
        """Survivors that share a value have lost their order."""
        return not self.quantized

    def payload_of(self, names: tuple[str, ...], chosen: Selections, context: Context) -> Any:
        return Sparse.of(names, chosen, context.scratch, shared=self.quantized)

    def choose_all(self, x: Batch, sizes: tuple[int, ...], context: Context) -> Selections:
        ks = self.each_num_kept(sizes)
        if self.quantized:
            return self._one_signed(x, sizes, ks, context)
        return self._largest(x, sizes, ks, context)

    def _one_signed(
        self, x: Batch, sizes: tuple[int, ...], ks: tuple[int, ...], context: Context
    ) -> Selections:
        """Entries of the sign of the step, all with their mean for a value."""
        sign = 1 if context.step % 2 == 0 else -1
        if x.on_gpu and narrow(x):
            from dgc_repro.kernel.gpu import thresholds as gpu

            signed, signs = gpu.one_signed(x, sign, context.buffers("signed", x))
            found = self._searched_on_gpu(signed, sizes, ks, context, zeros=False)
            assert isinstance(found, Late)
            return gpu.averaged(found, signed, signs)
        parts: list[tuple[list[int], Selections]] = []
        means = np.zeros(len(x))
        places = list(range(len(x)))
        for label, side, least in (("", sign, 1), ("other", -sign, 1), ("zeros", -sign, 0)):
            some = x.part(places)
            signed = Batch(some.names, context.buffers(f"signed{label}", some))
            torch._foreach_copy_(list(signed.tensors), list(some.tensors))
            clamp = torch._foreach_clamp_min_ if side > 0 else torch._foreach_clamp_max_
            clamp(list(signed.tensors), 0.0)
            own = tuple([ks[i] for i in places])
            found = self._largest(
                signed, tuple([sizes[i] for i in places]), own, context, label=label, least=least
            )
            seen = thresholds.moments(found.values_of(signed), context.scratch)
            means[places] = side * seen.total / np.maximum(found.counts, 1)
            sent = np.array(found.counts, dtype=bool) | (np.array(own) == 0)
            ended = np.flatnonzero(sent).tolist()
            parts.append(([places[i] for i in ended], found.part(ended)))
            places = [places[i] for i in np.flatnonzero(~sent).tolist()]
            if not places:
                break
        every = Selections.joined(parts).in_order
        values = np.repeat(means.astype(np.float32), every.counts)
        every.values.copy_(torch.from_numpy(values))
        return every

    def _largest(
        self, x: Batch, sizes: tuple[int, ...], ks: tuple[int, ...], context: Context, *,
        label: str = "", least: int = 0,
    ) -> Selections:  # fmt: skip
        """k to 2 k entries of each tensor. ``least``: 1 leaves zeros out."""
        if x.on_gpu and narrow(x) and not least:
            return self._searched_on_gpu(x, sizes, ks, context)
        searched, most = _searches(x.sizes, sizes, ks, self.search_from)
        first = chosen.topk(x, [most], context.scratch, f"{label}largest")[0]
        if not (searched.any() or least):
            return first
        values = first.values_of(x)
        active = searched if least == 0 else values.counts > 0
        limits = thresholds.kths(values, tuple(map(min, ks, x.sizes)), active)
        wanted = np.minimum(ks, x.counts)
        if least:  # zeros are only there if there is nothing else, or too little
            wanted = np.where(active & (limits == 0), values.counts, wanted)
            limits = np.maximum(limits, active.astype(np.int32))
        if searched.any():
            beyond = thresholds.kths(values, values.sizes, searched)
            beyond[values.counts <= 2 * np.array(ks)] = -1
            found = _searched(x, limits, beyond, searched, context)
            wanted = np.where(found < 0, wanted, values.counts)
            limits = np.where(found < 0, limits, found)
        return chosen.reaching(
            values, limits, wanted, context.scratch, f"{label}reaching", through=first
        )

    def _searched_on_gpu(
        self,
        x: Batch,
        sizes: tuple[int, ...],
        ks: tuple[int, ...],
        context: Context,
        *,
        zeros: bool = True,
    ) -> Selections:
        """The same of all tensors together. ``zeros``: whether they are chosen where too few values differ
        from 0, and not only where none does."""
        from dgc_repro.kernel.gpu import thresholds as gpu

        searched, _ = _searches(x.sizes, sizes, ks, self.search_from)
        limits = gpu.searched(x, ks, tuple(searched.tolist()), HALVINGS, zeros=zeros)
        return chosen.reaching(x, *limits, context.scratch, expected=np.array(ks))


@cached()
def _searches(
    counts: tuple[int, ...], sizes: tuple[int, ...], ks: tuple[int, ...], search_from: int
) -> tuple[Mask, tuple[int, ...]]:
    """Which tensors are searched, and so many entries of each, the largest, tell what the search finds."""
    every = list(zip(counts, sizes, ks, strict=True))
    searched = [n >= search_from and k < count for count, n, k in every]
    most = [
        min(2 * k + 1 if search else k, count)
        for (count, _, k), search in zip(every, searched, strict=True)
    ]
    return np.array(searched, dtype=bool), tuple(most)


def _searched(x: Batch, kth: Keys, beyond: Keys, searched: Mask, context: Context) -> Keys:
    """Algorithm 3: limits that between k and 2 k entries reach, or -1 where it finds none. At least c entries
    pass a threshold if the c-th largest does: kth, and beyond, the 2 k + 1st."""
    at = np.flatnonzero(searched)
    seen = thresholds.moments(x, context.scratch, active=searched)
    looking = np.isfinite(seen.largest[at])
    largest = np.where(looking, seen.largest[at], 0.0)
    mean = np.where(looking, seen.total[at] / x.counts[at], 0.0)
    found = np.full(len(at), -1, dtype=np.int32)
    low, high = np.zeros(len(at)), np.ones(len(at))
    for _ in range(HALVINGS):
        if not looking.any():
            break
        ratio = (low + high) / 2
        # |x| > t is |x| >= the number that follows t.
        limit = thresholds.keys_of(mean + ratio * (largest - mean)) + 1
        few = limit > kth[at]
        here = looking & ~few & (limit > beyond[at])
        found[here] = limit[here]
        looking &= ~here
        low, high = np.where(few, low, ratio), np.where(few, ratio, high)
    limits = np.full(len(x), -1, dtype=np.int32)
    limits[at] = found
    return limits
