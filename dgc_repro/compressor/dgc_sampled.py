"""Top-k by a threshold from a sample, with a second exact selection: the compression of DGC.

Paper: Lin et al., "Deep gradient compression: reducing the communication bandwidth for distributed
training", ICLR 2018 (arXiv:1712.01887), section 5 ("we sample 0.1 % to 1 % of the gradients and
perform top-k selection on the samples to estimate the threshold; if the number of gradients
exceeding the threshold is far more than expected, a precise threshold is estimated from the already
selected gradients"). The numbers are those of the authors' code (synxlin/deep-gradient-compression).
Asks: to gather k' entries, 0.8 k <= k' <= k = max(1, round(n density)), fewer than 0.8 k only
where ten lowerings find no more: 8 bytes of header, places and values as in topk.
Differs: where more than k pass the threshold, the k largest of them are sent, always (the authors'
code cuts the first k by place where there are fewer than 1.3 k: the end of the tensor starves). The
sample is one entry of each so many neighbours at hashed places, at least 64 n / k of them, else the
whole tensor, which makes it exact top-k. Warm-up, momentum correction and clipping are wrappers
and a policy, not this file. The kernels first find the k largest entries, which takes one pass, as
counting what passes a threshold does. Lowering compares order statistics in place of counts: at least c
entries pass t exactly if the c-th largest magnitude does. What is sent is the same.

    t = the ceil(m k / n)-th largest magnitude of a sample of m entries
    while fewer than 0.8 k entries have |x| >= t, at most 10 times: t = 0.8 t
    send {|x| >= t}, of these the k largest

Letters: n = values, k = entries wanted, m = entries of the sample, t = threshold.
"""

from __future__ import annotations

import math

import numpy as np

from dgc_repro.checked import checked
from dgc_repro.compressor.interface import Context
from dgc_repro.compressor.sparsifier import DensitySparsifier, Sample
from dgc_repro.kernel import chosen, thresholds
from dgc_repro.kernel.batch import Batch, narrow
from dgc_repro.kernel.chosen import Selections

FEWEST = 0.8  # of k; below, the threshold is lowered
LOWERED = 0.8  # to this share of itself
LOWERINGS = 10  # at most


@checked
class DGCSampled(DensitySparsifier):
    """``density`` or ``factor``, ``indices``, ``values``: as in `DensitySparsifier`.
    ``sample``: the share of entries that the threshold is estimated from."""

    sample: Sample = 0.01
    ragged = True

    def choose_all(self, x: Batch, sizes: tuple[int, ...], context: Context) -> Selections:
        ks = self.each_num_kept(sizes)
        keys = context.keys(x.names, shared=False)
        sample = thresholds.estimates(x, ks, self.sample, keys, context.scratch)
        fewest = tuple([math.ceil(FEWEST * k) for k in ks])
        if x.on_gpu and narrow(x):
            from dgc_repro.kernel.gpu import thresholds as gpu

            lowered = gpu.lowered(x, ks, fewest, sample.limits(), LOWERED, LOWERINGS)
            return chosen.reaching(x, lowered, np.array(ks), context.scratch)
        largest = chosen.topk(x, [ks], context.scratch)[0]
        if not sample.drawn.any():
            return largest
        values = largest.values_of(x)
        limits = thresholds.kths(sample.values, sample.ranks, sample.drawn)
        found = chosen.reaching(values, limits, values.counts, context.scratch, through=largest)
        few = sample.drawn & (np.array(found.counts) < fewest)
        if few.any():
            wanted = thresholds.kths(values, fewest, few)
            threshold = thresholds.magnitudes_of(limits)
            for _ in range(LOWERINGS):
                threshold = np.where(few & (limits > wanted), threshold * LOWERED, threshold)
                limits = thresholds.keys_of(threshold)
            found = chosen.reaching(values, limits, values.counts, context.scratch, through=largest)
        return found
