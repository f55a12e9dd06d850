"""Which keys decide the id of a run: each key of a config is changed by itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from tiny_run import configured

from dgc_repro.launch.identity import WITHOUT_EFFECT, config_hash, is_same_run, run_folder

USED = (
    *("experiment=dynamic/static8_ef", "scale=small", "wrap=[per_layer,error_feedback]"),
    *("stopping.target=50", "network=ethernet_1gbit", "generalization=measured"),
)
"""A run in which stopping, the network and the measures have an effect."""
ALONE = {
    "sink": {"_target_": "dgc_repro.sink.jsonl.Jsonl"},
    "paths": {"runs": "elsewhere", "reproduced": "there", "results": "published"},
    "scale.seeds": [7, 8, 9],
    "scale.rates": {"dense": [1.0]},
    "scale.warmup": {"adam": 3},
    "launch.timeout_seconds": 61,
    "launch.start_timeout_seconds": 62,
    "launch.partition": "gpu",
    "launch.account": "mine",
    "launch.qos": "long",
    "launch.sbatch": {"mem": "64G"},
    "launch.setup": ["module load cuda"],
    "launch.python": "python3",
    "launch.logs": "logs",
    "train.checkpoint_every_epochs": 5,
    "train.reshard": "mean",
}
"""Keys without an effect on the numbers, and another value of each. The list stands here once more, so that
no key enters or leaves the code's list unseen."""
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


def name_of(config: Mapping[str, Any]) -> str:
    return run_folder({**config, "paths": configured(*USED)["paths"]}).name


def test_the_keys_without_effect_are_those_that_are_meant() -> None:
    assert {".".join(key) for key in WITHOUT_EFFECT} == set(ALONE)


@pytest.mark.parametrize("key", ALONE)
def test_a_key_without_effect_leaves_the_id(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = configured(*USED)
    other = changed(config, tuple(key.split(".")), ALONE[key])
    assert config_hash(other) == config_hash(config)
    assert name_of(other) == name_of(config)
    assert is_same_run(config, other)
    assert is_same_run(other, config)


@pytest.mark.parametrize(
    ("overrides", "key", "value"),
    [
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
    assert config_hash(changed(config, tuple(key.split(".")), value)) == config_hash(config)


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
