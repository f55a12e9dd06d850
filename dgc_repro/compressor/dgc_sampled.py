"""Top-k by a threshold from a sample, with a second exact selection: the compression of DGC.

Paper: Lin et al., "Deep gradient compression: reducing the communication bandwidth for distributed
training", ICLR 2018 (arXiv:1712.01887), section 5 ("we sample 0.1 % to 1 % of the gradients and
perform top-k selection on the samples to estimate the threshold; if the number of gradients
exceeding the threshold is far more than expected, a precise threshold is estimated from the already
selected gradients"). The numbers are those of the authors' code (synxlin/deep-gradient-compression).
Asks: `GatherRagged` of k' entries, 0.8 k <= k' <= k = max(1, round(n density)), fewer than 0.8 k only
where ten lowerings find no more: 8 bytes of header, places and values as in topk.
Differs: where more than k pass the threshold, the k largest of them are sent, always (the authors'
code cuts the first k by place where there are fewer than 1.3 k: the end of the tensor starves). The
sample is one entry of each so many neighbours at hashed places, at least 64 n / k of them, else the
whole tensor, which makes it exact top-k. Warm-up, momentum correction and clipping are wrappers
and a policy, not this file.

    t = the ceil(m k / n)-th largest magnitude of a sample of m entries
    while fewer than 0.8 k entries have |x| >= t, at most 10 times: t = 0.8 t
    send {|x| >= t}, of these the k largest

Letters: n = values, k = entries wanted, m = entries of the sample, t = threshold.
"""

from __future__ import annotations

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

FEWEST = 0.8  # of k; below, the threshold is lowered
LOWERED = 0.8  # to this share of itself
LOWERINGS = 10  # at most


@dataclass(frozen=True)
class DGCSampled:
    """``density``: the share of entries to send, above 0 to 1; or ``factor``: one of so many.
    ``sample``: the share of entries that the threshold is estimated from.
    ``indices``: auto (the smallest), int32, delta16 or bitmap;
    ``values``: fp32, fp16 or int8."""

    density: float | None = None
    factor: float | None = None
    sample: float = 0.01
    indices: str = "auto"
    values: str = "fp32"
    ragged = True

    def __post_init__(self) -> None:
        check_density(self.density, self.factor)
        check_coding(self.indices, self.values)
        check_sample(self.sample)

    def init(self, tensor: Tensor) -> State:
        return {}

    def exchange(self, tensor: Tensor, state: State, context: Context) -> Exchange:
        return (yield from exchange_selected(self, tensor, state, context))

    def select(self, tensor: Tensor, context: Context) -> Selection:
        chosen = self._choose(tensor.view(-1), self._kept(tensor.numel()), context)
        return mark_finite(chosen, tensor, context)

    def refine(self, survivors: Selection, context: Context) -> Selection:
        chosen = self._choose(survivors.values, self._kept(survivors.n), context)
        return select.among(survivors, chosen.indices, scratch=context.scratch)

    def energy(self, tensor: Tensor, context: Context) -> Tensor:
        return explained_by(self, self.select(tensor, context))

    def _choose(self, x: Tensor, k: int, context: Context) -> Selection:
        m = thresholds.sample_size(x.numel(), k, self.sample)
        if m == x.numel() or k >= x.numel():
            return select.topk(x, k, scratch=context.scratch)
        key = context.key(shared=False)
        threshold = thresholds.estimate(x, k, m, key, context.scratch)
        found = select.above(x, threshold, scratch=context.scratch, expected=k)
        for _ in range(LOWERINGS):
            if found.values.numel() >= FEWEST * k:
                break
            threshold *= LOWERED
            found = select.above(x, threshold, scratch=context.scratch, expected=k)
        if found.values.numel() > k:
            found = select.refine(found, k, scratch=context.scratch)
        return found

    def _kept(self, n: int) -> int:
        return num_kept(n, check_density(self.density, self.factor))
