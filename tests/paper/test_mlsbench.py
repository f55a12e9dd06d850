"""MLS-Bench's pages: the printed numbers once more, the runs of scale paper, and the quantities."""

from __future__ import annotations

import pandas as pd
import pytest

from dgc_repro.launch.reproduction import runs_of
from dgc_repro.paper.mlsbench import BEST, MODELS, PRINTED, compression
from dgc_repro.paper.records import Run

# The leaderboard's own means of "best_acc".
BOARD = {
    "topk": (92.24666666666667, 70.24333333333334, 93.85000000000001),
    "qsgd": (90.40666666666668, 47.68333333333333, 94.00999999999999),
    "signsgd": (92.51666666666667, 70.76666666666667, 94.14333333333333),
}


def test_the_means_of_the_seeds_are_the_leaderboards() -> None:
    for method, means in BOARD.items():
        for model, mean in zip(MODELS, means, strict=True):
            assert PRINTED[f"{model}.{method}", BEST] == pytest.approx(mean)


def test_scale_paper_is_the_tasks_setting() -> None:
    jobs = runs_of("mlsbench/compression", ["scale=paper", "seed=0"])
    assert len(jobs) == 15
    for config, _ in jobs:
        train, optimizer, name = config["train"], config["optimizer"], config["experiment"]["model"]
        assert (train["epochs"], train["batch_size"], config["launch"]["workers"]) == (200, 128, 1)
        assert (optimizer["lr"], optimizer["weight_decay"]) == (0.1, 5e-4)
        shown = compression.DATA[name].lower().replace("-", "")
        assert config["dataset"]["_target_"].split(".")[-2] == shown
        blocks, width = config["model"].get("blocks"), config["model"]["width"]
        assert (blocks, width) == {"resnet20": (3, 16), "resnet56": (9, 16), "vgg11": (None, 64)}[
            name
        ]
        wraps = config["experiment"]["method"] in ("topk", "signsgd")
        assert config["wrap"] == (["error_feedback"] if wraps else [])


def test_the_best_accuracy_is_of_the_epochs_that_the_task_evaluates() -> None:
    table = pd.DataFrame({"epoch": range(1, 13), "test/accuracy_percent": [5.0] * 12})
    table.loc[3, "test/accuracy_percent"] = 90.0  # epoch 4 is not evaluated there
    table.loc[9, "test/accuracy_percent"] = 60.0  # epoch 10
    run = Run(
        "r", {}, {}, {"parameters": 100}, table.assign(step=30.0, **{"comm/payload_bytes": 600})
    )
    assert compression._best(run) == 60.0
    assert compression._less(run) == 4 * 100 * 30 / 600
