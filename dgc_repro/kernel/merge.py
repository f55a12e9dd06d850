"""The sum of two selections of the same tensors.

Letters: a, b = entries of the two.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dgc_repro.kernel import native
from dgc_repro.kernel.chosen import Selections

_MERGE = native.Function("dgc_merge")


def merge(first: Selections, second: Selections) -> Selections:
    """All entries of both, ascending; where both have one, first + second (in this order)."""
    first, second = first.in_order, second.in_order
    at, other = first.places, second.places
    a, b = at.numel(), other.numel()
    if a == 0 or b == 0:
        return second if a == 0 else first
    if native.usable(first.values):
        values, places = first.values.new_empty(a + b), at.new_empty(a + b)
        count = _MERGE(
            first.values.data_ptr(), at.data_ptr(), a, second.values.data_ptr(), other.data_ptr(), b,
            values.data_ptr(), places.data_ptr(),
        )  # fmt: skip
        return Selections.at(first.sizes, values[:count], places[:count])
    place = torch.searchsorted(at, other).clamp_(max=a - 1)
    shared = at[place] == other
    summed = first.values.clone()
    summed[place[shared]] += second.values[shared]
    values = torch.cat([summed, second.values[~shared]])
    places = torch.cat([at, other[~shared]])
    order = places.argsort()
    return Selections.at(first.sizes, values[order], places[order])


def contained(places: Tensor, among: Tensor) -> Tensor:
    """Which of these ascending places are among those: bool, the shape of ``places``."""
    if among.numel() == 0:
        return torch.zeros(places.shape, dtype=torch.bool, device=places.device)
    found = torch.searchsorted(among, places).clamp_(max=among.numel() - 1)
    return among[found] == places
