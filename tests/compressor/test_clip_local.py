"""Local clipping: of the whole gradient, in the paper's units."""

from __future__ import annotations

import math

import pytest
import torch
from laws import Setting, play, simulation
from torch import Tensor

from dgc_repro import ClipLocal, Dense
from dgc_repro.exchange.exchange import Exchange
from dgc_repro.exchange.world import World


def norm(gradients: dict[str, Tensor]) -> float:
    return math.sqrt(sum(float(g.double().square().sum()) for g in gradients.values()))


def exchanged(clip: ClipLocal, every: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    setting = Setting("clip", clip)
    return play(simulation(setting, len(every), every[0]), setting, every)


def test_the_norm_is_that_of_all_tensors_together() -> None:
    gradients = {"a": torch.tensor([3.0, 0.0]), "b": torch.full((1,), 4.0), "c": torch.zeros(0)}
    clipped = exchanged(ClipLocal(Dense(), 2.5), [gradients])
    assert clipped["a"].tolist() == [1.5, 0.0]
    assert clipped["b"].tolist() == [2.0]
    assert exchanged(ClipLocal(Dense(), 5.0), [gradients])["b"].tolist() == [4.0]


def test_a_short_gradient_is_not_made_longer() -> None:
    assert ClipLocal(Dense(), 2.0).factor(1.0, 1) == 1.0
    assert ClipLocal(Dense(), 2.0).factor(0.0, 4) == 1.0
    assert exchanged(ClipLocal(Dense(), 5.0), [{"x": torch.ones(3)}])["x"].tolist() == [1, 1, 1]


@pytest.mark.parametrize("workers", [1, 4, 9])
def test_each_worker_has_its_share_of_the_threshold(workers: int) -> None:
    """N gradients at right angles, each as long as it may be, add up to the threshold."""
    each = [{"x": torch.eye(9)[worker] * 100} for worker in range(workers)]
    mean = exchanged(ClipLocal(Dense(), 2.0), each)
    assert norm(mean) == pytest.approx(2.0, rel=1e-6)  # float32 rounds 9 entries once or twice
    stricter = exchanged(ClipLocal(Dense(), 2.0, "mean"), each)
    assert norm(stricter) == pytest.approx(2.0 / workers, rel=1e-6)


def test_workers_are_clipped_each_by_its_own_norm() -> None:
    short, long = {"x": torch.tensor([1.0, 0.0])}, {"x": torch.tensor([0.0, 100.0])}
    limit = 2.0 * math.sqrt(2)  # N of threshold N^-1/2
    mean = exchanged(ClipLocal(Dense(), 2.0), [short, long])["x"]
    assert mean.tolist() == pytest.approx([0.5, limit / 2])


def test_a_gradient_whose_square_overflows_is_clipped_and_not_lost() -> None:
    gradients = {"x": torch.tensor([3e30, 4e30])}
    assert exchanged(ClipLocal(Dense(), 5.0), [gradients])["x"].tolist() == pytest.approx([3, 4])


def test_one_vector_has_the_norm_of_its_parts() -> None:
    like = {"a": torch.tensor([3.0]), "b": torch.tensor([4.0])}
    setting = Setting("clip", ClipLocal(Dense(), 2.5))
    whole = Exchange(setting.compressor, like, World(1), unit="model")
    assert play(whole, setting, [like])["b"].tolist() == [2.0]
