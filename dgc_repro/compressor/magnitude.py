"""Global magnitude: the k entries of largest magnitude of the whole model, wherever they lie.

Paper: Aji and Heafield, "Sparse communication for distributed gradient descent", EMNLP 2017
(arXiv:1704.05021), section 3 (one global threshold against one for each tensor); the global
constraint of magnitude pruning (Han et al., "Learning both weights and connections for efficient
neural networks", NeurIPS 2015, arXiv:1506.02626), applied to gradients.
Asks: `Gather` of k = max(1, round(n density)) entries, n = values of the model: 8 bytes of header,
places and values as in topk.
Differs: exact, not from a sample; ties go to the lower index. It needs all gradients in one vector:
exchange.unit=model, and is refused with exchange.unit=layer, where it would be top-k of each tensor.

Letters: n = values of the model, k = entries sent.
"""

from __future__ import annotations

from dgc_repro.compressor.topk import TopK


class Magnitude(TopK):
    """``density`` or ``factor``, ``indices``, ``values``: as in `DensitySparsifier`, of the whole
    model's entries."""

    unit = "model"
