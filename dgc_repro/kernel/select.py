"""Choose entries of one tensor: exact top-k, and entries of a selection. chosen.py does it for a batch.

What is chosen is a `Selection`, indices ascending. Magnitudes are compared as integers (the bits of
a float32 without its sign, which order as the magnitudes do), so that a NaN lies above infinity and
is selected, whatever the kernel. Ties go to the lower index. The CPU's kernels are c/select.c; what
stands here in tensor operations is the fallback and the reference, with equal results.

Letters: n = values of the tensor, k = entries chosen.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from dgc_repro.kernel import native
from dgc_repro.kernel.cached import cached

Scratch = Callable[[str, int, torch.dtype, torch.device], Tensor]
"""Where results and intermediate tensors of batches are kept, by label, such as `Context.scratch`: they are
valid during the exchange, until the label is used again."""

_WITHOUT_SIGN = 0x7FFFFFFF
_ENERGY_PART = 1 << 22  # values made float64 at a time

_topk_scratch = native.Function("dgc_topk_scratch")
_topk = native.Function("dgc_topk")


@dataclass(frozen=True, slots=True)
class Selection:
    """Entries of a tensor of n values. ``indices`` ascend; i64 where n > 2^31 - 1, else i32."""

    values: Tensor  # f32[k]
    indices: Tensor  # i32[k] or i64[k]
    n: int


def index_type(n: int) -> torch.dtype:
    """The narrowest index that reaches n values."""
    return torch.int32 if n <= 2**31 - 1 else torch.int64


def magnitude_bits(x: Tensor) -> Tensor:
    """|x| as integers that order as the magnitudes do: i32, the shape of x. NaN is above all."""
    return x.view(torch.int32) & _WITHOUT_SIGN


def at(x: Tensor, indices: Tensor) -> Selection:
    """The entries of x (f32[n]) at these ascending places."""
    return Selection(x[indices.long()], indices.to(index_type(x.numel())), x.numel())


def among(selection: Selection, chosen: Tensor) -> Selection:
    """Those entries of a selection that stand at the ascending places ``chosen``."""
    places = chosen.long()
    return Selection(selection.values[places], selection.indices[places], selection.n)


def topk(x: Tensor, k: int) -> Selection:
    """The k entries of largest magnitude, exactly; of equal ones those with the lower index."""
    return ladder(x, [k])[0]


def refine(selection: Selection, k: int) -> Selection:
    """The k entries of largest magnitude among those of a selection."""
    return among(selection, topk(selection.values, k).indices)


def ladder(x: Tensor, ks: Sequence[int]) -> list[Selection]:
    """The k entries of largest magnitude for each k of ``ks``, which fall: what `topk` gives for each,
    but x is read once."""
    if any(weaker < stronger for weaker, stronger in pairwise(ks)):
        raise ValueError(f"ks: a ladder grows stronger, so its ks fall; got {list(ks)}")
    n = x.numel()
    whole = Selection(x, torch.arange(n, dtype=index_type(n), device=x.device), n)
    found: list[Selection] = []
    if not (native.usable(x) and x.is_contiguous()):
        for k in ks:
            weaker = found[-1] if found else whole
            found.append(among(weaker, _places_of_largest(weaker.values, k)))
        return found
    for k in ks:
        if k >= n:
            found.append(Selection(x.clone(), whole.indices, n))
        else:
            found.append(Selection(x.new_empty(max(k, 0)), whole.indices.new_empty(max(k, 0)), n))
    chosen = [one for one, k in zip(found, ks, strict=True) if 0 < k < n]
    if chosen:
        sizes = [one.values.numel() for one in chosen]
        work = torch.empty(max(topk_scratch_bytes(n, k) for k in sizes), dtype=torch.uint8)
        _topk(
            x.data_ptr(), n, len(sizes), (ctypes.c_int64 * len(sizes))(*sizes), None,
            whole.indices.dtype == torch.int64, native.pointers([one.values for one in chosen]),
            native.pointers([one.indices for one in chosen]), work.data_ptr(),
        )  # fmt: skip
    return found


def energy(x: Tensor) -> Tensor:
    """||x||^2, f64[], with tensor operations: no square overflows. x: f32."""
    return torch.stack([part.double().square().sum() for part in x.split(_ENERGY_PART)]).sum()


def _places_of_largest(x: Tensor, k: int) -> Tensor:
    """i64[min(k, n)], ascending: the tensor kernel of `topk`."""
    if not 0 < k < x.numel():
        return torch.arange(min(max(k, 0), x.numel()), device=x.device)
    keys = magnitude_bits(x)
    smallest = torch.topk(keys, k, sorted=False).values.min()
    ties = torch.nonzero(keys == smallest).view(-1)
    beyond = torch.nonzero(keys > smallest).view(-1)
    return torch.cat([beyond, ties[: k - beyond.numel()]]).sort().values


@cached(4096)
def topk_scratch_bytes(n: int, k: int) -> int:
    """What the kernel needs to find the k largest of n."""
    return int(_topk_scratch(n, k))
