"""Density of partial sums: theory against sets in Python, rings against a message-by-message one."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dgc_repro.study.density import (
    CODES,
    DENSITY,
    RandomSupports,
    RealSupports,
    codes_of,
    ring_densities,
    ring_rows,
    top_support,
)
from dgc_repro.study.given import Gradients


def gradients(
    workers: int, sizes: tuple[int, ...], fed: bool = False, alike: float = 0.0
) -> Gradients:
    generator = np.random.default_rng(0)
    shared = generator.standard_normal(sum(sizes))
    own = generator.standard_normal((workers, sum(sizes)))
    values = alike * shared + (1 - alike) * own
    return Gradients(sizes, values.astype(np.float32), fed)


def test_a_ring_of_sets_has_the_densities_of_the_study() -> None:
    """Each message is a set of places; worker w sends chunk c on when it has added its own."""
    n, workers = 30, 5
    masks = np.random.default_rng(1).random((workers, n)) < 0.2
    edges = [round(n * c / workers) for c in range(workers + 1)]
    messages = {c: set[int]() for c in range(workers)}
    at = {c: c for c in range(workers)}
    expected = []
    for _ in range(workers):
        for c, worker in at.items():
            messages[c] |= {i for i in range(edges[c], edges[c + 1]) if masks[worker, i]}
            at[c] = (worker + 1) % workers
        expected.append(sum(map(len, messages.values())) / n)
    assert ring_densities(masks) == pytest.approx(expected)
    assert expected[-1] == pytest.approx(masks.any(axis=0).mean())


def test_the_bytes_of_a_ring_of_sums_are_those_of_its_messages() -> None:
    n, workers = 40, 4
    masks = np.random.default_rng(2).random((workers, n)) < 0.1
    row = next(iter(ring_rows("random", 10, masks, (n,), (4,))))
    densities = ring_densities(masks)
    sent = sum(8 * d * n / workers for d in densities[:-1])  # reduce-scatter
    sent += 8 * densities[-1] * n / workers * (workers - 1)  # allgather of the sums
    dense = 2 * (workers - 1) * 4 * n / workers
    assert row["ring_over_dense"] == pytest.approx(sent / dense)
    assert row["gather_over_dense"] == pytest.approx((workers - 1) * 8 * 4 / dense)


def test_random_supports_follow_theory_at_every_factor_and_number_of_workers() -> None:
    rows = RandomSupports(20_000, [2, 16, 64], [10, 100]).run(0)
    whole = [row for row in rows if row["summed"] == row["workers"]]
    assert [(row["factor"], row["workers"]) for row in whole] == [
        (factor, count) for factor in (10, 100) for count in (2, 16, 64)
    ]
    for row in whole:
        assert row["value"] == pytest.approx(row["theory"], rel=0.03)


def test_a_support_is_the_largest_magnitudes_of_each_tensor() -> None:
    values = np.array([1, -5, 3, 0.1, 100, 7, -200, 9], dtype=np.float32)
    found = top_support(values, (4, 4), (2, 1))
    assert np.flatnonzero(found).tolist() == [1, 2, 6]
    assert top_support(values, (8,), (8,)).all()


def test_gradients_that_are_alike_have_sums_sparser_than_independent_ones() -> None:
    study = RealSupports([2, 8], [10], [4], steps=1)
    sparser = []
    for alike in (0.0, 0.8):
        found = study.run(0, gradients(8, (3000, 1000), alike=alike))
        (whole,) = (
            row for row in found if row["what"] == DENSITY and row["workers"] == row["summed"] == 8
        )
        sparser.append(1 - whole["value"] / whole["theory"])
    assert abs(sparser[0]) < 0.03
    assert sparser[1] > 0.3


def test_codes_share_a_scale_and_keep_within_their_bits() -> None:
    held = gradients(6, (500, 20))
    codes = codes_of(held, 4)
    assert np.abs(codes).max() == 7
    for part in (slice(0, 500), slice(500, 520)):
        scale = np.abs(held.values[:, part]).max() / 7
        np.testing.assert_allclose(codes[:, part] * scale, held.values[:, part], atol=scale * 0.501)


def test_the_bits_of_a_sum_are_log2_n_for_equal_gradients_and_fewer_otherwise() -> None:
    same = Gradients((100,), np.tile(np.linspace(-1, 1, 100, dtype=np.float32), (8, 1)), False)
    study = RealSupports([2, 8], [10], [4, 8], steps=1)
    found = [row for row in study.run(0, same) if row["what"] == CODES]
    assert [(r["bits"], r["value"]) for r in found] == [
        (bits, pytest.approx(math.log2(count))) for bits in (4, 8) for count in (2, 8)
    ]
    apart = [row for row in study.run(0, gradients(8, (3000,))) if row["what"] == CODES]
    assert all(row["value"] < row["theory"] - 0.2 for row in apart)


def test_residuals_make_rows_of_their_own_and_no_codes() -> None:
    rows = RealSupports([2], [10], [4], steps=1).run(0, gradients(2, (100,), fed=True))
    assert {(row["what"], row["kind"]) for row in rows} == {(DENSITY, "error-fed")}


def test_more_workers_than_gradients_are_refused() -> None:
    with pytest.raises(ValueError, match="^workers: at most the 2 that have gradients"):
        RealSupports([4], [10], [4], steps=1).run(0, gradients(2, (100,)))
