"""Test accuracy against batch size by optimizer: tuning, and verdicts on made-up runs."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd
import pytest

from dgc_repro.errors import UserError
from dgc_repro.paper.lecture import large_batch
from dgc_repro.paper.lecture.large_batch import LAMB, LARS, SAM, SGD
from dgc_repro.paper.records import Run

BATCHES = (64, 512, 2048)
RATES = (0.01, 0.03, 0.1)
Accuracy = Callable[[str, int], float]


def run_of(
    optimizer: str, batch: int, rate: float, seed: int, validation: float, test: float
) -> Run:
    workers = max(1, batch // 128)
    config = {
        "seed": seed, "scale": {"name": "quick"}, "dataset": {"name": "digits"},
        "model": {"_target_": "dgc_repro.model.cnn.CNN", "width": 4},
        "schedule": {"_target_": "dgc_repro.train.schedule.Cosine", "warmup_epochs": 1.0},
        "experiment": {
            "paper": "lecture", "artifact": "large_batch",
            "row": f"{optimizer}.b{batch // workers}x{workers}_lr{rate}",
        },
        "train": {"batch_size": batch // workers, "accumulate": 1, "epochs": 8},
        "launch": {"workers": workers, "kind": "simulated"},
        "optimizer": {"lr": rate, **({"rho": 0.05} if optimizer == SAM else {})},
    }  # fmt: skip
    epochs = pd.DataFrame(
        {
            "epoch": [1, 2], "train/accuracy_percent": [50.0, 100.0],
            "validation/accuracy_percent": [99.0, validation], "test/accuracy_percent": [99.0, test],
        }
    )  # fmt: skip
    name = f"{optimizer}-{batch}-{rate}-s{seed}"
    return Run(name, config, {"data": "digits"}, {"status": "finished"}, epochs)


def runs(accuracy: Accuracy, best: float = 0.03, seeds: int = 3) -> list[Run]:
    """Seed 0 has all rates, of which ``best`` has the highest validation accuracy and 0.01 the highest test
    accuracy; the other seeds have only the best."""
    found = []
    for optimizer in large_batch.OPTIMIZERS:
        for batch in BATCHES:
            value = accuracy(optimizer, batch)
            for rate in RATES:
                own, test = (value, value) if rate == best else (value - 5, value + (rate == 0.01))
                found.append(run_of(optimizer, batch, rate, 0, own, test))
            found += [
                run_of(
                    optimizer, batch, best, seed, value, value + 0.1 * seed * (1 + len(optimizer))
                )
                for seed in range(1, seeds)
            ]
    return found


def words(found: list[Run]) -> dict[str, str]:
    return {v.claim.id: v.word for v in large_batch.page(found, "quick").verdicts}


def as_claimed(optimizer: str, batch: int) -> float:
    at_large = {SGD: 40.0, LARS: 55.0, LAMB: 55.0, SAM: 47.0}
    at_small = {SGD: 60.0, LARS: 60.0, LAMB: 60.0, SAM: 65.0}
    return (at_large if batch == BATCHES[-1] else at_small)[optimizer]


def test_the_validation_split_chooses_and_the_last_epoch_counts() -> None:
    tuned = large_batch.tuned_of(large_batch.table_of(runs(as_claimed)))
    assert set(tuned["rate"]) == {0.03}
    assert len(tuned) == 4 * len(BATCHES) * 3
    assert set(tuned["tried"]) == {3}
    assert set(tuned["tuned_on"]) == {1}
    assert not tuned["at_edge"].any()
    own = tuned[(tuned["optimizer"] == LARS) & (tuned["batch"] == 2048) & (tuned["seed"] == 0)]
    assert list(own["test"]) == [55.0]


def test_a_seed_without_all_rates_does_not_tune() -> None:
    """Seed 1 has one rate alone, with a validation accuracy that would win."""
    found = [
        run_of(SGD, 64, rate, 0, validation, 50)
        for rate, validation in zip(RATES, (40, 60, 50), strict=True)
    ]
    found.append(run_of(SGD, 64, 0.01, 1, 99, 50))
    tuned = large_batch.tuned_of(large_batch.table_of(found))
    assert list(tuned["rate"]) == [0.03]
    with pytest.raises(
        UserError, match=r"^optimizer.lr: one seed that has every .* sgd with batch 64"
    ):
        large_batch.tuned_of(large_batch.table_of(found[2:]))


def test_what_the_lecture_says_agrees_and_the_contrary_differs() -> None:
    assert set(words(runs(as_claimed)).values()) == {"agrees"}

    def contrary(optimizer: str, batch: int) -> float:
        return 60.0 if optimizer == SGD else 50.0

    found = words(runs(contrary))
    assert found.pop("small.sgd") == "agrees"
    assert set(found.values()) == {"differs"}
    worse = words(runs(lambda o, b: 50.0 if o == SGD else 60.0))
    assert worse["small.sgd"] == "differs"


def test_a_rate_at_an_edge_of_its_grid_is_not_judged() -> None:
    assert set(words(runs(as_claimed, best=0.1)).values()) == {"not tested"}
