"""What travels: codes of every width, signs, and halves."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numeric import batch, both_kernels, dense, heavy_tailed, same_but_for_nan
from torch import Tensor

from dgc_repro.kernel import narrow as kernels
from dgc_repro.kernel import signs
from dgc_repro.kernel.batch import Batch
from dgc_repro.kernel.codes import group, pack, unpack
from dgc_repro.kernel.narrow import largest
from dgc_repro.kernel.signs import SignLayout
from dgc_repro.payload import Signs


@pytest.mark.parametrize("bits", range(2, 17))
def test_codes_lie_in_the_bytes_lowest_bits_first_and_come_back(bits: int) -> None:
    """The bytes of a group, read as one little-endian number, hold code i at bit i b."""
    codes, size = group(bits)
    assert codes * bits == size * 8
    source = torch.Generator().manual_seed(bits)
    parts = list(torch.randint(0, 2**bits, (codes, 1000), generator=source, dtype=torch.int32))
    parts[0][:2] = torch.tensor([0, 2**bits - 1])
    rows = pack(parts, bits)
    for each, code in zip(
        torch.stack(rows, 1).tolist(), torch.stack(parts, 1).tolist(), strict=True
    ):
        number = int.from_bytes(bytes(each), "little")  # a value beyond a byte raises
        assert number == sum(one << (i * bits) for i, one in enumerate(code))
    assert all(map(torch.equal, parts, unpack(rows, bits)))


# Signs: one bit a value.

SIZES = (1, 2, 31, 32, 33, 100, 4095, 4096, 4097, 8200, 70_001)


def packed(x: Tensor, *, zero_too: bool = False) -> Signs:
    """The signs of a tensor."""
    layout = SignLayout((x.numel(),), (0,))
    buffer = torch.full((layout.size,), 249, dtype=torch.uint8)
    signs.pack(batch(x), layout, buffer, zero_too=zero_too)
    return Signs(("x",), layout, buffer)


def by_hand(negative: list[bool], n: int) -> list[int]:
    """Bit p of word j of a row is of value p L + j; a row has 4096 values or what is left."""
    words = []
    for start in range(0, n, 4096):
        row = negative[start : start + 4096]
        length = -(-len(row) // 32)
        for j in range(length):
            places = [p * length + j for p in range(32)]
            words.append(sum(1 << p for p, at in enumerate(places) if at < len(row) and row[at]))
    return words


@both_kernels
@pytest.mark.parametrize("size", SIZES)
def test_a_bit_is_where_the_docstring_says_and_comes_back_as_plus_or_minus_one(size: int) -> None:
    x = heavy_tailed(size, size)
    own = packed(x)
    (words,) = own.layout.views(own.buffer, 0)
    assert words.numpy().view(np.uint32).tolist() == by_hand((x < 0).tolist(), size)
    assert words.nbytes == 4 * -(-size // 32)
    assert torch.equal(dense(own), torch.where(x < 0, -1.0, 1.0))


@both_kernels
def test_a_zero_and_a_nan_go_where_they_are_told() -> None:
    x = torch.tensor([0.0, -0.0, torch.nan, -torch.nan, 1e-45, -1e-45])
    assert dense(packed(x)).tolist() == [1, 1, 1, 1, 1, -1]
    assert dense(packed(x, zero_too=True)).tolist() == [-1, -1, 1, 1, 1, -1]


# Halves: each there and back, and every rounding between them.

each_type = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)


def every(dtype: torch.dtype) -> Tensor:
    """All 65536 of them."""
    return torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)


def narrow(x: Tensor, to: Tensor) -> None:
    """Of a batch of three tensors."""
    cuts = [0, x.numel() // 3, x.numel() // 3, x.numel() - x.numel() // 3 - x.numel() // 3]
    kernels.narrow(Batch(("a", "b", "c", "d"), x.split(cuts)), to)


def widen(
    half: Tensor, x: Tensor, weight: float, *, accumulate: bool, saturate: bool = False
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
