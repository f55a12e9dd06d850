"""What `predict` says of a method's training: from the committed runs, with their model and scale."""

from __future__ import annotations

import pytest

from dgc_repro.launch.overrides import composed
from dgc_repro.predict.prediction import CANDIDATES, DENSE
from dgc_repro.predict.quality import Quality


@pytest.fixture(scope="module")
def quality() -> Quality:
    return Quality("ResNet101")


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        (DENSE, "-"),
        (CANDIDATES["topk 1000x"], "no (n=3)"),
        (CANDIDATES["dgc_sampled 1000x"], "no (n=3)"),
        (CANDIDATES["randomk 100x"], "no (n=1)"),
        (("compressor=topk", "compressor.factor=1000"), "no (n=3)"),
        (CANDIDATES["fp16"], "not measured"),
        (CANDIDATES["topk 100x, gtopk"], "not measured"),
        (("compressor=topk", "compressor.density=0.001", "wrap=[]"), "not measured"),
    ],
)
def test_an_answer_is_of_the_same_method_and_paired_with_dense(
    quality: Quality, method: tuple[str, ...], answer: str
) -> None:
    assert quality.answer(composed(list(method))) == answer


def test_the_source_names_the_reduced_model_and_the_pool(quality: Quality) -> None:
    for words in ("results/gravac/small", "17-layer ResNet, width 12", "4 simulated workers"):
        assert words in quality.source
    assert "perplexity" in Quality("LSTM").source


def test_without_committed_runs_nothing_is_measured() -> None:
    quality = Quality("ResNet101", runs=[])
    assert quality.answer(composed(list(CANDIDATES["topk 10x"]))) == "not measured"
    assert "is not here" in quality.source
