"""Gradient dropping: what lies below an absolute threshold is not sent.

Paper: Aji and Heafield, "Sparse communication for distributed gradient descent", EMNLP 2017
(arXiv:1704.05021), section 3: the R % smallest by absolute value are dropped, the threshold comes
from the R-quantile of a sample of 0.1 % of the gradient, because an exact one is slow. With a fixed
``threshold``: Strom, "Scalable distributed DNN training using commodity GPU cloud computing",
Interspeech 2015, as Aji and Heafield read it (the values travel; Strom sends the threshold's sign).
Asks: to gather k' entries: 8 bytes of header, places and values as in topk. k' is about
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

from typing import Annotated

import numpy as np

from dgc_repro.checked import Positive, checked
from dgc_repro.compressor.interface import Context
from dgc_repro.compressor.sparsifier import DensitySparsifier, Sample
from dgc_repro.kernel import chosen, thresholds
from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.chosen import Selections


@checked
class Threshold(DensitySparsifier):
    """``density`` or ``factor``, ``indices``, ``values``: as in `DensitySparsifier`; or
    ``threshold``: the smallest magnitude to send. ``sample``: the share of entries that the threshold is
    estimated from."""

    threshold: Annotated[Positive | None, "null to estimate it from density or factor"] = None
    sample: Sample = 0.001
    ragged = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.threshold is not None and (self.density, self.factor) != (None, None):
            raise ValueError(
                "threshold: a fixed threshold sends whatever passes it, so give no density and no factor"
            )

    def choose_all(self, x: Batch, sizes: tuple[int, ...], context: Context) -> Selections:
        if self.threshold is not None:
            limits = np.repeat(thresholds.keys_of(np.array([self.threshold])), len(x))
            return chosen.reaching(x, limits, x.counts, context.scratch, expected=x.counts // 32)
        ks = self.each_num_kept(sizes)
        keys = context.keys(x.names, shared=False)
        sample = thresholds.estimates(x, ks, self.sample, keys, context.scratch)
        return chosen.reaching(x, sample.limits(), np.array(ks), context.scratch)
