"""What becomes of measured exchanges: payloads for other N, when gradients are there, files of times."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest
import torch

from dgc_repro.bench.alone import time_exchange
from dgc_repro.compressor.gtopk import GTopK
from dgc_repro.compressor.sharded import Sharded
from dgc_repro.kernel import native
from dgc_repro.launch.components import build_compressor, build_policy
from dgc_repro.launch.overrides import composed
from dgc_repro.predict import step_timing
from dgc_repro.predict.step_timing import _by_size, _calls, _identity, as_simulated

SHAPES = {"a": (256, 256), "b": (100, 100), "c": (50,)}
GRADIENTS = {
    n: torch.randn(s, generator=torch.Generator().manual_seed(0)) for n, s in SHAPES.items()
}
KINDS = {"gtopk": GTopK, "sharded": Sharded}


def exchanged(way: str, workers: int) -> dict[str, Any]:
    """One worker's calls among so many simulated ones."""
    settings = ("compressor=topk", "compressor.density=0.01", f"exchange.aggregation={way}")
    config = composed(list(settings))
    policy = build_policy(config)
    compressor = build_compressor(as_simulated(config, workers), policy)
    (found,) = time_exchange(compressor, GRADIENTS, workers, plan=policy.plan({}, 0), repeats=1)
    return asdict(found)


@pytest.mark.parametrize(("way", "error"), [("gtopk", 1e-9), ("sharded", 0.25)])
@pytest.mark.timeout(60)
def test_payloads_for_other_numbers_of_workers_are_those_of_an_exchange(
    way: str, error: float
) -> None:
    measured = {workers: exchanged(way, workers) for workers in (2, 4, 8)}
    for workers in (3, 6, 7, 12, 16):
        truth = exchanged(way, workers)
        for what in ("first", "later"):
            found = _calls(measured, what, KINDS[way], workers)
            assert set(found) == set(truth[what])
            for name, (calls, size) in truth[what].items():
                assert found[name][0] == calls
                assert found[name][1] == pytest.approx(size, rel=error)


def test_gradients_on_a_gpu_are_there_in_the_last_pass() -> None:
    gradients = {"first": torch.empty(30), "last": torch.empty(10)}
    assert _by_size(gradients, 100.0) == pytest.approx({"first": 100.0, "last": 50.0})
    assert _by_size(gradients, 100.0, 4) == pytest.approx({"first": 100.0, "last": 87.5})


def identity(*settings: str) -> str:
    return _identity(composed(["launch.device=cpu", *settings]), 1)


@pytest.mark.parametrize(
    "settings",
    [
        ("optimizer=adam",),
        ("optimizer=sam",),
        ("optimizer.clip_norm=1",),
        ("train.compile=true",),
        ("train.channels_last=false",),
    ],
    ids=lambda given: given[0],
)
def test_a_file_of_times_is_of_one_optimizer_and_way_to_compute(settings: tuple[str]) -> None:
    assert identity(*settings) != identity()
    assert identity("optimizer.lr=0.3", "compressor=topk") == identity()


def test_a_file_of_times_is_of_one_processor_with_or_without_kernels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = identity()
    with monkeypatch.context() as patch:
        patch.setattr(step_timing.environment, "cpu_model", lambda: "another")
        assert identity() != here
    other = None if native.library() else object()
    monkeypatch.setattr(native, "library", lambda: other)
    assert identity() != here
