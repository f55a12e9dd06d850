"""Gradient dropping: what lies below an absolute threshold is not sent.

Paper: Aji and Heafield, "Sparse communication for distributed gradient descent", EMNLP 2017
(arXiv:1704.05021), section 3: the R % smallest by absolute value are dropped, the threshold comes
from the R-quantile of a sample of 0.1 % of the gradient, because an exact one is slow. With a fixed
``threshold``: Strom, "Scalable distributed DNN training using commodity GPU cloud computing",
Interspeech 2015, as Aji and Heafield read it (the values travel; Strom sends the threshold's sign).
Asks: `GatherRagged` of k' entries: 8 bytes of header, places and values as in topk. k' is about
k = max(1, round(n density)): for 99.99 % of samples k' / k lies within 1 +- 1/2 (at least 64 sampled
entries lie above the threshold). With a fixed threshold k' is whatever passes it, nothing included.
Differs: the sample is one entry of each so many neighbours at hashed places, at least 64 n / k of
them, else the whole tensor, which makes it exact top-k. Entries equal to the estimated threshold are
sent only as far as they fill k, lower index first: a constant tensor sends k entries, not all.
One threshold a tensor ("local" in the paper); one for the whole model is exchange.unit=model.

    t = the ceil(m k / n)-th largest magnitude of a sample of m entries;  send {|x| >= t}

Letters: n = values, k = entries wanted, m = entries of the sample, t = threshold.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from dgc_repro.compressor.interface import Context, State
from dgc_repro.compressor.selected import check_sample, mark_finite
from dgc_repro.compressor.sparsifier import (
    check_coding,
    check_density,
    exchange_selected,
    explained_by,
    num_kept,
)
from dgc_repro.exchange.requests import Exchange
from dgc_repro.kernel import select, thresholds
from dgc_repro.kernel.select import Selection


@dataclass(frozen=True)
class Threshold:
    """``density``: the share of entries to send, above 0 to 1; or ``factor``: one of so many; or
    ``threshold``: the smallest magnitude to send. ``sample``: the share of entries that the threshold
    is estimated from.
    ``indices``: auto (the smallest), int32, delta16 or bitmap;
    ``values``: fp32, fp16 or int8."""

    density: float | None = None
    factor: float | None = None
    threshold: float | None = None
    sample: float = 0.001
    indices: str = "auto"
    values: str = "fp32"
    ragged = True

    def __post_init__(self) -> None:
        check_density(self.density, self.factor)
        check_coding(self.indices, self.values)
        check_sample(self.sample)
        fixed = self.threshold
        if fixed is None:
            return
        if self.density is not None or self.factor is not None:
            raise ValueError(
                "threshold: a fixed threshold sends whatever passes it, so give no density and no factor"
            )
        number = isinstance(fixed, int | float) and not isinstance(fixed, bool)
        if not number or not 0 < fixed < math.inf:
            raise ValueError(
                f"threshold: a magnitude above 0, or null to estimate it from density or factor, "
                f"got {fixed!r}"
            )

    def init(self, tensor: Tensor) -> State:
        return {}

    def exchange(self, tensor: Tensor, state: State, context: Context) -> Exchange:
        return (yield from exchange_selected(self, tensor, state, context))

    def select(self, tensor: Tensor, context: Context) -> Selection:
        return mark_finite(self._choose(tensor.view(-1), tensor.numel(), context), tensor, context)

    def refine(self, survivors: Selection, context: Context) -> Selection:
        chosen = self._choose(survivors.values, survivors.n, context)
        return select.among(survivors, chosen.indices, scratch=context.scratch)

    def energy(self, tensor: Tensor, context: Context) -> Tensor:
        return explained_by(self, self.select(tensor, context))

    def _choose(self, x: Tensor, n: int, context: Context) -> Selection:
        """From x, the entries of a tensor of n values or its survivors."""
        if self.threshold is not None:
            return select.above(x, self.threshold, scratch=context.scratch)
        k = num_kept(n, check_density(self.density, self.factor))
        m = thresholds.sample_size(x.numel(), k, self.sample)
        if m == x.numel() or k >= x.numel():
            return select.topk(x, k, scratch=context.scratch)
        key = context.key(shared=False)
        threshold = thresholds.estimate(x, k, m, key, context.scratch)
        found = select.above(x, threshold, scratch=context.scratch, expected=k)
        if found.values.numel() <= k:
            return found
        larger = thresholds.count(found.values, thresholds.following(threshold))
        if larger == found.values.numel() - 1:  # the sampled entry alone is equal to the threshold
            return found
        return select.refine(found, max(k, larger), scratch=context.scratch)
