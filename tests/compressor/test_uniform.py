"""The quantizer against its formula in numpy, its sizes, its noise, and its messages."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from dgc_repro.compressor.encoding import TENSOR_ROW
from dgc_repro.compressor.interface import Context
from dgc_repro.compressor.uniform import ROUNDINGS, Uniform
from dgc_repro.exchange.payload import Codes, num_bytes
from dgc_repro.kernel import native
from dgc_repro.kernel.codes import group, unpack
from dgc_repro.kernel.workspace import Workspace

Array = NDArray[Any]
SIZE = 5003  # a whole row of 4096, whole blocks, and a rest


@pytest.fixture(params=["c", "tensors"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both implementations, one after the other; without a C compiler the second twice."""
    if request.param == "tensors":
        monkeypatch.setattr(native, "library", lambda: None)


def context(step: int = 0, rank: int = 0) -> Context:
    return Context("w", step, 11, rank, 2, 0, (0, 0), Workspace())


def heavy_tailed(seed: int = 0, size: int = SIZE) -> Tensor:
    source = torch.Generator().manual_seed(seed)
    x = torch.randn(size, generator=source)
    return x * torch.exp(2 * torch.randn(size, generator=source))


def sent_codes(payload: Codes) -> list[Array]:
    """The codes as they travel, a row each, filling removed: unpacked from the bytes."""
    layout, (_, size) = payload.layout, group(payload.layout.bits)
    rows: list[Array] = []
    for planes, count in (
        (payload.planes[:size], layout.body_rows),
        (payload.planes[size:], layout.tail_rows),
    ):
        if count:
            parts = unpack([plane.view(count, -1).to(torch.int32) for plane in planes], layout.bits)
            rows += list(torch.stack(parts, 1).reshape(count, -1)[:, : layout.width].numpy())
    left = layout.n
    for index, row in enumerate(rows):
        rows[index] = row[:left]
        left -= len(rows[index])
    assert left == 0
    return rows


def hashed_uniform(index: Array, key: int) -> Array:
    """The counter's hash in unsigned arithmetic: f64 in (0, 1)."""
    with np.errstate(over="ignore"):
        k = np.uint32(key & 0xFFFFFFFF)
        h = index.astype(np.uint32) ^ k
        h = (h ^ (h >> np.uint32(16))) * np.uint32(0x7FEB352D)
        h = (h ^ (h >> np.uint32(15)) ^ (k * np.uint32(0x7FEB352D))) * np.uint32(0x846CA68B)
        h = h ^ (h >> np.uint32(16))
    return ((h >> np.uint32(9)).astype(np.float64) + 0.5) * 2.0**-23


