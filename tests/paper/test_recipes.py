"""The page of the recipes: a text is measured by its loss, images by accuracy, both by core-minutes."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from synthetic import write_run

from dgc_repro.paper.benchmark import recipes
from dgc_repro.paper.records import Run, read_run

SECONDS = {0: 150.0, 1: 162.0}
"""CPU time of a run, by seed."""


def written(folder: Path, row: str, dataset: str, model: str) -> None:
    settings: dict[str, Any] = {
        "experiment": {"paper": "benchmark", "artifact": "recipes", "row": row},
        "scale": {"name": "small"},
        "launch": {"workers": 4, "kind": "simulated"},
        "dataset": {"_target_": f"dgc_repro.dataset.{dataset}"},
        "model": {"_target_": f"dgc_repro.model.{model}"},
        "train": {"epochs": 3, "batch_size": 3, "accumulate": 1},
    }
    for seed, seconds in SECONDS.items():
        run = write_run(
            folder, row, seed, epochs=3, numbers=(90.0, 1.0, 10.0, 1.0, 4.0), settings=settings
        )
        summary = json.loads((run / "summary.json").read_text())
        (run / "summary.json").write_text(json.dumps(summary | {"time/cpu_seconds": seconds}))


def runs_in(folder: Path) -> list[Run]:
    return [read_run(path) for path in sorted(folder.iterdir())]


def test_a_text_has_a_loss_and_images_an_accuracy(tmp_path: Path) -> None:
    written(tmp_path, "low", "cifar10.Cifar10", "whitened.Low")
    written(tmp_path, "gpt", "shakespeare.Shakespeare", "gpt.GPT")
    page = recipes.page(runs_in(tmp_path), "small")
    table = page.sections[0].table
    assert table is not None
    said = table.set_index("recipe")
    assert list(said.index) == ["low", "gpt"]
    loss, accuracy = said["test loss, nats a token"], said["test accuracy %"]
    assert "±" in loss["gpt"]
    assert "±" not in loss["low"]
    assert "±" in accuracy["low"]
    assert "±" not in accuracy["gpt"]
    assert said["core-minutes"]["gpt"].startswith("2.60")  # mean of 150 and 162 seconds
    assert said["n"]["gpt"] == 2


def test_a_record_without_cpu_time_has_no_core_minutes(tmp_path: Path) -> None:
    written(tmp_path, "gpt", "shakespeare.Shakespeare", "gpt.GPT")
    first, second = runs_in(tmp_path)
    del first.summary["time/cpu_seconds"]
    assert math.isnan(recipes.core_minutes(first))
    assert recipes.core_minutes(second) == SECONDS[1] / 60
