"""Lossless coding of gradients: planes can be put together again, and an ANS coder reaches its bound."""

from __future__ import annotations

import numpy as np
import pytest

from dgc_repro.study.given import Gradients
from dgc_repro.study.lossless import Lossless, bound_bytes, planes_of

PRECISION = 14  # bits of a frequency


def rans_bytes(data: np.ndarray) -> int:
    """Bytes of a range ANS code (Duda, 2013) in one large integer, checked by decoding it."""
    counts = np.bincount(data, minlength=256)
    scaled = np.maximum(counts > 0, counts * 2**PRECISION // len(data)).tolist()
    scaled[int(np.argmax(counts))] += 2**PRECISION - sum(scaled)
    starts = np.cumsum([0, *scaled]).tolist()
    symbol_at = np.repeat(np.arange(256), scaled).tolist()
    state = first = 1
    for symbol in data.tolist():
        state = (state // scaled[symbol] << PRECISION) + state % scaled[symbol] + starts[symbol]
    size, found = (state.bit_length() + 7) // 8, []
    for _ in range(len(data)):
        slot = state & (2**PRECISION - 1)
        symbol = symbol_at[slot]
        found.append(symbol)
        state = scaled[symbol] * (state >> PRECISION) + slot - starts[symbol]
    assert state == first
    assert found[::-1] == data.tolist()
    return size


def test_an_ans_coder_reaches_the_bound_within_a_percent() -> None:
    values = np.random.default_rng(0).standard_normal(20_000).astype(np.float32)
    exponent = planes_of(values.view(np.uint32))[3]
    table = 3 * len(np.unique(exponent))
    assert rans_bytes(exponent) + table == pytest.approx(bound_bytes(exponent), rel=0.01)


@pytest.mark.parametrize("word", [np.uint16, np.uint32])
def test_planes_hold_every_bit_and_the_last_one_is_the_exponent(word: type) -> None:
    values = np.random.default_rng(1).standard_normal(1000).astype(np.float32)
    words = (values.view(np.uint32) >> (32 - 8 * np.dtype(word).itemsize)).astype(word)
    planes = planes_of(words)
    turned = sum(plane.astype(np.uint64) << np.uint64(8 * i) for i, plane in enumerate(planes))
    width = np.uint64(8 * words.itemsize)
    back = (turned >> np.uint64(1)) | ((turned & np.uint64(1)) << (width - np.uint64(1)))
    assert np.array_equal(back.astype(word), words)
    assert np.array_equal(planes[-1], np.frexp(np.abs(values))[1] + 126)


def test_rows_have_the_sizes_of_what_is_sent() -> None:
    values = np.random.default_rng(2).standard_normal((2, 2048)).astype(np.float32)
    rows = Lossless([3]).run(0, iter([(3, Gradients((1024, 1024), values, fed=False))]))
    bits = {(row["form"], row["coder"]): row["bits"] for row in rows}
    assert bits["float32", "none"] == 32
    assert bits["bf16", "none"] == 16
    assert bits["8 bits", "none"] == 8 + 32 / 512
    assert bits["top-k places, int32", "none"] == 32 * 20 / 2048
    assert 9 < float(bits["bf16", "bound"]) < 16
