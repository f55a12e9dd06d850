"""RedSync: trimmed top-k for tensors of middle size, a search for the threshold for large ones.

Paper: Fang et al., "RedSync: reducing synchronization bandwidth for distributed deep learning
training system", Journal of Parallel and Distributed Computing, 2019 (arXiv:1808.04357),
algorithm 2 (trimmed top-k), algorithm 3 (threshold binary search), section on quantization.
Asks: `GatherRagged` of k' entries, k <= k' <= 2 k (and at most n), k = max(1, round(n density)); k' = k
below ``search_from`` values: 8 bytes of header, places and values as in topk. ``quantized``: header,
places and one value of 4 bytes; there k' < k where fewer than k entries have the sign of the step.
Differs: k' lies in [k, 2 k] whatever the data: where the search finds no such threshold (equal
magnitudes, or more than half of a tensor wanted) the k largest are sent; nothing is ever empty.
Trimming is a means to exact top-k, which `select.topk` reaches faster. The search compares the same
thresholds as the paper's; counts that a sample shows to be out of [k, 2 k] by 6 standard deviations
are not taken over the whole tensor, all others are. A threshold is not used again for the next steps
(no state). Tensors under 128 KB, which the paper leaves uncompressed, are the
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

import math
from collections.abc import Sequence
from typing import Annotated

import torch
from torch import Tensor

from dgc_repro.checked import checked, within
from dgc_repro.compressor.interface import Context, State
from dgc_repro.compressor.sparsifier import DensitySparsifier, Selecting, exchange_selected
from dgc_repro.kernel import select, thresholds
from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.chosen import Selections
from dgc_repro.kernel.select import Selection
from dgc_repro.payload.requests import Exchange

SEARCH_FROM = 1_048_576  # values: 4 MB
HALVINGS = 32  # of the range between mean and max; then its ends are neighbours in float32
LEAST_SAMPLE, MOST_SAMPLE = 0.003, 0.02  # shares of the entries that tell where the search ends
SAMPLED_ABOVE = 512  # so many of them should be among the k largest


@checked
class RedSync(DensitySparsifier):
    """``density`` or ``factor``, ``indices``, ``values``: as in `DensitySparsifier`.
    ``search_from``: values from which a tensor is searched instead of trimmed. ``quantized``: send
    places and one mean value, of positive entries on even steps (from 0) and of negative ones on odd."""

    search_from: Annotated[int, within(0), f"the paper's 4 MB are {SEARCH_FROM}"] = SEARCH_FROM
    quantized: bool = False
    ragged = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.quantized and self.values != "fp32":
            raise ValueError(f"values: quantized sends a single one, as fp32, got {self.values!r}")

    @property
    def gather_only(self) -> bool:
        """Sums of places that share a value share none."""
        return self.quantized

    @property
    def refines(self) -> bool:
        """Survivors that share a value have lost their order."""
        return not self.quantized

    def exchange_batch(self, batch: Batch, states: Sequence[State], context: Context) -> Exchange:
        return (yield from exchange_selected(self, batch, states, context, shared=self.quantized))

    def select_all(self, batch: Batch, context: Context) -> Selections:
        if self.quantized:  # a mean of values says nothing about each of them
            return Selecting.select_all(self, batch, context)
        return super().select_all(batch, context)

    def choose(self, x: Tensor, n: int, context: Context) -> Selection:
        if self.quantized:
            return self._one_signed(x, n, context)
        return self._largest(x, n, self.num_kept(n), context)

    def _one_signed(self, x: Tensor, n: int, context: Context) -> Selection:
        """Entries of the sign of the step, all with their mean for a value."""
        k = self.num_kept(n)
        sign = 1 if context.step % 2 == 0 else -1
        signed = context.scratch("signed", x.numel(), torch.float32, x.device)
        for side in (sign, -sign):
            torch.clamp(x, **{"min" if side > 0 else "max": 0.0}, out=signed)
            passing = thresholds.count(signed, thresholds.SMALLEST)
            if passing:
                break
        if 0 < passing < k:
            smallest = thresholds.SMALLEST
            found = select.above(signed, smallest, scratch=context.scratch, expected=passing)
        else:
            found = self._largest(signed, n, k, context)
        total = thresholds.moments(found.values).total
        found.values.fill_(side * total / max(found.values.numel(), 1))
        return found

    def _largest(self, x: Tensor, n: int, k: int, context: Context) -> Selection:
        if n < self.search_from or k >= x.numel():
            return select.topk(x, k, scratch=context.scratch)
        return searched(x, k, context)


def searched(x: Tensor, k: int, context: Context) -> Selection:
    """Between k and 2 k entries of x: algorithm 3, and the k largest where it finds no threshold."""
    chunks = context.scratch("chunks", thresholds.chunk_sums(x), torch.float64, x.device)
    seen = thresholds.moments(x, scratch=chunks)
    mean, largest = seen.total / x.numel(), seen.largest
    share = min(max(SAMPLED_ABOVE / k, LEAST_SAMPLE), MOST_SAMPLE)
    m = thresholds.sample_size(x.numel(), k, share)
    drawn = x
    if m < x.numel():
        to = context.scratch("sample", m, torch.float32, x.device)
        drawn = thresholds.sample(x, m, context.key(shared=False), to)
    low, high = 0.0, 1.0
    for _ in range(HALVINGS if math.isfinite(largest) else 0):
        ratio = (low + high) / 2
        # |x| > t is |x| >= the number that follows t.
        threshold = thresholds.following(thresholds.rounded(mean + ratio * (largest - mean)))
        count, sure = _guessed(drawn, threshold, x.numel(), k)
        if k <= count <= 2 * k:
            found = select.above(x, threshold, scratch=context.scratch, expected=int(count))
            count = found.values.numel()
            if k <= count <= 2 * k:
                return found
        elif not sure:
            count = thresholds.count(x, threshold)
            if k <= count <= 2 * k:
                return select.above(x, threshold, scratch=context.scratch, expected=int(count))
        low, high = (low, ratio) if count < k else (ratio, high)
    return select.topk(x, k, scratch=context.scratch)


def _guessed(drawn: Tensor, threshold: float, n: int, k: int) -> tuple[float, bool]:
    """How many of n values pass, judged from a sample; whether they are surely < k or > 2 k, which
    is when the sample would have to be off by 6 standard deviations."""
    passing, share = thresholds.count(drawn, threshold), drawn.numel() / n
    fewest, most = k * share, 2 * k * share
    sure = passing + 6 * math.sqrt(fewest) < fewest or passing - 6 * math.sqrt(most) > most
    return passing / share, sure or share == 1
