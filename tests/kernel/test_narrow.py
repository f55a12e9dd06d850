"""Casts: every half there and back, every rounding between them, C and tensors alike."""

from __future__ import annotations

import pytest
import torch
from numeric import both_kernels, same_but_for_nan

from dgc_repro.kernel import narrow as kernels
from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.narrow import largest

TYPES = (torch.float16, torch.bfloat16)
each_type = pytest.mark.parametrize("dtype", TYPES, ids=str)


def every(dtype: torch.dtype) -> torch.Tensor:
    """All 65536 of them."""
    return torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)


def narrow(x: torch.Tensor, to: torch.Tensor) -> None:
    """Of a batch of three tensors."""
    cuts = [0, x.numel() // 3, x.numel() // 3, x.numel() - x.numel() // 3 - x.numel() // 3]
    kernels.narrow(Batch(("a", "b", "c", "d"), x.split(cuts)), to)


def widen(
    half: torch.Tensor, x: torch.Tensor, weight: float, *, accumulate: bool, saturate: bool = False
) -> None:
    """To a batch of two tensors."""
    batch = Batch(("a", "b"), x.split([x.numel() // 2, x.numel() - x.numel() // 2]))
    kernels.widen(half, batch, weight, accumulate=accumulate, saturate=saturate)


@both_kernels
@each_type
def test_every_half_is_widened_to_its_value_and_narrowed_to_itself(dtype: torch.dtype) -> None:
    halves = every(dtype)
    wide, back = torch.empty(2**16), torch.empty(2**16, dtype=dtype)
    widen(halves, wide, 1.0, accumulate=False)
    assert same_but_for_nan(wide, halves.float())
    narrow(wide, back)
    assert same_but_for_nan(back.float(), halves.float())


@both_kernels
@each_type
def test_between_two_halves_the_nearer_wins_and_the_even_one_at_a_tie(dtype: torch.dtype) -> None:
    """Float32 holds the midpoints exactly (13 and 16 bits to spare; below fp16's normal range more),
    and their neighbours."""
    low = every(dtype)
    low = low[low.isfinite() & (low.view(torch.int16) >= 0)][:-1]
    high = (low.view(torch.int16) + 1).view(dtype)
    middle = ((low.double() + high.double()) / 2).float()
    assert torch.equal(middle.double(), (low.double() + high.double()) / 2)
    even = torch.where(low.view(torch.int16) % 2 == 0, low, high)
    for x, expected in (
        (middle, even),
        (middle.nextafter(torch.tensor(0.0)), low),
        (middle.nextafter(torch.tensor(torch.inf)), high),
    ):
        for sign in (1, -1):
            to = torch.empty_like(low)
            narrow(sign * x, to)
            assert torch.equal(to, sign * expected)


@both_kernels
@each_type
def test_what_is_too_large_becomes_the_largest_and_an_infinity_stays(dtype: torch.dtype) -> None:
    x = torch.tensor([3.4e38, -3.4e38, 3.4028234e38, torch.inf, -torch.inf, torch.nan] * 3)
    to = torch.empty(len(x), dtype=dtype)
    narrow(x, to)
    most = largest(dtype)
    assert to[:3].tolist() == [most, -most, most]
    assert to[3:5].tolist() == [torch.inf, -torch.inf]
    assert bool(to[5].isnan())
    wide = torch.empty(len(x))
    widen(to, wide, 2.0**-7, accumulate=False, saturate=True)
    assert (wide[:5] * 128).tolist() == [most, -most, most, most, -most]
    assert bool(wide[5].isnan())
