"""``recommend``: which settings it looks at, what it prints, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from dgc_repro.errors import UserError
from dgc_repro.launch.build import validate
from dgc_repro.launch.overrides import composed
from dgc_repro.paper.records import Run
from dgc_repro.predict import quality
from dgc_repro.predict.prediction import DENSE
from dgc_repro.predict.recommend import command_of, recommend, with_method
from dgc_repro.predict.step_timing import as_simulated

SLIM = ("model.width=4", "dataset.train_size=512", "train.batch_size=16", "launch.threads=1")
TOPK = ("compressor=topk", "compressor.density=0.05")


def _run(method: str, *overrides: str, quality: float, payload: int, compress: float = 2.0) -> Run:
    config = composed(
        [*overrides, "launch=simulated", "launch.workers=4", f"experiment.row=resnet.{method}"]
    )
    epochs = {
        "epoch": [1],
        "step": [10],
        "train/skipped_steps": [0],
        "test/accuracy_percent": [quality],
    }
    sizes = {"comm/payload_bytes": [10 * payload], "time/compute_ms": [40.0]}
    times = {"time/compress_ms": [compress], "time/decompress_ms": [1.0]}
    name = "allreduce" if method == "dense" else "allgather"
    summary = {
        "steps": 10,
        "parameters": 1000,
        "collectives": {name: {"calls": 10, "payload_bytes": 10 * payload}},
    }
    here = {"hardware": "none", "data": "digits", "torch": "0", "commit": "0" * 40}
    return Run(method, config, here, summary, pd.DataFrame(epochs | sizes | times))


@pytest.fixture(scope="module")
def runs() -> list[Run]:
    return [
        _run("dense", *DENSE, quality=80, payload=4000),
        _run("topk_0.05", *TOPK, quality=79.7, payload=400),
        _run("topk_0.001", "compressor=topk", "compressor.density=0.001", quality=60, payload=8),
        _run("accordion", *TOPK, "policy=accordion", "policy.values=[0.1,0.01]", quality=80, payload=90),
        _run("adam", *DENSE, "optimizer=adam", quality=81, payload=4000),
    ]  # fmt: skip


def test_what_loses_no_more_is_measured_and_shown(
    runs: list[Run],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(quality, "published_runs", lambda name: runs)
    recommend(["network.rate=1mbit", "workers=8", "max_loss=0.5", *SLIM])
    said = capsys.readouterr().out
    assert "0.30 (n=1) ?" in said
    assert "topk_0.001" not in said
    assert "…" not in said  # no cell is cut
    topk = "compressor=topk compressor.density=0.05 wrap=[per_layer,error_feedback]"
    assert "and shown to lose at most 0.5 points:\ncompressor=dense" in said
    assert f"but the seeds do not show that it loses at most so much:\n{topk}" in said
    assert "mean loss above 0.5: 1 settings" in said
    assert "that changes with the steps): accordion, adam" in said
    assert "extrapolation" in said
    assert "trained topk_0.05 with optimizer=sgd optimizer.lr=" in said
    recommend(
        ["network.rate=1mbit", "workers=8", "max_loss=0", f"times={tmp_path / 't.json'}", *SLIM]
    )
    assert (tmp_path / "t.json").exists()
    assert "dense training is the fastest of the settings measured and shown" in (
        capsys.readouterr().out
    )


def test_a_setting_that_is_shown_to_lose_no_more_is_the_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of two settings with the same mean loss, the seeds of one agree, and the other one is faster."""
    runs = [
        _run(method, *how, f"seed={seed}", quality=80 - loss, payload=payload)
        for method, how, payload, losses in (
            ("dense", DENSE, 4000, (0.0, 0.0, 0.0, 0.0)),
            ("topk_0.05", TOPK, 400, (0.29, 0.30, 0.31, 0.30)),
            (
                "topk_0.01",
                ("compressor=topk", "compressor.density=0.01"),
                80,
                (-9.0, 9.0, 1.0, 0.2),
            ),
        )
        for seed, loss in enumerate(losses)
    ]
    monkeypatch.setattr(quality, "published_runs", lambda name: runs)
    recommend(["network.rate=1mbit", "workers=8", "max_loss=0.5", *SLIM])
    said = capsys.readouterr().out
    answer, other = said.partition("times as fast as dense, but")[::2]
    assert "\ncompressor=topk compressor.density=0.05" in answer
    assert "\ncompressor=topk compressor.density=0.01" in other
    assert "0.30 [0.29," in said
    assert "(n=4) ?" in said


def test_a_plan_written_down_is_predicted_at_its_last_rung(runs: list[Run]) -> None:
    config = composed([*DENSE])
    planned = composed([*TOPK, "policy=warmup", "policy.values=[0.25,0.01]"])
    found = with_method(config, replace(runs[1], config={**runs[1].config, **planned}))
    assert found is not None
    assert found["policy"]["rung"] == 2
    assert found["policy"]["_target_"].endswith("Fixed")
    assert found["model"] == config["model"]
    assert with_method(config, runs[3]) is None


def test_dgc_is_predicted_as_it_trains(runs: list[Run]) -> None:
    """Its momentum is on the workers, so the prediction's config is one that a run accepts."""
    dgc = _run("dgc_0.01", "compressor=dgc", quality=80, payload=80)
    found = with_method(composed([*DENSE]), dgc)
    assert found is not None
    assert found["optimizer"]["momentum"] == 0
    validate(as_simulated(found, 2))
    assert with_method(composed([*DENSE, "optimizer=adam"]), dgc) is None


def test_the_command_has_what_differs_from_the_yaml(runs: list[Run]) -> None:
    sharded = _run(
        "uniform_4_sharded", "compressor=uniform", "compressor.bits=4", "exchange.aggregation=sharded",
        "wrap=[per_layer,error_feedback]", quality=80, payload=500,
    )  # fmt: skip
    assert command_of(sharded) == (
        "compressor=uniform compressor.bits=4 wrap=[per_layer,error_feedback] exchange.aggregation=sharded"
    )


def test_the_command_has_the_policy_and_trains_as_it_is_typed(runs: list[Run]) -> None:
    given = ("compressor=dgc", "compressor.density=0.01", "policy=scheduled", "policy.by=step",
             "policy.values=[0.25,0.0625,0.01]", "policy.rungs=[[0,1],[25,2],[50,3]]")  # fmt: skip
    made = _run("dgc_0.01", *given, quality=80, payload=80)
    typed = composed(command_of(made).split())
    assert typed["policy"] == made.config["policy"]
    assert typed["compressor"] == made.config["compressor"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["network.rate=1mbit", "compressor=topk"], "recommend chooses the method"),
        (["workers=8"], "network: a prediction needs one"),
        (["network.rate=1mbit", "workers=1"], "workers: at least 2"),
        (["network.rate=1mbit", "max_loss=-1"], "max_loss: a number"),
        (["network.rate=1mbit", "maxloss=1"], "max_loss"),
        (
            ["network.rate=1mbit", "optimizer=adam"],
            "^optimizer: .* with sgd, not adam; use optimizer=sgd",
        ),
        (["network.rate=1mbit", "launch.workers_per_node=2"], "^launch.workers_per_node: "),
    ],
)
def test_mistakes_are_one_line(given: list[str], said: str) -> None:
    with pytest.raises(UserError, match=said) as error:
        recommend([*given, *SLIM])
    assert "\n" not in str(error.value)
