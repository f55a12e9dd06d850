"""Configs that are composed in part equal those that Hydra composes, and the cache never changes one."""

from __future__ import annotations

import functools
import json
import os
import random
import tempfile
from collections.abc import Callable
from contextlib import closing
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hydra.core.config_store import ConfigStore

from dgc_repro.checksums import sealed
from dgc_repro.launch import composer, paths, reproduction
from dgc_repro.launch.composer import Composer
from dgc_repro.launch.overrides import composed, config_of, in_one_line, resolved
from dgc_repro.launch.paths import composing
from dgc_repro.paper import pool
from dgc_repro.paper.publish import artifacts_in

RESULTS = Path(__file__).resolve().parents[2] / "results"
PAGES = [
    (f"{folder.parts[-3]}/{folder.name}", folder.parts[-2])
    for file in sorted(RESULTS.rglob(pool.RUNS_FILE))
    for folder in artifacts_in(file.parent)
]
Lines = Callable[[str, str], list[tuple[str, ...]]]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and nothing kept from other tests."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(composer, "_KEPT", {})
    return tmp_path / "cache" / "dgc_repro"


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Lines:
    """The overrides of every run of an artifact at a scale."""
    stub = composed(["scale=quick"])

    def found(artifact: str, scale: str) -> list[tuple[str, ...]]:
        asked: list[tuple[str, ...]] = []

        class Recorder(Composer):
            def __call__(self, overrides: Any) -> dict[str, Any]:
                asked.append(tuple(overrides))
                return deepcopy(stub)

        with monkeypatch.context() as patch:
            patch.setattr(reproduction, "Composer", Recorder)
            reproduction.runs_of(artifact, [f"scale={scale}"])
            if "optional_runs" in reproduction.artifact_node(artifact):
                reproduction.runs_of(artifact, [f"scale={scale}"], reproduction.OPTIONAL_RUNS)
        return list(dict.fromkeys(asked))

    return found


def assert_equals_hydra(compose: Composer, overrides: tuple[str, ...]) -> None:
    """In every value, its type, and the order of keys."""
    wanted = json.dumps(resolved(config_of(overrides)))
    assert (overrides, json.dumps(compose(overrides))) == (overrides, wanted)


SOME = {
    ("benchmark/methods", "small"): 8,
    ("gravac/table2", "small"): 2,
    ("dynamic/table1", "quick"): 1,
}
"""How many runs are compared every day."""


@pytest.mark.parametrize(("artifact", "scale"), SOME, ids=map("-".join, SOME))
def test_runs_of_papers_equal_those_of_hydra(lines: Lines, artifact: str, scale: str) -> None:
    chosen = random.Random(1).sample(lines(artifact, scale), SOME[artifact, scale])
    with composing():
        compose = Composer()
        for overrides in chosen:
            assert_equals_hydra(compose, overrides)
            compose.simple(overrides)  # raises where Hydra has composed it


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("artifact", "scale"), PAGES, ids=map("-".join, PAGES))
def test_all_published_runs_equal_those_of_hydra(lines: Lines, artifact: str, scale: str) -> None:
    """One of those that differ in values alone: Hydra needs a fifth of a second for a run."""

    def key(override: str) -> str:
        name = override.partition("=")[0]
        return name if "." in name else override

    asked = {tuple(map(key, overrides)): overrides for overrides in lines(artifact, scale)}
    with composing():
        compose = Composer()
        for overrides in asked.values():
            assert_equals_hydra(compose, overrides)


@pytest.mark.parametrize(
    "given",
    [
        "seed=3; optimizer.lr=1e-3; train.epochs=2; train.compile=true; stopping.target=null",
        "policy=scheduled; policy.rungs=[[0,1],[2,3]]; policy.values=[0.25,0.01]",
        "experiment.row='topk_${compressor.density}_${train.compile}'; compressor=topk",
        "experiment.row='a b, c'; +scale.mine=[1,a,null]; seed=${scale.mine.0}",
        "experiment.row='\\${seed}'",
        "+model={from:here}; +scale.mine={a:1}; ++scale.mine.b=2",
        "~optimizer.momentum; optimizer.lr=${oc.select:nowhere,0.5}",
        "train.batch_size=${.epochs}; model.low_rank.from_epoch=1",
        "network=ethernet_1gbit; network.rate=100mbit",
        "optimized_metric=test/loss",
        "wrap=[]; sink=none; model=cnn; ~generalization",
        "compressor=topk; compressor.density=0.1; compressor.density=0.2",
    ],
)
def test_settings_of_all_kinds_equal_those_of_hydra(given: str) -> None:
    with composing():
        for _ in range(2):  # the second time from what is kept
            assert_equals_hydra(Composer(), tuple(given.split("; ")))


