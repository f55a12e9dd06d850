"""DeMo and SparseLoCo, which choose in every block or chunk, against their papers' algorithms in numpy."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from laws import played, simulation
from numeric import (
    EPS,
    Array,
    assert_close,
    dense,
    doubles,
    encoded,
    finite_kinds,
    heavy_tailed,
    largest,
    random_steps,
)
from scipy.fft import dctn, idctn
from torch import Tensor

from dgc_repro import DeMo, ErrorFeedback, SparseLoCo, UserError
from dgc_repro.kernel import chunks
from dgc_repro.selfcheck.law_settings.base import Setting

SIDES = {(12, 20): (6, 5), (8, 2, 3, 3): (8, 6), (24,): (1, 8), (7, 11): (7, 1)}
BLOCK, LARGEST = 8, 5
CHUNK, K, SIZE = 64, 7, 64 * 5 + 23


def projected(x: Array) -> Array:
    """The inverse transform of the largest coefficients of each of DeMo's blocks."""
    height, width = SIDES[x.shape]
    matrix = x.reshape(len(x) if x.ndim > 1 else 1, -1)
    sent = np.zeros_like(matrix)
    for top in range(0, matrix.shape[0], height):
        for left in range(0, matrix.shape[1], width):
            here = np.s_[top : top + height, left : left + width]
            coefficients = dctn(matrix[here], norm="ortho").ravel()
            kept = np.zeros_like(coefficients)
            places = largest(coefficients, min(LARGEST, kept.size))
            kept[places] = coefficients[places]
            sent[here] = idctn(kept.reshape(height, width), norm="ortho")
    return sent.reshape(x.shape)


def binned(x: Array, bits: int) -> Array:
    """SparseLoCo's quantizer by its authors: bins over six standard deviations around the mean; each value
    becomes the mean of its bin."""
    bins = 2**bits
    mean = x.mean()
    width = 6 * np.sqrt(((x - mean) ** 2).sum() / max(1, x.size - 1)) / bins
    code = np.clip(np.round((x - mean) / (width or 1.0) + bins // 2), 0, bins - 1)
    return np.array([x[code == own].mean() for own in code])


def sparseloco(x: Array, bits: int) -> Array:
    """The k largest magnitudes of each chunk, in their bins."""
    sent = np.zeros_like(x)
    parts = [(start, x[start : start + CHUNK]) for start in range(0, x.size, CHUNK)]
    each = [start + largest(part, max(1, round(part.size * K / CHUNK))) for start, part in parts]
    places = np.concatenate(each)
    sent[places] = binned(x[places], bits)
    return sent


def fed_back(
    gradients: list[list[Array]], compress: Callable[[Array], Array], decay: float
) -> tuple[list[Array], list[Array]]:
    """e = decay e + g;  send C(e);  e = e - sent. The mean of what was sent in each step, and the last
    residuals, which are DeMo's momenta."""
    residuals, means = [np.zeros_like(g) for g in gradients[0]], []
    for step in gradients:
        fed = [decay * e + g for e, g in zip(residuals, step, strict=True)]
        sent = [compress(one) for one in fed]
        residuals = [one - own for one, own in zip(fed, sent, strict=True)]
        means.append(np.mean(sent, axis=0))
    return means, residuals


def given(shape: tuple[int, ...]) -> list[list[Tensor]]:
    steps = random_steps(int(np.prod(shape)), workers=3, steps=6)
    return [[own.view(shape) for own in step] for step in steps]


PAPERS: list[tuple[ErrorFeedback, tuple[int, ...], Callable[[Array], Array], float]] = [
    # Six steps; sums of 8 products along each side, there and back, of values below 16.
    *((ErrorFeedback(DeMo(LARGEST, BLOCK, sign=False), 0.999), shape, projected, 16 * 6 * 4 * 8)
      for shape in SIDES),
    # Six steps of about 6 roundings each, of values below 8.
    *((ErrorFeedback(SparseLoCo(K / CHUNK, CHUNK, bits), 0.95), (SIZE,), partial(sparseloco, bits=bits),
       8 * 6 * 6) for bits in (2, 3, 4)),
]  # fmt: skip


@pytest.mark.parametrize(("nest", "shape", "compress", "roundings"), PAPERS)
def test_the_residual_decays_as_in_the_paper(
    nest: ErrorFeedback, shape: tuple[int, ...], compress: Any, roundings: float
) -> None:
    means, states = played(nest, given(shape))
    expected, residuals = fed_back(doubles(given(shape)), compress, nest.decay)
    found = [*means, *(state["residual"] for state in states)]
    assert_close(found, [*expected, *residuals], within=roundings * EPS)


def test_the_answer_is_the_sign_of_the_mean() -> None:
    signs, _ = played(ErrorFeedback(DeMo(LARGEST, BLOCK), decay=0.9), given((12, 20)))
    means, _ = played(ErrorFeedback(DeMo(LARGEST, BLOCK, sign=False), decay=0.9), given((12, 20)))
    for sign, mean in zip(signs, means, strict=True):
        assert torch.equal(sign, mean.sign())


def test_demo_sends_nothing_farther_from_a_tensor_than_zero_is() -> None:
    for x in finite_kinds(4096):
        x = x.clamp(-1e36, 1e36).view(64, 64)  # a coefficient may be 64 times the largest value
        rest = x.double() - dense(encoded(DeMo(9), x)).double().view(64, 64)
        # A transform of 64 x 64 rounds 128 products, there and back.
        assert float(rest.norm()) <= float(x.double().norm()) * (1 + 2**-14) + 64 * 2.0**-140


def test_blocks_have_the_papers_size_and_places_twelve_bits() -> None:
    payload = encoded(DeMo(), heavy_tailed(128 * 192).view(128, 192))
    assert payload.layout.tensor_bytes.tolist() == [6 * (32 * 4 + 32 * 12 // 8)]
    odd = encoded(DeMo(), heavy_tailed(7 * 101).view(7, 101))
    assert odd.layout.cuts[0].shape == (7, 1)  # 101 is prime


def test_blocks_that_would_be_sent_whole_are_refused() -> None:
    with pytest.raises(UserError, match=r"^compressor\.k: 32 coefficients would be everything"):
        simulation(Setting("", DeMo()), 1, {"x": torch.zeros(101)})


@pytest.mark.parametrize("method", [SparseLoCo(0.1, 64), SparseLoCo(0.02, 4096, 3)], ids=repr)
def test_sparseloco_sends_nothing_farther_from_a_tensor_than_zero_is(method: SparseLoCo) -> None:
    for size in (1, 63, 64, 65, 5003):
        for x in finite_kinds(size):
            rest = x.double() - dense(encoded(method, x)).double()
            # Levels are rounded once to float32; below its normal range by half a step of 2^-149.
            slack = float(x.double().norm()) * 2 * EPS + size * 2.0**-149
            assert float(rest.norm()) <= float(x.double().norm()) + slack


def test_ties_go_to_the_lower_place_and_what_is_not_a_number_is_above_all() -> None:
    rows = torch.tensor([[1.0, -2.0, 2.0, 0.0, 2.0], [0.0, 3.0, torch.nan, torch.inf, -0.0]])
    assert chunks.largest(rows, 3).tolist() == [[1, 2, 4], [2, 3, 1]]