def places(n: int, width: int, codes: int) -> list[Array]:
    """The place in the tensor's numbering of every value of every row: parts, filling included."""
    rows, start = [], 0
    filled_from = n // width * width if width % codes == 0 else 0
    tail = -(-min(n - filled_from, width) // codes) * codes
    while start < n:
        row = start // width
        first = start if start < filled_from else filled_from + (row - filled_from // width) * tail
        rows.append(first + np.arange(min(width, n - start)))
        start += width
    return rows


def reference(x: Array, setting: Uniform, key: int, kind: type) -> list[tuple[Array, Array, Array]]:
    """(code, x / s, s) of every row, in ``kind``: float32 as the kernel rounds, or float64.

    Q = 2^(b-1) - 1,  s = max|x| / Q,  code = round(x / s) + Q
    """
    largest = 2 ** (setting.bits - 1) - 1
    width, codes = setting.block or TENSOR_ROW, group(setting.bits)[0]
    found = []
    for row, index in zip(
        np.split(x, range(width, len(x), width)), places(len(x), width, codes), strict=True
    ):
        peak = kind(np.abs(row if setting.block else x).max())
        scale = peak * kind(1.0 / largest)
        inverse = kind(1.0) / scale
        if setting.rounding == "toward_zero" and kind is np.float32:
            inverse = inverse * np.float32(1 + 2.0**-21)
        y = row.astype(kind) * inverse
        if setting.rounding == "nearest":
            code = np.rint(y)  # halves to even
        elif setting.rounding == "toward_zero":
            code = np.trunc(y)
        else:
            code = np.floor(y) + (hashed_uniform(index, key) < y - np.floor(y))
        found.append((np.clip(code, -largest, largest).astype(np.int64) + largest, y, scale))
    return found


CASES = [
    (bits, rounding, block)
    for bits in (2, 3, 4, 5, 6, 8, 12, 16)
    for rounding in ROUNDINGS
    for block in (None, 7, 512)
]


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize(("bits", "rounding", "block"), CASES)
def test_codes_equal_the_float32_reference_bit_for_bit(
    bits: int, rounding: str, block: int | None
) -> None:
    setting, x = Uniform(bits, rounding, block), heavy_tailed()
    payload = setting.encode(x, context())
    expected = reference(x.numpy(), setting, context().key(shared=False), np.float32)
    for sent, (code, _, _) in zip(sent_codes(payload), expected, strict=True):
        np.testing.assert_array_equal(sent, code)
    scales = [scale for _, _, scale in expected]
    np.testing.assert_array_equal(payload.scales.numpy(), scales if block else scales[:1])
    decoded = np.concatenate(
        [(code - 2 ** (bits - 1) + 1).astype(np.float32) * scale for code, _, scale in expected]
    )
    np.testing.assert_array_equal(payload.dense().numpy(), decoded)


@pytest.mark.parametrize(("bits", "rounding", "block"), CASES)
def test_codes_equal_the_float64_reference_except_on_the_edge_of_a_step(
    bits: int, rounding: str, block: int | None
) -> None:
    """Exactly where they may differ, by one: float32 rounds x / s with a relative error of at most
    2^-22 (four roundings: 1 / Q, s, 1 / s, the product; and 2^-21 more toward zero, the margin of
    the kernel), so a value that close to where the code changes may fall on its other side. With
    random rounding that place is the random number."""
    setting, x = Uniform(bits, rounding, block), heavy_tailed(1)
    key = context().key(shared=False)
    payload = setting.encode(x, context())
    expected = reference(x.double().numpy(), setting, key, np.float64)
    numbering = places(SIZE, block or TENSOR_ROW, group(bits)[0])
    edges = 0
    for sent, (code, y, _), index in zip(sent_codes(payload), expected, numbering, strict=True):
        if rounding == "nearest":
            distance = np.abs(np.abs(y - np.trunc(y)) - 0.5)
        elif rounding == "toward_zero":
            distance = np.abs(y - np.rint(y))
        else:
            fraction = y - np.floor(y)
            change = np.abs(fraction - hashed_uniform(index, key))
            distance = np.minimum(change, np.minimum(fraction, 1 - fraction))
        close = distance <= np.abs(y) * (2.0**-22 + (2.0**-21 if rounding == "toward_zero" else 0))
        edges += int(close.sum())
        np.testing.assert_array_equal(sent[~close], code[~close])
        assert np.abs(sent - code).max() <= 1
    # Each block's largest value lies on a step; few others lie near an edge.
    assert edges <= SIZE / (block or SIZE) * 2 + SIZE * 2.0 ** (bits - 18) + 5


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("bits", range(2, 17))
def test_a_constant_tensor_comes_back_whatever_the_rounding(bits: int, rounding: str) -> None:
    """Every value is the largest one, a code of Q: what comes back is s Q, but for the roundings of
    1 / Q, s and s Q. Random rounding may take one of them a step down, with probability 2^-22 Q."""
    for value in range(1, 200):
        x = torch.full((9,), 0.37 * value)
        decoded = Uniform(bits, rounding).encode(x, context()).dense()
        step = x / (2 ** (bits - 1) - 1)
        exact = (decoded - x).abs() <= 3 * 2.0**-24 * x
        if rounding == "stochastic":
            exact |= (decoded - x).abs() <= 1.001 * step
        assert bool(exact.all()), f"{float(x[0])} came back as {float(decoded[0])}"


@pytest.mark.parametrize("block", [None, 100])
@pytest.mark.parametrize(
    ("rounding", "steps"), [("nearest", 0.5), ("toward_zero", 1), ("stochastic", 1)]
)
@pytest.mark.parametrize("bits", [2, 4, 7, 12, 16])
def test_no_value_moves_by_more_than_its_rounding_allows(
    bits: int, rounding: str, steps: float, block: int | None
) -> None:
    """|x - decoded| <= s / 2, or s: plus the float32 error of y = x / s, 2^-21 |x| at most."""
    x = heavy_tailed(2)
    payload = Uniform(bits, rounding, block).encode(x, context())
    scale = payload.scales.repeat_interleave(block)[:SIZE] if block else payload.scales
    error = (x.double() - payload.dense().double()).abs()
    assert bool((error <= steps * scale.double() + 2.0**-20 * x.abs().double()).all())
    if rounding == "toward_zero":
        assert bool((payload.dense().abs() <= x.abs() * (1 + 2.0**-20)).all())


def test_workers_and_steps_draw_apart_and_alike_when_repeated() -> None:
    x, setting = heavy_tailed(4), Uniform(4, "stochastic")
    first = setting.encode(x, context(0, 0)).dense()
    assert torch.equal(first, setting.encode(x, context(0, 0)).dense())
    assert not torch.equal(first, setting.encode(x, context(1, 0)).dense())
    assert not torch.equal(first, setting.encode(x, context(0, 1)).dense())


@pytest.mark.parametrize(
    ("bits", "block", "size", "expected"),
    [
        (4, None, 8192, 4 + 4096),  # half a byte a code, one scale
        (6, None, 8192, 4 + 6144),  # 4 codes in 3 bytes
        (12, None, 8192, 4 + 12288),  # 2 codes in 3 bytes
        (8, None, 8192, 4 + 8192),
        (16, None, 10, 4 + 20),
        (2, None, 10, 4 + 3),  # 4 codes a byte, the third filled up
        (4, 2048, 8192, 4 * 4 + 4096),
        (4, 2048, 8193, 4 * 5 + 4097),
        (8, 7, 15, 4 * 3 + 15),
        (4, None, 1, 4 + 1),
        (4, None, 0, 0),
        (4, 16, 0, 0),
    ],
)
def test_packed_sizes_are_what_the_bits_say(
    bits: int, block: int | None, size: int, expected: int
) -> None:
    payload = Uniform(bits, block=block).encode(torch.ones(size), context())
    assert num_bytes(payload) == expected == payload.layout.num_bytes
    assert payload.num_floats == size * bits / 32


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bits": 1}, "bits: a whole number from 2 to 16, got 1; for one bit use a sign method"),
        ({"bits": 17}, "bits: a whole number from 2 to 16, got 17"),
        ({"bits": "eight"}, "bits: a whole number from 2 to 16, got 'eight'"),
        ({"bits": True}, "bits: a whole number from 2 to 16, got True"),
        ({"bits": 4.0}, "bits: a whole number from 2 to 16, got 4.0"),
        ({"block": 0}, "block: a whole number from 1, or null"),
        ({"block": -4}, "block: a whole number from 1, or null"),
        ({"block": True}, "block: a whole number from 1, or null"),
        ({"block": "512"}, "block: a whole number from 1, or null"),
        ({"rounding": "nearst"}, "rounding: one of nearest, toward_zero, stochastic, got 'nearst'"),
    ],
)
def test_a_wrong_setting_is_named_with_its_range(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(message)):
        Uniform(**settings)
