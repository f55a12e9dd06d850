"""Choose entries of a tensor: exact top-k, and entries of a selection.

What is chosen is a `Selection`, indices ascending. Magnitudes are compared as integers (the bits of
a float32 without its sign, which order as the magnitudes do), so that a NaN lies above infinity and
is selected, whatever the kernel. Ties go to the lower index. The CPU's kernels are c/select.c; what
stands here in tensor operations is the fallback and the reference, with equal results.

``scratch``: where results and intermediate tensors are kept, such as `Context.scratch`: they are
valid during the exchange, and of one name (`label`) until that is used again. Without it all
tensors are fresh.

Letters: n = values of the tensor, k = entries chosen.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import torch
from torch import Tensor

from dgc_repro.kernel import native

Scratch = Callable[[str, int, torch.dtype, torch.device], Tensor]

_WITHOUT_SIGN = 0x7FFFFFFF
_ENERGY_PART = 1 << 22  # values made float64 at a time

_topk_scratch = native.Function("dgc_topk_scratch")
_topk = native.Function("dgc_topk")
_energy = native.Function("dgc_energy")
_pick = native.Function("dgc_pick")


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


def at(x: Tensor, indices: Tensor, *, scratch: Scratch | None = None) -> Selection:
    """The entries of x (f32[n]) at these ascending places."""
    n = x.numel()
    if not (_usable(x) and indices.dtype in (torch.int32, torch.int64)):
        return Selection(x[indices.long()], indices.to(index_type(n)), n)
    indices = indices.contiguous()
    values = _buffer(scratch, "at.values", indices.numel(), torch.float32, x.device, x)
    _pick(
        x.data_ptr(), None, 0, indices.data_ptr(), indices.dtype == torch.int64, indices.numel(),
        values.data_ptr(), None,
    )  # fmt: skip
    return Selection(values, indices.to(index_type(n)), n)


def topk(x: Tensor, k: int, *, scratch: Scratch | None = None, label: str = "topk") -> Selection:
    """The k entries of largest magnitude, exactly; of equal ones those with the lower index."""
    n = x.numel()
    return _topk_of(x, [k], n, None, scratch, [label])[0]


def refine(
    selection: Selection, k: int, *, scratch: Scratch | None = None, label: str = "refined"
) -> Selection:
    """The k entries of largest magnitude among those of a selection."""
    return _topk_of(selection.values, [k], selection.n, selection.indices, scratch, [label])[0]


def among(
    selection: Selection, chosen: Tensor, *, scratch: Scratch | None = None, label: str = "among"
) -> Selection:
    """Those entries of a selection that stand at the ascending places ``chosen``."""
    if not (_usable(selection.values) and chosen.dtype in (torch.int32, torch.int64)):
        places = chosen.long()
        return Selection(selection.values[places], selection.indices[places], selection.n)
    chosen = chosen.contiguous()
    values, indices = _results(
        selection.indices.dtype, selection.values, selection.indices, chosen.numel(), scratch, label
    )
    _pick(
        selection.values.data_ptr(), selection.indices.data_ptr(), indices.dtype == torch.int64,
        chosen.data_ptr(), chosen.dtype == torch.int64, chosen.numel(), values.data_ptr(),
        indices.data_ptr(),
    )  # fmt: skip
    return Selection(values, indices, selection.n)


def ladder(
    x: Tensor, ks: Sequence[int], *, scratch: Scratch | None = None, label: str = "ladder"
) -> list[Selection]:
    """The k entries of largest magnitude for each k of ``ks``, which fall: what `topk` gives for each,
    but x is read once."""
    if any(weaker < stronger for weaker, stronger in pairwise(ks)):
        raise ValueError(f"ks: a ladder grows stronger, so its ks fall; got {list(ks)}")
    n = x.numel()
    labels = [f"{label}{rung}" for rung in range(len(ks))]
    whole = sum(k >= n for k in ks)
    found = [topk(x, n, scratch=scratch, label=one) for one in labels[:whole]]
    if whole == len(ks):
        return found
    if _usable(x):
        return found + _topk_of(x, ks[whole:], n, None, scratch, labels[whole:])
    found.append(topk(x, ks[whole]))
    for k in ks[whole + 1 :]:
        found.append(refine(found[-1], k))
    return found


def energy(x: Tensor) -> Tensor:
    """||x||^2, f64[]: no square overflows. x: f32, contiguous."""
    if not _usable(x):
        parts = [part.double().square().sum() for part in x.split(_ENERGY_PART)]
        return torch.stack(parts).sum()
    total = _energy(x.data_ptr(), x.numel())
    return torch.tensor(total, dtype=torch.float64)


def _topk_of(
    x: Tensor,
    ks: Sequence[int],
    n: int,
    through: Tensor | None,
    scratch: Scratch | None,
    labels: Sequence[str],
) -> list[Selection]:
    """The ks[0] largest of x, of these the ks[1] largest, ...; ``through``: the indices, in a tensor
    of n values, of what stands in x. Several ks: x.numel() > ks[0] >= ks[1] ... > 0, in C only."""
    size, k = x.numel(), ks[0]
    if k >= size:
        return [_everything(x, n, through, scratch, labels[0])]
    if k <= 0:
        return [Selection(x.new_empty(0), x.new_empty(0, dtype=index_type(n)), n)]
    if not _usable(x):
        chosen = _places_of_largest(x, k)
        indices = chosen.to(index_type(n)) if through is None else through[chosen]
        return [Selection(x[chosen], indices, n)]
    work, work_size = None, max(topk_scratch_bytes(size, k) for k in ks)
    if work_size:
        work = _buffer(scratch, f"{labels[0]}.work", work_size, torch.uint8, x.device)
    kind = index_type(n) if through is None else through.dtype
    found = [
        _results(kind, x, through, k, scratch, label) for k, label in zip(ks, labels, strict=True)
    ]
    _topk(
        x.data_ptr(), size, len(ks), (ctypes.c_int64 * len(ks))(*ks),
        None if through is None else through.data_ptr(), kind == torch.int64,
        native.pointers([values for values, _ in found]),
        native.pointers([indices for _, indices in found]),
        None if work is None else work.data_ptr(),
    )  # fmt: skip
    return [Selection(values, indices, n) for values, indices in found]


def _usable(x: Tensor) -> bool:
    return native.usable(x) and x.is_contiguous()


def _everything(
    x: Tensor, n: int, through: Tensor | None, scratch: Scratch | None, label: str
) -> Selection:
    """All entries, copied: x may be overwritten before a payload made of them is read."""
    kind = index_type(n) if through is None else through.dtype
    values, indices = _results(kind, x, through, x.numel(), scratch, label)
    values.copy_(x)
    if through is None:
        torch.arange(x.numel(), out=indices)
    else:
        indices.copy_(through)
    return Selection(values, indices, n)


def _places_of_largest(x: Tensor, k: int) -> Tensor:
    """i64[k], ascending: the tensor kernel of `topk`."""
    keys = magnitude_bits(x)
    smallest = torch.topk(keys, k, sorted=False).values.min()
    ties = torch.nonzero(keys == smallest).view(-1)
    beyond = torch.nonzero(keys > smallest).view(-1)
    return torch.cat([beyond, ties[: k - beyond.numel()]]).sort().values


@lru_cache(maxsize=4096)
def topk_scratch_bytes(n: int, k: int) -> int:
    """What the kernel needs to find the k largest of n."""
    return int(_topk_scratch(n, k))


def _results(
    kind: torch.dtype,
    x: Tensor,
    through: Tensor | None,
    k: int,
    scratch: Scratch | None,
    label: str,
) -> tuple[Tensor, Tensor]:
    """Values and indices to write k entries into; never where x and ``through`` lie."""
    values = _buffer(scratch, f"{label}.values", k, torch.float32, x.device, x)
    indices = _buffer(scratch, f"{label}.indices", k, kind, x.device, through)
    return values, indices


def _buffer(
    scratch: Scratch | None,
    name: str,
    size: int,
    dtype: torch.dtype,
    device: torch.device,
    read: Tensor | None = None,
) -> Tensor:
    """A buffer of this name, or a fresh one: where there are none, or while it is ``read``."""
    if scratch is not None:
        buffer = scratch(name, size, dtype, device)
        if read is None or buffer.data_ptr() != read.data_ptr() or size == 0:
            return buffer
    return torch.empty(size, dtype=dtype, device=device)
