"""The losses that `predict` and `recommend` show: from the published benchmark, of the same method."""

from __future__ import annotations

import pytest

from dgc_repro.launch.overrides import composed
from dgc_repro.predict import quality
from dgc_repro.predict.prediction import CANDIDATES, DENSE, candidates
from dgc_repro.predict.quality import Benchmark


@pytest.fixture(scope="module")
def benchmark() -> Benchmark:
    return Benchmark("ResNet101")


@pytest.mark.parametrize("name", CANDIDATES)
def test_every_candidate_was_trained_in_the_benchmark(benchmark: Benchmark, name: str) -> None:
    losses = benchmark.losses(composed(list(CANDIDATES[name])))
    assert len(losses) == len(benchmark.losses(composed(list(DENSE)))) >= 1


def test_candidates_compose_with_every_optimizer() -> None:
    for optimizer in ("optimizer=adam", "optimizer=lamb", "optimizer=sgd"):
        found = candidates([optimizer], composed([optimizer]))
        assert set(found) == set(CANDIDATES)


def test_a_loss_is_that_of_the_same_method(benchmark: Benchmark) -> None:
    def of(*overrides: str) -> list[float]:
        return benchmark.losses(composed(list(overrides)))

    assert set(of(*DENSE)) == {0.0}
    assert of("compressor=topk", "compressor.factor=100") == of("compressor=topk")
    assert of("compressor=topk") != of("compressor=topk", "compressor.factor=10")
    assert of("compressor=topk", "wrap=[]") == of("compressor=topk", "compressor.factor=7") == []
    assert of("compressor=topk", "exchange.unit=model") == of("compressor=magnitude")
    assert of(*DENSE, "train.local_steps=10") != of(*DENSE)
    accordion = ("compressor=topk", "policy=accordion", "policy.field=density")
    assert of(*accordion, "policy.values=[0.1,0.01]") != []
    assert of(*accordion, "policy.values=[0.5,0.2]") == []
    fixed = ("policy=fixed", "policy.field=bits", "policy.values=[2]")
    assert of("compressor=uniform", "compressor.block=512", *fixed) == []
    topk = ("compressor=topk", "compressor.density=0.01")
    assert of(*topk, "wrapper.error_feedback.decay=0.5") == []
    assert of(*topk, "wrapper.per_layer.smaller_than=100") == of(*topk) != []


def test_a_setting_that_the_record_lacks_has_its_default() -> None:
    record = composed(["compressor=topk", "compressor.density=0.01"])
    del record["compressor"]["values"]
    del record["wrapper"]["error_feedback"]
    for more, same in (
        ("compressor.values=fp32", True),
        ("compressor.values=fp16", False),
        ("wrapper.error_feedback.decay=0.5", False),
    ):
        config = composed(["compressor=topk", "compressor.density=0.01", more])
        assert quality._is_same_method(record, config) is same


def test_the_source_names_the_slim_model_and_the_pool(benchmark: Benchmark) -> None:
    for words in ("results/benchmark/small", "18-layer ResNet, width 8", "4 simulated workers"):
        assert words in benchmark.source
    assert "perplexity" in Benchmark("LSTM").source


def test_without_published_runs_there_is_no_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quality, "published_runs", lambda name: [])
    none = Benchmark("ResNet101")
    assert none.losses(composed(list(CANDIDATES["topk 10x"]))) == []
    assert "is not here" in none.source