@pytest.mark.parametrize(
    "wrong",
    [
        *("optimizer.lrr=1", "+seed=1", "compressor=topp", "train.epochs=???", "model=[a", "a@b=1"),
        *("+compressor=topk", "train.epochs=${nowhere}", "train.epochs=${train.epochs}", "model=1"),
        *("seed=1,2", "~nothing", "compressor.density=0.1", "network=nowhere"),
        "model.low_rank.rank_ratio=0.5",
        *("wrap={a:1}", "model=", "hydra.nothing=1", "optimizer=adam=2", "++model=cnn", "train=3"),
    ],
)
def test_what_hydra_refuses_is_refused_in_its_words(wrong: str) -> None:
    def said(compose: Callable[[list[str]], Any]) -> tuple[str, str]:
        try:
            return "composed", json.dumps(compose(["scale=quick", wrong]))
        except Exception as error:
            return type(error).__name__, in_one_line(error)

    with composing():
        hydra = said(lambda overrides: resolved(config_of(overrides)))
        assert said(Composer()) == hydra
        assert hydra[0] != "composed" or wrong in ("train=3", "wrap={a:1}")


TOPK = ("compressor=topk", "compressor.density=0.03", "scale=quick")


@functools.cache
def topk_of_hydra() -> dict[str, Any]:
    return composed(TOPK)


def compose_topk() -> dict[str, Any]:
    with composing(), closing(Composer()) as compose:
        return compose(TOPK)


