"""How the places and values of k chosen entries of n are coded, and how they are added to a tensor.

Places, which ascend, in whole words of 4 bytes (int64: of 8):

=========  =====================================  =================================================
`INT32`    4 k bytes                              the places
`INT64`    8 k bytes                              the same where n > 2^31 - 1
`DELTA16`  2 (k + E) bytes, E = (n - k) // 65535  how many entries were passed over, 16 bits each;
                                                  65535 stands for so many and no entry. What is
                                                  left of the E such escapes fills the end
`BITMAP`   n / 8 bytes                            bit i of the words: whether entry i is there
=========  =====================================  =================================================

All sizes depend on n and k alone. Values are float32. The CPU's kernels are c/sparse.c; the tensor
operations here are the fallback and the reference, with equal bits.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dgc_repro.kernel.select import index_type

Numbers = npt.NDArray[np.int64]
INT32, INT64, DELTA16, BITMAP = 0, 1, 2, 3
ESCAPE = 65535


def plain(n: Numbers) -> Numbers:
    """The coding that leaves the places as they are, for tensors of n values."""
    return np.where(n <= 2**31 - 1, INT32, INT64)  # `select.index_type`


def num_words(n: Numbers, k: Numbers, coding: Numbers) -> Numbers:
    """Words of 4 bytes of the coded places of k of n (`INT64`: two a place), so that every coding has one
    type."""
    return np.select(
        [coding == DELTA16, coding == BITMAP, coding == INT64],
        [(k + (n - k) // ESCAPE + 1) // 2, (n + 31) // 32, 2 * k],
        k,
    )


def encode_places(indices: Tensor, n: int, coding: int, words: Tensor) -> None:
    """indices (ascending, i32[k] or i64[k]) -> words (i32[num_words]); not for the plain codings."""
    if coding == BITMAP:
        bits = torch.zeros(32 * words.numel(), dtype=torch.uint8, device=words.device)
        bits[indices.long()] = 1
        weights = 2 ** torch.arange(8, dtype=torch.uint8, device=words.device)
        words.view(torch.uint8).copy_((bits.view(-1, 8) * weights).sum(1, dtype=torch.uint8))
        return
    places = indices.long()
    gaps = places.diff(prepend=places.new_tensor([-1])) - 1
    escapes = torch.div(gaps, ESCAPE, rounding_mode="floor")
    words.fill_(-1)
    at = torch.arange(places.numel(), device=words.device) + escapes.cumsum(0)
    code = gaps - escapes * ESCAPE
    words.view(torch.int16)[at] = (code - (code >= 1 << 15) * (1 << 16)).to(torch.int16)


def decode_places(words: Tensor, n: int, k: int, coding: int) -> Tensor:
    """The inverse: i32[k] or i64[k]. Raises ValueError where the words do not name k places of n."""
    if coding == BITMAP:
        shifts = torch.arange(8, dtype=torch.uint8, device=words.device)
        bits = (words.view(torch.uint8).view(-1, 1) >> shifts) & 1
        places = torch.nonzero(bits.view(-1)[:n]).view(-1)
    elif coding == DELTA16:
        codes = words.view(torch.int16).long() & 0xFFFF
        passed = torch.where(codes == ESCAPE, codes, codes + 1)
        places = (passed.cumsum(0) - 1)[codes != ESCAPE]
    else:
        places = words.view(torch.int64) if coding == INT64 else words
    ascend = bool((places.diff() > 0).all())
    inside = places.numel() == 0 or (int(places[0]) >= 0 and int(places[-1]) < n)
    if places.numel() != k or not (ascend and inside):
        raise broken_places(n, k)
    return places.to(index_type(n))


def broken_places(n: int, k: int) -> ValueError:
    """The error of indices that do not ascend within a tensor."""
    return ValueError(
        f"sparse payload: its places are not {k} ascending places of {n}: sort them in `select`, each once "
        "(or the payload was damaged on its way, or comes from another version of this package)"
    )
