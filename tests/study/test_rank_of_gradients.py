"""Rank of gradients: the slide's power iteration against PowerSGD itself, and spectra against the SVD."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from laws import play, simulation
from numeric import Array, context
from tiny_run import configured

from dgc_repro import Dense, PowerSGD
from dgc_repro.kernel import lowrank as kernels
from dgc_repro.launch.study import gradient_history, worker_gradients
from dgc_repro.selfcheck.law_settings.base import Setting
from dgc_repro.study.lowrank import (
    ENERGY,
    SPECTRUM,
    LowRank,
    matrices_of,
    power_step,
    squared_singular_values,
)

SEED = 7  # of laws.simulation


def gradients(steps: int, workers: int) -> list[list[Array]]:
    """f32[30, 50] of each step and worker, around a part that all share."""
    generator = np.random.default_rng(3)
    shared = generator.standard_normal((30, 50))
    noise = generator.standard_normal((steps, workers, 30, 50))
    return [list(step) for step in (shared + noise).astype(np.float32)]


@pytest.mark.parametrize("rank", [1, 4])
def test_power_iteration_of_the_mean_is_what_powersgd_makes_of_all_workers(rank: int) -> None:
    """P Q^T of float64 against float32; the tolerance is that of tests/compressor/test_powersgd.py."""
    key = context(name="w", seed=SEED).key(shared=True)
    first = kernels.normals(rank * 50, key, torch.device("cpu")).view(rank, 50)
    q = first.double().numpy().T
    exchange = simulation(Setting("", PowerSGD(rank)), 3, {"w": torch.empty(30, 50)})
    for step in gradients(5, 3):
        given = [{"w": torch.from_numpy(g)} for g in step]
        mean = play(exchange, Setting("", Dense()), given)["w"].double().numpy()
        p, q = power_step(np.mean(step, axis=0, dtype=np.float64), q)
        assert np.linalg.norm(mean - p @ q.T) <= 1e-4 * np.linalg.norm(mean)


def test_squares_of_singular_values_are_those_of_the_svd() -> None:
    for shape in ((6, 40), (40, 6)):
        m = np.random.default_rng(1).standard_normal(shape)
        expected = np.linalg.svd(m, compute_uv=False) ** 2
        assert squared_singular_values(m) == pytest.approx(expected)


def steps_of(matrices: list[Array]) -> Iterator[tuple[int, dict[str, Array]]]:
    yield from ((step, {"w": m}) for step, m in enumerate(matrices, 1))


def test_energies_of_a_matrix_of_rank_one_are_whole_and_spectra_are_kept_at_their_steps() -> None:
    m = np.outer(np.arange(1.0, 31), np.arange(1.0, 51)).astype(np.float32)
    rows = LowRank([1, 2], 3, [2], 4).run(0, steps_of([m] * 3))
    energies = [row["value"] for row in rows if row["what"] == ENERGY]
    assert len(energies) == 3 * 2 * 3  # steps, ranks, kinds
    assert energies == pytest.approx([1.0] * 18)
    spectrum = [(row["step"], row["rank"], row["value"]) for row in rows if row["what"] == SPECTRUM]
    assert [place[:2] for place in spectrum] == [(2, i) for i in range(1, 5)]
    assert [value for *_, value in spectrum] == pytest.approx([1, 0, 0, 0], abs=1e-9)


def test_no_power_iteration_keeps_more_than_the_best_and_a_warm_start_gets_there() -> None:
    m = np.random.default_rng(2).standard_normal((30, 50)).astype(np.float32)
    rows = LowRank([2], 200, [1], 4).run(0, steps_of([m] * 200))
    last = {str(row["kind"]): float(row["value"]) for row in rows if row["step"] == 200}
    assert last["cold"] < 0.95 * last["best"]
    assert last["warm"] == pytest.approx(last["best"], rel=1e-3)
    assert all(float(row["value"]) <= last["best"] + 1e-12 for row in rows if row["what"] == ENERGY)


def test_vectors_and_tensors_no_larger_than_their_factors_are_left_out() -> None:
    shapes = {"vector": (100,), "thin": (4, 100), "kernel": (16, 8, 3, 3), "small": (8, 8)}
    tensors = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    found = matrices_of(tensors, 4)
    assert {name: m.shape for name, m in found.items()} == {"kernel": (16, 72)}


def test_a_history_is_the_mean_of_what_workers_compress() -> None:
    """Residuals by conservation: rounding of one sum."""
    nest = ("compressor=powersgd", "wrap=[error_feedback]")
    config = configured(*nest, "launch=simulated", "launch.workers=2")
    *_, (step, last) = gradient_history(config, 3)[0]
    expected, facts = worker_gradients(config, 2)
    assert (step, facts["steps"]) == (3, 2)
    assert expected.fed
    joined = np.concatenate([tensor.ravel() for tensor in last.values()])
    assert joined == pytest.approx(expected.values.mean(axis=0), abs=1e-6)
