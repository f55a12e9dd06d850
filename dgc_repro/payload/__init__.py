"""What a worker sends for the tensors of a batch, as it is sent.

A payload is the row of bytes that travels, and the few numbers that both sides know already (its *layout*:
sizes, bits). A row that arrives becomes a payload again with ``like``. Error feedback needs one in-place pass
over a buffer whatever the method: ``subtract_from_``.

Letters: n = values of the original tensor, N = workers, k = entries sent.

====================  ======================================================================
`Wholes`              the tensors themselves
`Codes`               packed b-bit codes and one float32 scale a row (kernel/codes.py)
`Signs`               one bit a value, and what the bits mean (kernel/signs.py)
`Powers`              a sign and eight exponent bits a value (kernel/powers.py)
`Floats`              narrow floating-point numbers and scales of blocks (kernel/floats.py)
`Sparse`              k values, or one for all, and their places, coded (kernel/sparse.py); k may differ
`Parted`              several payloads: of a batch tensor by tensor, in parts, or in stretches
`LowRank`             two thin factors of a matrix
`Chunked`             entries of each chunk of a tensor, with short places and coded values
`Cosines`             coefficients of the cosine transform of each chunk, with short places
`Keyed`               k values, coded, whose places are the first of a permutation that a key draws
`Rotated`             codes of the entries of blocks that a key rotates, and a scale a block
====================  ======================================================================
"""

from dgc_repro.payload.chunked import Chunked, Cosines
from dgc_repro.payload.coded import Codes, Floats, Powers, Signs, vote
from dgc_repro.payload.interface import ALONE, BatchPayload
from dgc_repro.payload.keyed import Keyed, KeyedLayout
from dgc_repro.payload.own import Halves, LowRank, Parted, Wholes
from dgc_repro.payload.rotated import Rotated
from dgc_repro.payload.sparse import Sparse

__all__ = [
    "ALONE",
    "BatchPayload",
    "Chunked",
    "Codes",
    "Cosines",
    "Floats",
    "Halves",
    "Keyed",
    "KeyedLayout",
    "LowRank",
    "Parted",
    "Powers",
    "Rotated",
    "Signs",
    "Sparse",
    "Wholes",
    "vote",
]
