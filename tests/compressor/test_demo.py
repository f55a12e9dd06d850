"""DeMo against the paper's algorithm in numpy, with scipy's cosine transform."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from laws import played, simulation
from numeric import EPS, Array, dense, encoded, finite_kinds, heavy_tailed, largest, random_steps
from scipy.fft import dctn, idctn
from torch import Tensor

from dgc_repro import DeMo, ErrorFeedback
from dgc_repro.errors import UserError
from dgc_repro.kernel import cosines
from dgc_repro.selfcheck.law_settings.base import Setting

SHAPES = ((12, 20), (8, 2, 3, 3), (24,), (7, 11))
SIDES = {(12, 20): (6, 5), (8, 2, 3, 3): (8, 6), (24,): (1, 8), (7, 11): (7, 1)}
CHUNK, K = 8, 5


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
            sent.append(projected(m, shape, K))
            momenta[worker] = m - sent[-1]
        means.append(np.mean(sent, axis=0))
    return means, momenta


def given(shape: tuple[int, ...]) -> list[list[Tensor]]:
    steps = random_steps(int(np.prod(shape)), workers=3, steps=6)
    return [[own.view(shape) for own in step] for step in steps]


@pytest.mark.parametrize("shape", SHAPES)
def test_the_residual_is_the_papers_momentum(shape: tuple[int, ...]) -> None:
    nest = ErrorFeedback(DeMo(K, CHUNK, sign=False), decay=0.999)
    means, states = played(nest, given(shape))
    exact = [[own.double().numpy() for own in step] for step in given(shape)]
    expected, momenta = demo(exact, shape, 0.999)
    # Six steps; sums of 8 products along each side, there and back, of values below 16.
    within = 16 * 6 * 4 * 8 * EPS
    for mean, wanted in zip(means, expected, strict=True):
        np.testing.assert_allclose(mean.double().numpy(), wanted, rtol=0, atol=within)
    for state, wanted in zip(states, momenta, strict=True):
        np.testing.assert_allclose(state["residual"].double().numpy(), wanted, rtol=0, atol=within)


def test_the_answer_is_the_sign_of_the_mean() -> None:
    signs, _ = played(ErrorFeedback(DeMo(K, CHUNK), decay=0.9), given((12, 20)))
    means, _ = played(ErrorFeedback(DeMo(K, CHUNK, sign=False), decay=0.9), given((12, 20)))
    for sign, mean in zip(signs, means, strict=True):
        assert torch.equal(sign, mean.sign())


@pytest.mark.parametrize("length", [1, 2, 7, 64])
def test_the_basis_is_scipys_transform(length: int) -> None:
    basis = cosines.basis(length, torch.device("cpu")).double().numpy()
    expected = dctn(np.eye(length), norm="ortho", axes=[1])
    np.testing.assert_allclose(basis, expected, rtol=0, atol=EPS)


def test_what_is_sent_is_no_farther_from_a_tensor_than_zero_is() -> None:
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
