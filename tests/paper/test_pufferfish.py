"""The page of Pufferfish, from made-up runs."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
from synthetic import words

from dgc_repro.paper.lecture import pufferfish
from dgc_repro.paper.page import Page
from dgc_repro.paper.records import Run

ENVIRONMENT = {"hardware": "a CPU", "commit": "0" * 40, "torch": "0.0", "data": "made up"}
ACCURACIES = {"dense": 80.0, "pufferfish": 79.8, "powersgd": 79.5}
PAYLOADS = {"dense": 4.0e6, "pufferfish": 2.0e6, "powersgd": 2.02e6}


def run_of(row: str, seed: int, accuracy: float, payload: float, **more: Any) -> Run:
    epochs = pd.DataFrame(
        {
            "epoch": [1, 2], "step": [10, 20], "train/loss": [1.0, 0.5 + accuracy / 1e3],
            "test/loss": [1.0, 0.6], "test/accuracy_percent": [50.0, accuracy + seed],
            "comm/payload_bytes": [payload / 2, payload], "comm/floats": [payload / 8, payload / 4],
        }
    )  # fmt: skip
    config = {
        "experiment": {"paper": "lecture", "artifact": "pufferfish", "row": row},
        "scale": {"name": "quick"}, "seed": seed, "compressor": {"rank": 41},
        "model": {"_target_": "dgc_repro.model.cnn.CNN", "width": 8}, **more,
    }  # fmt: skip
    summary = {"status": "finished", "parameters": 40 if row == "pufferfish" else 100}
    return Run(f"{row}-{seed}", config, ENVIRONMENT, summary, epochs)


def page_of(accuracies: dict[str, float], payloads: dict[str, float], seeds: int = 3) -> Page:
    runs = [
        run_of(row, seed, accuracies[row] + 0.01 * seed * (row == "dense"), payloads[row])
        for row in accuracies
        for seed in range(seeds)
    ]
    return pufferfish.page(runs, "quick")


@pytest.mark.parametrize(
    ("change", "payloads", "accuracy", "powersgd"),
    [
        ({}, {}, "agrees", "agrees"),
        ({"pufferfish": 70.0}, {}, "differs", "differs"),
        ({"powersgd": 85.0}, {}, "agrees", "differs"),
        ({}, {"powersgd": 3e6}, "agrees", "not tested"),
    ],
)
def test_claims_are_judged_by_accuracy_where_bytes_are_equal(
    change: dict[str, float], payloads: dict[str, float], accuracy: str, powersgd: str
) -> None:
    found = words(page_of(ACCURACIES | change, PAYLOADS | payloads))
    assert (found["accuracy"], found["powersgd"]) == (accuracy, powersgd)
    assert found["parameters"] == "by construction"
