"""A run measures at its end, from the trained network and from the one that its seed had built."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny_run import TEXT, tiny

from dgc_repro.errors import UserError
from dgc_repro.launch.identity import config_hash
from dgc_repro.launch.rules import validate
from dgc_repro.launch.run import run_config

MEASURED = ("model=cnn", "model.hidden=8", "generalization=measured", "generalization.images=8")


def test_a_run_that_measures_nothing_is_the_run_that_it_was_before() -> None:
    config = tiny()
    before = {key: value for key, value in config.items() if key != "generalization"}
    assert config_hash(config) == config_hash(before)
    assert config_hash(tiny("generalization=measured")) != config_hash(before)


def test_texts_have_no_measures() -> None:
    with pytest.raises(UserError, match="^generalization: measured is for images.* use none"):
        validate(tiny(*TEXT, "generalization=measured"))


@pytest.mark.slow
def test_the_summary_has_the_measures_of_the_trained_network(tmp_path: Path) -> None:
    few = (
        "generalization.samples=1",
        "generalization.ascent_steps=1",
        "generalization.bisections=4",
    )
    stops = ("stopping.metric=train_cross_entropy", "stopping.target=9", "stopping.stop=true")
    rate = "optimizer.lr=1e-9"  # nothing moves, so that the distance from the start is 0
    folder = run_config(tiny(*MEASURED, *few, *stops, rate, f"paths.runs={tmp_path}"))
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["generalization/frobenius_distance"] == pytest.approx(0, abs=1e-9)
    assert summary["generalization/parameter_norm"] > 0.1
    assert summary["generalization/cross_entropy"] == pytest.approx(summary["train/cross_entropy"])
    assert summary["stopping"]["reached"]
