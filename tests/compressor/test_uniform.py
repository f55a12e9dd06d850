"""The uniform quantizer against its formula in numpy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numeric import Array, both_kernels, context, dense, encoded, hashed_uniform, heavy_tailed

from dgc_repro import Uniform
from dgc_repro.compressor.encoding import TENSOR_ROW
from dgc_repro.compressor.uniform import ROUNDINGS
from dgc_repro.kernel.codes import group, unpack
from dgc_repro.payload import Codes


def sent_codes(own: Codes) -> list[Array]:
    """The codes as they travel, a row each, filling removed: unpacked from the bytes."""
    (layout,), packed = own.layout.tensors, own.layout.view(own.buffer, 0, 1)
    _, size = group(layout.bits)
    every = packed.split([layout.body_plane] * size + [layout.tail_plane] * size)
    rows: list[Array] = []
    for planes, count in ((every[:size], layout.body_rows), (every[size:], layout.tail_rows)):
        if count:
            parts = unpack([plane.view(count, -1).to(torch.int32) for plane in planes], layout.bits)
            rows += list(torch.stack(parts, 1).reshape(count, -1)[:, : layout.width].numpy())
    rows[-1] = rows[-1][: layout.n - sum(map(len, rows[:-1]))]
    return rows


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


def check_float32(payload: Codes, x: Array, setting: Uniform, key: int) -> None:
    """Codes, scales and decoded values, bit for bit."""
    expected = reference(x, setting, key, np.float32)
    for sent, (code, _, _) in zip(sent_codes(payload), expected, strict=True):
        np.testing.assert_array_equal(sent, code)
    scales = [scale for _, _, scale in expected]
    sent = payload.layout.view(payload.buffer, 0, 0)
    np.testing.assert_array_equal(sent, scales if setting.block else scales[:1])
    zero = 2 ** (setting.bits - 1) - 1
    decoded = [(code - zero).astype(np.float32) * scale for code, _, scale in expected]
    np.testing.assert_array_equal(dense(payload).numpy(), np.concatenate(decoded))


def check_float64(payload: Codes, x: Array, setting: Uniform, key: int) -> None:
    """Codes, except on the edge of a step, exactly where they may differ, by one: float32 rounds x / s
    with a relative error of at most 2^-22 (four roundings: 1 / Q, s, 1 / s, the product; and 2^-21 more
    toward zero, the margin of the kernel), so a value that close to where the code changes may fall
    on its other side. With random rounding that place is the random number."""
    expected = reference(x, setting, key, np.float64)
    numbering = places(len(x), setting.block or TENSOR_ROW, group(setting.bits)[0])
    edges, margin = 0, 2.0**-22 + (2.0**-21 if setting.rounding == "toward_zero" else 0)
    for sent, (code, y, _), index in zip(sent_codes(payload), expected, numbering, strict=True):
        if setting.rounding == "nearest":
            distance = np.abs(np.abs(y - np.trunc(y)) - 0.5)
        elif setting.rounding == "toward_zero":
            distance = np.abs(y - np.rint(y))
        else:
            fraction = y - np.floor(y)
            change = np.abs(fraction - hashed_uniform(index, key))
            distance = np.minimum(change, np.minimum(fraction, 1 - fraction))
        close = distance <= np.abs(y) * margin
        edges += int(close.sum())
        np.testing.assert_array_equal(sent[~close], code[~close])
        assert np.abs(sent - code).max() <= 1
    # Each block's largest value lies on a step; few others lie near an edge.
    assert edges <= len(x) / (setting.block or len(x)) * 2 + len(x) * 2.0 ** (setting.bits - 18) + 5


@both_kernels
@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8, 12, 16])
def test_codes_equal_the_references(bits: int, rounding: str) -> None:
    key = context().key(shared=False)
    # Whole rows, whole blocks, and a rest.
    for block, size in ((None, 5003), (7, 703), (512, 5003)):
        setting, x = Uniform(bits, rounding, block), heavy_tailed(size, bits)
        payload = encoded(setting, x)
        check_float32(payload, x.numpy(), setting, key)
        check_float64(payload, x.double().numpy(), setting, key)


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("bits", range(2, 17))
def test_a_constant_tensor_comes_back_whatever_the_rounding(bits: int, rounding: str) -> None:
    """Every value is the largest one, a code of Q: what comes back is s Q, but for the roundings of
    1 / Q, s and s Q. Random rounding may take one of them a step down, with probability 2^-22 Q."""
    for value in range(1, 200):
        x = torch.full((9,), 0.37 * value)
        decoded = dense(encoded(Uniform(bits, rounding), x))
        step = x / (2 ** (bits - 1) - 1)
        exact = (decoded - x).abs() <= 3 * 2.0**-24 * x
        if rounding == "stochastic":
            exact |= (decoded - x).abs() <= 1.001 * step
        assert bool(exact.all()), f"{float(x[0])} came back as {float(decoded[0])}"
