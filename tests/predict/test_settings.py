"""The benchmark's settings are counted with the full models; the published table has all of them."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from test_pool_config import check_runs

from dgc_repro.launch.overrides import composed
from dgc_repro.launch.reproduction import runs_of
from dgc_repro.paper.benchmark import speed
from dgc_repro.paper.benchmark.workloads import workloads
from dgc_repro.predict import settings

RESULTS = Path(__file__).resolve().parents[2] / "results"


def test_a_setting_is_counted_as_its_compressor(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {
        "topk_0.01": ["compressor=topk", "compressor.density=0.01"],
        "accordion": ["compressor=topk", "policy=accordion", "policy.values=[0.1,0.01]"],
        "powersgd_1": ["compressor=powersgd", "compressor.rank=1"],
        "warmed": [
            "compressor=topk",
            "compressor.density=0.01",
            "policy=warmup",
            "policy.values=[0.1,0.01]",
        ],
    }
    named = ["experiment=benchmark/transformer", "scale=benchmark/transformer/small"]
    jobs = [
        (composed([*named, *own, f"experiment.method={name}"]), []) for name, own in given.items()
    ]
    monkeypatch.setattr(settings, "runs_of", lambda name, words: jobs)
    monkeypatch.setattr(settings, "MODELS", {"transformer": 10_000})
    model, *rows = settings.rows()
    assert model["parameters"] > model["factors"] > model["vectors"] > 0
    assert model["modelled_v100_ms"] == pytest.approx(model["gflop"] / (0.4 * 15.7))
    counted = {row["method"]: row["launches"] for row in rows}
    assert list(counted) == ["topk_0.01", "powersgd_1", "warmed"]  # Accordion adapts
    assert counted["topk_0.01"] == counted["warmed"] > counted["powersgd_1"] > 0


@pytest.mark.slow
def test_the_published_counts_have_every_setting() -> None:
    counts = speed.counts(RESULTS)
    assert isinstance(counts, pd.DataFrame)
    jobs = runs_of(settings.BENCHMARK, ["scale=small", "seed=2"])
    check_runs(settings.BENCHMARK, "small", [config for config, _ in jobs])
    for workload in {config["experiment"]["workload"] for config, _ in jobs}:
        if not (model := workloads()[workload].full_size):
            continue
        wanted = {
            config["experiment"]["method"]
            for config, _ in jobs
            if config["experiment"]["workload"] == workload
            and config["train"].get("steps_share", 1.0) == 1.0  # a step of these is that of dense
            and speed.policy_of(config) in speed.PLANNED
        }
        assert set(counts.loc[counts["model"] == model, "method"]) == wanted | {speed.COMPUTE}
