"""Narrow floating-point formats against their specifications in numpy, and against torch's 8-bit types."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from numeric import Array, both_kernels, context, dense, encoded, hashed_uniform, heavy_tailed
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from dgc_repro import BlockFloat
from dgc_repro.compressor.blockfloat import FORMATS
from dgc_repro.kernel import floats

NUMBERS = {  # exponent bits, mantissa bits, bias, the largest number: table 1 to 5 of the specification
    "E4M3": (4, 3, 7, 448.0),
    "E5M2": (5, 2, 15, 57344.0),
    "E2M3": (2, 3, 1, 7.5),
    "E3M2": (3, 2, 3, 28.0),
    "E2M1": (2, 1, 1, 6.0),
}
ELEMENTS = {
    "fp8_e4m3": "E4M3", "fp8_e5m2": "E5M2", "mxfp8": "E4M3", "mxfp8_e5m2": "E5M2", "mxfp6": "E2M3",
    "mxfp6_e3m2": "E3M2", "mxfp4": "E2M1", "nvfp4": "E2M1",
}  # fmt: skip


def numbers(kind: str) -> Array:
    """All numbers of a format that are not negative, by their codes: (-1)^s 2^(E - bias) (1 + M / 2^m), and
    2^(1 - bias) M / 2^m where E is 0."""
    exponent_bits, m, bias, largest = NUMBERS[kind]
    found = [
        2.0 ** (max(e, 1) - bias) * ((e > 0) + fraction / 2**m)
        for e in range(2**exponent_bits)
        for fraction in range(2**m)
    ]
    return np.array([number for number in found if number <= largest])


def rounded(y: Array, kind: str, drawn: Array | None = None) -> Array:
    """To the nearest number, ties to the even code; or to the upper one of the two beside |y| where the drawn
    number is below the fraction. What is above the last number becomes it."""
    every = numbers(kind)
    size = np.minimum(np.abs(y), every[-1])
    above = np.searchsorted(every, size)  # the first that is no smaller
    below = np.where(every[above] == size, above, above - 1)
    down, up = size - every[below], every[above] - size
    if drawn is None:
        is_below = (down < up) | ((down == up) & (below % 2 == 0))
    else:
        is_below = drawn >= down / np.where(above > below, every[above] - every[below], 1.0)
    return np.sign(y) * every[np.where(is_below, below, above)]


def scales_of(x: Array, name: str) -> Array:
    """The scale of each value, by the specification of its format."""
    largest = np.abs(x).max()
    if name.startswith("fp8"):
        return np.full(len(x), np.float32(largest) / np.float32(NUMBERS[ELEMENTS[name]][3]))
    found, width = np.zeros(len(x)), 16 if name == "nvfp4" else 32
    for start in range(0, len(x), width):
        here = np.s_[start : start + width]
        top = np.abs(x[here]).max()
        if name == "nvfp4":
            whole = np.float32(largest) / np.float32(6 * 448)
            ratio = np.float32(top) / np.float32(6) / whole
            found[here] = np.float32(rounded(np.array([ratio]), "E4M3")[0]) * whole
        else:
            emax = math.floor(math.log2(numbers(ELEMENTS[name])[-1]))
            shared = math.floor(math.log2(top)) - emax if top > 0 else -127
            found[here] = 2.0 ** max(shared, -127)
    return found


@both_kernels
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
@pytest.mark.parametrize("name", FORMATS)
def test_values_equal_the_reference_of_the_specification(name: str, rounding: str) -> None:
    """Powers of two divide exactly: mx is the same to the bit. A quotient by another scale is rounded to
    float32 on both sides."""
    method, key = BlockFloat(name, rounding), context().key(shared=False)
    for size in (1, 31, 32, 33, 1003):
        for x in (heavy_tailed(size, size), torch.arange(size) / 4.0 + 0.125, -torch.ones(size)):
            scale, quotient = scales_of(x.double().numpy(), name), np.zeros(size, np.float32)
            np.divide(x.numpy(), scale.astype(np.float32), where=scale > 0, out=quotient)
            drawn = None if rounding == "nearest" else hashed_uniform(np.arange(size), key)
            expected = rounded(quotient.astype(np.float64), ELEMENTS[name], drawn) * scale
            found = dense(encoded(method, x)).double().numpy()
            np.testing.assert_allclose(found, expected, rtol=2.0**-23, atol=0)
            if name.startswith("mx"):
                np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("kind", NUMBERS)
def test_every_code_stands_for_the_number_of_the_specification(kind: str) -> None:
    element = getattr(floats, kind)
    table, every = floats.table(element, torch.device("cpu")), numbers(kind)
    half = len(table) // 2
    np.testing.assert_array_equal(table[: len(every)].numpy(), every)
    np.testing.assert_array_equal(table[half : half + len(every)].numpy(), -every)
    assert element.last == len(every) - 1
    assert bool(table[len(every) : half].isnan().all())
    # Each number, and what lies half-way between two, rounds as told.
    y = np.concatenate([every, (every[1:] + every[:-1]) / 2, every * 1.01, [1e30, 1e-30]])
    y = np.concatenate([y, -y])
    code = floats.rounded(torch.from_numpy(y).float(), element, None)
    np.testing.assert_array_equal(table[code].numpy(), rounded(np.float32(y), kind))


def test_scales_of_blocks_are_e8m0s() -> None:
    table = floats.table(None, torch.device("cpu"))
    codes = torch.arange(256, dtype=torch.uint8)
    torchs = codes.view(torch.float8_e8m0fnu).float()
    assert torch.equal(table[:-1], torchs[:-1])
    assert bool(table[-1].isnan())
    assert bool(torchs[-1].isnan())


def test_an_example_of_the_specification_by_hand() -> None:
    """The largest value of 32 is 5: 2^2 is its power, emax of E2M1 is 2, so that X = 1."""
    x = torch.zeros(32)
    x[:8] = torch.tensor([5.0, 0.2, 0.25, 0.26, 0.75, 2.5, 3.5, -1.25])
    own = encoded(BlockFloat("mxfp4"), x)
    scales, packed = own.layout.views(own.buffer, 0)
    assert scales.tolist() == [127]
    # 5 lies between 4 and 6, 0.25 between 0 and 0.5: the even code.
    assert dense(own)[:8].tolist() == [4.0, 0.0, 0.0, 0.5, 1.0, 2.0, 4.0, -1.0]
    assert packed[:4].tolist() == [0x06, 0x10, 0x42, 0xA6]
    x[0] = 7.9  # X does not change: what is above 6 is clipped
    assert float(dense(encoded(BlockFloat("mxfp4"), x))[0]) == 6.0


def test_blocks_of_nvfp4_far_below_the_largest_value_are_clipped_or_sent_as_zeros() -> None:
    """The smallest scale is 2^-9: of a largest value of 1 it is that of 2^-9 / 448 = 1 / 229376."""
    x = torch.ones(64)
    least = 1 / 229376
    x[16:32], x[32:48], x[48:] = 0.499 * least, 1.499 * least, 65 / 64 * 8 * least
    found = dense(encoded(BlockFloat("nvfp4"), x))[::16] / least
    assert found[1:].tolist() == pytest.approx([0, 1, 8], rel=1e-6)


@pytest.mark.parametrize("name", FORMATS)
def test_no_scale_comes_from_a_division_by_a_number(name: str) -> None:
    """A GPU multiplies by the rounded reciprocal of a number; it divides by a tensor as a CPU does."""

    class Divisors(TorchDispatchMode):
        found: ClassVar[list[object]] = []

        def __torch_dispatch__(self, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is torch.ops.aten.div.Tensor:
                self.found.append(args[1])
            return func(*args, **(kwargs or {}))

    with Divisors() as mode:
        encoded(BlockFloat(name), torch.ones(100))
    assert mode.found
    assert all(isinstance(divisor, Tensor) for divisor in mode.found)
