"""SparseLoCo's compressor against the authors' algorithm in numpy; chunks, places and ties."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from laws import played
from numeric import EPS, Array, dense, encoded, finite_kinds, heavy_tailed, largest, random_steps

from dgc_repro import ErrorFeedback, MomentumCorrection, SparseLoCo
from dgc_repro.kernel import chunks

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
    exact = [[own.double().numpy() for own in step] for step in given]
    expected, residuals = sparseloco(exact, K / CHUNK, bits, 0.95)
    # Six steps of about 6 roundings each, of values below 8.
    within = 8 * 6 * 6 * EPS
    for mean, wanted in zip(means, expected, strict=True):
        np.testing.assert_allclose(mean.double().numpy(), wanted, rtol=0, atol=within)
    for state, wanted in zip(states, residuals, strict=True):
        np.testing.assert_allclose(state["residual"].double().numpy(), wanted, rtol=0, atol=within)


@pytest.mark.parametrize("method", [SparseLoCo(0.1, 64), SparseLoCo(0.02, 4096, 3)], ids=repr)
def test_what_is_sent_is_no_farther_from_a_tensor_than_zero_is(method: SparseLoCo) -> None:
    for size in (1, 63, 64, 65, 5003):
        for x in finite_kinds(size):
            rest = x.double() - dense(encoded(method, x)).double()
            # Levels are rounded once to float32; below its normal range by half a step of 2^-149.
            slack = float(x.double().norm()) * 2 * EPS + size * 2.0**-149
            assert float(rest.norm()) <= float(x.double().norm()) + slack


def test_every_chunk_sends_its_own_largest_entries() -> None:
    x = heavy_tailed(SIZE)
    sent = dense(encoded(SparseLoCo(K / CHUNK, CHUNK), x))
    expected = chosen(x.double().numpy(), CHUNK, K / CHUNK)
    assert sent.nonzero().view(-1).tolist() == expected.tolist()


def test_ties_go_to_the_lower_place_and_what_is_not_a_number_is_above_all() -> None:
    rows = torch.tensor([[1.0, -2.0, 2.0, 0.0, 2.0], [0.0, 3.0, torch.nan, torch.inf, -0.0]])
    assert chunks.largest(rows, 3).tolist() == [[1, 2, 4], [2, 3, 1]]


def test_places_take_twelve_bits_and_values_two() -> None:
    payload = encoded(SparseLoCo(), heavy_tailed(10 * 4096))
    assert payload.layout.tensor_bytes.tolist() == [16 + 640 * 12 // 8 + 640 * 2 // 8]


def test_velocity_is_masked_where_it_was_sent() -> None:
    nest = MomentumCorrection(ErrorFeedback(SparseLoCo(0.1, 64)), 0.9)
    (mean,), (state,) = played(nest, [[heavy_tailed(300)]])
    assert torch.equal(state["velocity"] == 0, mean != 0)
