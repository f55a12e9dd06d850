"""Which keys decide the id of a run, each changed by itself, and the name of a run of one's own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

import pytest
from tiny_run import configured

from dgc_repro.launch.identity import WITHOUT_EFFECT, config_hash, is_same_run
from dgc_repro.launch.run import own_name

USED = (
    *("experiment=dynamic/static8_ef", "scale=small", "wrap=[per_layer,error_feedback]"),
    *("stopping.target=50", "network=ethernet_1gbit", "generalization=measured"),
)
"""A run in which stopping, the network and the measures have an effect."""
ALONE = (
    *("sink", "paths", "scale.seeds", "scale.rates", "scale.warmup", "launch.timeout_seconds"),
    *("launch.start_timeout_seconds", "launch.partition", "launch.account", "launch.qos"),
    *("launch.sbatch", "launch.setup", "launch.python", "launch.logs"),
    *("train.checkpoint_every_epochs", "train.reshard"),
)
"""Keys without an effect on the numbers. The list stands here once more, so that no key enters or leaves the
code's list unseen."""
Keys = tuple[Any, ...]


def changed(config: Mapping[str, Any], path: Keys, value: Any) -> dict[str, Any]:
    """A copy of the config with another value at a path, whose last key may be new."""
    copy = deepcopy(dict(config))
    *groups, last = path
    node = copy
    for group in groups:
        node = node[group]
    assert node.get(last) != value
    node[last] = value
    return copy


def leaves(node: Mapping[Any, Any], path: Keys = ()) -> Iterator[tuple[Keys, Any]]:
    """The paths of all values that are no sections."""
    for name, value in node.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, (*path, name))
        else:
            yield (*path, name), value


def another(value: Any) -> Any:
    """A value that differs from this one."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, str):
        return f"{value}x"
    return [*value, "x"] if isinstance(value, list) else 1


def test_the_keys_without_effect_are_those_that_are_meant() -> None:
    assert {".".join(key) for key in WITHOUT_EFFECT} == set(ALONE)


@pytest.mark.parametrize(
    ("overrides", "key", "value"),
    [
        (USED, "sink", {"_target_": "dgc_repro.sink.jsonl.Jsonl"}),
        (USED, "scale.seeds", [7, 8, 9]),
        (USED, "launch.partition", "gpu"),  # a new key, of Slurm
        (USED, "train.reshard", "mean"),
        (USED, "dataset.root", "/elsewhere"),
        ((*USED, "stopping.target=null"), "stopping.plateau", 0.5),
        ((*USED, "network=none"), "network.latency", "1ms"),
        ((*USED, "generalization=none"), "generalization._target_", "dgc_repro.any.Nothing"),
        (USED, "wrapper.momentum_correction.momentum", 0.1),
        ((), "experiment.row", "another"),
    ],
)
def test_a_key_that_is_not_used_leaves_the_id(
    overrides: tuple[str, ...], key: str, value: Any
) -> None:
    config = configured(*overrides)
    other = changed(config, tuple(key.split(".")), value)
    assert config_hash(other) == config_hash(config)
    assert is_same_run(config, other)
    assert is_same_run(other, config)


def test_every_other_key_changes_the_id() -> None:
    config = configured(*USED)
    before, found = config_hash(config), dict(leaves(config))
    other = {keys: changed(config, keys, another(value)) for keys, value in found.items()}
    unused = [
        ("dataset", "root"),
        *(("wrapper", w) for w in config["wrapper"].keys() - config["wrap"]),
    ]
    unused += [tuple(key.split(".")) for key in ALONE]
    ignored = {keys for keys in found if any(keys[: len(one)] == one for one in unused)}
    assert {keys for keys in found if config_hash(other[keys]) == before} == ignored
    assert len(found) - len(ignored) > 60
    for keys in found.keys() - ignored:
        assert not is_same_run(config, other[keys]), keys


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("", "dense"),
        ("compressor=topk compressor.density=0.01 seed=3", "topk-density0.01"),
        ("compressor=topk wrap=[] scale=quick", "topk-wrap_none-quick"),
        ("wrap=[per_layer,error_feedback]", "dense-wrap_per_layer_error_feedback"),
        ("policy=gravac train.epochs=2 launch.threads=1 paths.runs=a/b", "dense-gravac-epochs2"),
        ("+network.rate='1 gbit' ~sink", "dense-rate1_gbit"),
        ("compressor._target_=mine.signs.MySigns +compressor.k=3", "MySigns-k3"),
    ],
)
def test_the_settings_that_were_given_name_a_run(given: str, name: str) -> None:
    overrides = given.replace("1 gbit", "1%gbit").split()
    assert own_name([text.replace("%", " ") for text in overrides]) == name
