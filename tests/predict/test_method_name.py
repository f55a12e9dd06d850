"""Titles of methods, what counts as dense, and settings that one step cannot be predicted of."""

from __future__ import annotations

import pytest

from dgc_repro.errors import UserError
from dgc_repro.launch.overrides import composed
from dgc_repro.predict.prediction import DENSE, _is_dense, method_name, network_of

RUNG_0 = "policy.field=density policy.values=[0.1] policy.rung=0"


@pytest.mark.parametrize(
    ("settings", "title"),
    [
        ("compressor=topk compressor.density=0.01", "topk density=0.01"),
        ("compressor=topk compressor.values=fp16", "topk values=fp16"),
        ("compressor=topk wrap=[per_layer]", "topk wrap=[per_layer]"),
        (f"compressor=topk {RUNG_0}", "topk rung=0 (uncompressed)"),
        ("compressor=magnitude", "magnitude"),
        ("compressor=ef_signsgd", "ef_signsgd"),
        ("compressor=onebit_adam", "onebit_adam"),
        ("compressor=dgc policy.values=[0.25,0.02]", "dgc density=0.02"),
        ("compressor=terngrad wrap=[]", "terngrad wrap=[]"),
        ("compressor=uniform exchange.aggregation=sharded", "uniform bits=8 sharded"),
    ],
)  # fmt: skip
def test_a_title_has_the_settings_that_are_not_the_defaults(settings: str, title: str) -> None:
    assert method_name(composed(settings.split())) == title


@pytest.mark.parametrize(
    ("settings", "is_dense"),
    [
        ("compressor=dense", True),
        ("compressor=dense wrap=[]", True),
        ("compressor=dense exchange.unit=model", False),
        ("compressor=dense wrap=[momentum_correction] optimizer.momentum=0", False),
        (f"compressor=topk {RUNG_0}", False),
    ],
)
def test_dense_is_what_has_its_exchange(settings: str, is_dense: bool) -> None:
    assert _is_dense(composed(settings.split()), composed([*DENSE])) is is_dense


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("optimizer=sam optimizer.compressed=first", "^optimizer.compressed: .* use .*=perturbed"),
        ("launch.workers=4 launch.workers_per_node=2", "^launch.workers_per_node: .* network.workers_"),
    ],
)  # fmt: skip
def test_a_second_exchange_is_refused(settings: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        network_of(composed(["network=nvlink", *settings.split()]))


def test_nodes_of_a_network_are_no_mistake() -> None:
    settings = ["network.workers_per_node=2", "network.node_rate=10gbit", "network.rate=1gbit"]
    assert network_of(composed([*settings, "optimizer=sam"])).workers_per_node == 2
