"""DeMo and SparseLoCo, which choose in every block or chunk, against their papers' algorithms in numpy."""

from __future__ import annotations

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

from dgc_repro import DeMo, ErrorFeedback, MomentumCorrection, SparseLoCo
from dgc_repro.errors import UserError
from dgc_repro.kernel import chunks, cosines
from dgc_repro.selfcheck.law_settings.base import Setting

SHAPES = ((12, 20), (8, 2, 3, 3), (24,), (7, 11))
SIDES = {(12, 20): (6, 5), (8, 2, 3, 3): (8, 6), (24,): (1, 8), (7, 11): (7, 1)}
BLOCK, LARGEST = 8, 5


def projected(x: Array, shape: tuple[int, ...], k: int) -> Array:
    """The inverse transform of the k largest coefficients of each block."""
    height, width = SIDES[shape]
    matrix = x.reshape(shape[0] if len(shape) > 1 else 1, -1)
    sent = np.zeros_like(matrix)
    for top in range(0, matrix.shape[0], height):
        for left in range(0, matrix.shape[1], width):
            here = np.s_[top : top + height, left : left + width]
            coefficients = dctn(matrix[here], norm="ortho").ravel()
            kept = np.zeros_like(coefficients)
            places = largest(coefficients, min(k, kept.size))
            kept[places] = coefficients[places]
            sent[here] = idctn(kept.reshape(height, width), norm="ortho")
    return sent.reshape(shape)


def demo(
    gradients: list[list[Array]], shape: tuple[int, ...], beta: float
) -> tuple[list[Array], list[Array]]:
    """m = beta m + g;  q = the largest coefficients;  m = m - inverse DCT(q). The mean of what was sent in
    each step, and the last momenta."""
    momenta = [np.zeros(shape) for _ in gradients[0]]
    means = []
    for step in gradients:
        sent = []
        for worker, g in enumerate(step):
            m = beta * momenta[worker] + g
            sent.append(projected(m, shape, LARGEST))
            momenta[worker] = m - sent[-1]
        means.append(np.mean(sent, axis=0))
    return means, momenta


def given(shape: tuple[int, ...]) -> list[list[Tensor]]:
    steps = random_steps(int(np.prod(shape)), workers=3, steps=6)
    return [[own.view(shape) for own in step] for step in steps]


@pytest.mark.parametrize("shape", SHAPES)
def test_the_residual_is_the_papers_momentum(shape: tuple[int, ...]) -> None:
    nest = ErrorFeedback(DeMo(LARGEST, BLOCK, sign=False), decay=0.999)
    means, states = played(nest, given(shape))
    expected, momenta = demo(doubles(given(shape)), shape, 0.999)
    # Six steps; sums of 8 products along each side, there and back, of values below 16.
    found = [*means, *(state["residual"] for state in states)]
    assert_close(found, [*expected, *momenta], within=16 * 6 * 4 * 8 * EPS)


def test_the_answer_is_the_sign_of_the_mean() -> None:
    signs, _ = played(ErrorFeedback(DeMo(LARGEST, BLOCK), decay=0.9), given((12, 20)))
    means, _ = played(ErrorFeedback(DeMo(LARGEST, BLOCK, sign=False), decay=0.9), given((12, 20)))
    for sign, mean in zip(signs, means, strict=True):
        assert torch.equal(sign, mean.sign())


@pytest.mark.parametrize("length", [1, 2, 7, 64])
def test_the_basis_is_scipys_transform(length: int) -> None:
    basis = cosines.basis(length, torch.device("cpu")).double().numpy()
    expected = dctn(np.eye(length), norm="ortho", axes=[1])
    np.testing.assert_allclose(basis, expected, rtol=0, atol=EPS)


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


# SparseLoCo: chunks, places and ties.

CHUNK, K, SIZE = 64, 7, 64 * 5 + 23


def chosen(x: Array, chunk: int, density: float) -> Array:
    """The places of the k largest magnitudes of each chunk."""
    found = []
    for start in range(0, x.size, chunk):
        part = x[start : start + chunk]
        found.append(start + largest(part, max(1, round(part.size * density))))
    return np.concatenate(found)


def binned(x: Array, bits: int) -> Array:
    """The authors' quantizer: bins over six standard deviations around the mean; each value becomes the mean
    of its bin."""
    bins = 2**bits
    mean = x.mean()
    width = 6 * np.sqrt(((x - mean) ** 2).sum() / max(1, x.size - 1)) / bins
    code = np.clip(np.round((x - mean) / (width or 1.0) + bins // 2), 0, bins - 1)
    return np.array([x[code == own].mean() for own in code])


def sparseloco(
    gradients: list[list[Array]], density: float, bits: int, decay: float
) -> tuple[list[Array], list[Array]]:
    """e = decay e + g;  send Q(top-k(e));  e = e - sent. The mean of each step, and the last residuals."""
    residuals = [np.zeros(SIZE) for _ in gradients[0]]
    means = []
    for step in gradients:
        sent = []
        for worker, g in enumerate(step):
            e = decay * residuals[worker] + g
            own, places = np.zeros(SIZE), chosen(e, CHUNK, density)
            own[places] = binned(e[places], bits)
            residuals[worker] = e - own
            sent.append(own)
        means.append(np.mean(sent, axis=0))
    return means, residuals


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_the_residual_decays_as_in_the_paper(bits: int) -> None:
    given = random_steps(SIZE, workers=3, steps=6)
    nest = ErrorFeedback(SparseLoCo(K / CHUNK, CHUNK, bits), decay=0.95)
    means, states = played(nest, given)
    expected, residuals = sparseloco(doubles(given), K / CHUNK, bits, 0.95)
    found = [*means, *(state["residual"] for state in states)]
    # Six steps of about 6 roundings each, of values below 8.
    assert_close(found, [*expected, *residuals], within=8 * 6 * 6 * EPS)


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


def test_velocity_is_masked_where_it_was_sent() -> None:
    nest = MomentumCorrection(ErrorFeedback(SparseLoCo(0.1, 64)), 0.9)
    (mean,), (state,) = played(nest, [[heavy_tailed(300)]])
    assert torch.equal(state["velocity"] == 0, mean != 0)
