"""The name of a run of one's own: compressor and settings."""

from __future__ import annotations

import pytest

from dgc_repro.launch.run import own_name


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("", "dense"),
        ("compressor=topk compressor.density=0.01 seed=3", "topk-density0.01"),
        ("compressor=topk wrap=[] scale=quick", "topk-wrap_none-quick"),
        ("wrap=[per_layer,error_feedback]", "dense-wrap_per_layer_error_feedback"),
        ("policy=gravac train.epochs=2 launch.threads=1 paths.runs=a/b", "dense-gravac-epochs2"),
        ("+network.rate='1 gbit' ~sink", "dense-rate1_gbit"),
    ],
)
def test_the_settings_that_were_given_name_a_run(given: str, name: str) -> None:
    overrides = given.replace("1 gbit", "1%gbit").split()
    assert own_name([text.replace("%", " ") for text in overrides]) == name