@pytest.fixture
def asked_hydra(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What Hydra is asked to compose, from the next command on."""
    asked: list[Any] = []

    def hydra(overrides: Any) -> Any:
        asked.append(list(overrides))
        return config_of(overrides)

    monkeypatch.setattr(composer, "config_of", hydra)
    return asked


@pytest.fixture
def next_command(asked_hydra: list[Any]) -> Callable[[], list[Any]]:
    """Compose as a new process does; what Hydra has composed for it."""

    def compose() -> list[Any]:
        composer._KEPT.clear()
        asked_hydra.clear()
        assert compose_topk() == topk_of_hydra()
        return list(asked_hydra)

    return compose


def test_the_next_command_reads_what_hydra_has_made_of_group_choices(
    cache: Path, next_command: Callable[[], list[Any]]
) -> None:
    assert next_command() == [["compressor=topk", "scale=quick"]]
    assert next_command() == []
    (file,) = cache.iterdir()
    assert file.stat().st_size < 50_000
    with composing(), closing(Composer()) as compose:
        assert compose(["compressor=topk", "scale=quick", "seed=2"])["seed"] == 2
        assert compose(["compressor=dense"])["wrap"] == ["per_layer"]
    assert next_command() == []


@pytest.mark.parametrize(
    "damage",
    ["cut", "empty", "words", "not sealed", "sealed", "link", "folder", "other state", "huge"],
)
def test_a_bad_file_of_the_cache_is_ignored_and_replaced(
    damage: str, cache: Path, next_command: Callable[[], list[Any]], tmp_path: Path
) -> None:
    next_command()
    (file,) = cache.iterdir()
    content = file.read_bytes()
    record = json.loads(content)
    bases = json.loads(record["bases"])
    bases["compressor=topk\nscale=quick"]["seed"] = 77
    changed = {
        "cut": content[:-100],
        "empty": b"",
        "words": content.replace(b"topk", b"topx", 1),
        "not sealed": json.dumps({**record, "bases": json.dumps(bases)}).encode(),
        "sealed": sealed({"state": record["state"], "bases": "[1, 2]"}),
        "other state": sealed({"state": "0" * 64, "bases": json.dumps(bases)}),
        "huge": b" " * 2**24 + content,
    }
    if damage == "link":
        file.rename(tmp_path / "elsewhere")
        file.symlink_to(tmp_path / "elsewhere")
    elif damage == "folder":
        file.unlink()
        file.mkdir()
        assert next_command() != []
        return
    else:
        file.write_bytes(changed[damage])
    assert next_command() == [["compressor=topk", "scale=quick"]]
    assert not file.is_symlink()
    assert next_command() == []
    assert file.read_bytes() == content


def test_the_folder_of_another_user_is_not_used(
    next_command: Callable[[], list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    next_command()
    mine = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: mine + 1)
    assert next_command() != []


def test_without_a_folder_for_the_cache_configs_are_composed_all_the_same(
    next_command: Callable[[], list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(composer, "cache_folders", lambda: iter(()))
    assert [next_command() != [] for _ in range(2)] == [True, True]


@pytest.mark.parametrize("is_link", [False, True], ids=["folder", "link"])
def test_a_config_file_that_has_changed_is_read_again(
    is_link: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in one process, as in a notebook, where commands follow each other."""
    file = (folder := tmp_path / "conf" / "compressor") / "mine.yaml"
    (tmp_path / "shared" if is_link else folder).mkdir(parents=True)
    folder.parent.mkdir(exist_ok=True)
    if is_link:
        folder.symlink_to(tmp_path / "shared")
    (tmp_path / "conf" / ".#mine.yaml").symlink_to("nowhere")  # an editor's lock
    monkeypatch.setattr(paths, "_ADDED", [tmp_path / "conf"])
    target = "_target_: dgc_repro.compressor.topk.TopK\ndensity: "

    def density(*more: str) -> Any:
        with composing(), closing(Composer()) as compose:
            found = compose(["compressor=mine"])["compressor"]["density"]
            for text in more:
                file.write_text(target + text)
            return found

    for stated in ("0.5", "0.25"):
        file.write_text(target + stated)
        assert density() == float(stated)
    file.write_text(f"{target}0.75")
    assert density("0.1") == 0.75  # edited before it was kept
    file.write_text(f"{target}0.1")
    composer._KEPT.clear()
    assert density() == 0.1


def test_nothing_is_kept_of_what_is_in_no_file(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plugin's members, and groups that the environment names."""
    monkeypatch.setattr(paths, "_ADDED", [tmp_path / "conf"])
    (tmp_path / "conf" / "experiment").mkdir(parents=True)
    file = tmp_path / "conf" / "experiment" / "mine.yaml"
    for defaults in (
        "defaults:\n  - override /model: ${oc.env:MY_MODEL}\n",
        'defaults:\n  [\n    {override /model: "${oc.env:MY_MODEL}"}\n  ]\n',
        '"defaults":\n  - override /model:\n      ${oc.env:MY_MODEL}\n',
    ):
        file.write_text(f"# @package _global_\n{defaults}")
        for model in ("cnn", "lstm"):
            monkeypatch.setenv("MY_MODEL", model)
            with composing(), closing(Composer()) as compose:
                found = compose(["experiment=mine"])["model"]["_target_"]
                assert found.endswith(f".{model.upper()}")
    file.unlink()
    store = ConfigStore.instance()
    own = dict(store.repo.get("compressor", {}))
    monkeypatch.setattr(store, "repo", {**store.repo, "compressor": own})
    for density in (0.5, 0.25):
        store.store("mine", {"density": density}, "compressor", provider="another")
        with composing(), closing(Composer()) as compose:
            assert compose(["compressor=mine"])["compressor"]["density"] == density
    assert not cache.exists() or list(cache.iterdir()) == []


def test_the_cache_has_few_files(cache: Path) -> None:
    base = {"a": 1}
    for number in range(composer.MOST_FILES + 2):
        state = f"{number:064d}"[::-1]
        composer._write(state, {"x": base, "y": {1: 2}, "z": None})
        assert composer._read(state) == {"x": base}  # not what JSON would change
        os.utime(cache / composer._name(state), (number, number))
    assert len(list(cache.iterdir())) == composer.MOST_FILES
    composer._write("f" * 64, {"x": {"a": "b" * composer.MOST_BYTES}})
    assert composer._read("f" * 64) == {}
