"""Exact top-k: the k entries of largest magnitude.

Paper: Aji and Heafield, "Sparse communication for distributed gradient descent", EMNLP 2017
(arXiv:1704.05021), with a fixed number of entries; Stich et al., "Sparsified SGD with memory",
NeurIPS 2018 (arXiv:1809.07599), definition 2.1, which analyses it with error feedback.
Asks: to gather k = max(1, round(n density)) entries: 8 bytes of header; places: the fewest of 4 k (as they
are), 2 (k + (n - k) // 65535) (distances) and n / 8 (a bitmap) bytes, filled up to whole words of 4; values:
4 k bytes.
Differs: ties go to the lower index, so that all kernels and rungs choose the same. The papers do not say how
places are coded.

With exchange.unit=model (compressor=magnitude) the entries are those of the whole model, wherever they lie:
Aji and Heafield, section 3 (one global threshold against one for each tensor); the global constraint of
magnitude pruning (Han et al., "Learning both weights and connections for efficient neural networks",
NeurIPS 2015, arXiv:1506.02626), applied to gradients.

Letters: n = values, k = entries sent.
"""

from __future__ import annotations

from collections.abc import Sequence

from dgc_repro.checked import checked
from dgc_repro.compressor.interface import Context
from dgc_repro.compressor.sparsifier import DensitySparsifier, Largest
from dgc_repro.kernel import chosen as chosen_of
from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.chosen import Selections


@checked
class TopK(DensitySparsifier):
    """``density`` or ``factor``, ``indices``, ``values``: as in `DensitySparsifier`."""

    ragged = False

    def choose_all(self, x: Batch, sizes: tuple[int, ...], context: Context) -> Selections:
        if type(self) is TopK:  # quicker than one by one
            ks = self.each_num_kept(sizes)
        else:
            ks = tuple([self.num_largest(n) for n in sizes])
        return chosen_of.topk(x, [ks], context.scratch)[0]

    def num_largest(self, n: int) -> int:
        return self.num_kept(n)


def largest(batch: Batch, rungs: Sequence[Largest], context: Context) -> list[Selections]:
    """The entries of largest magnitude of each tensor, for several numbers that fall."""
    ks = [tuple([rung.num_largest(n) for n in batch.sizes]) for rung in rungs]
    return chosen_of.topk(batch, ks, context.scratch)
