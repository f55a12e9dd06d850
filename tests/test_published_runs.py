"""The published results: every run is the run that its artifact composes today (`published=true` trains none
again), every record has a known commit and names no machine, and the files are few."""

from __future__ import annotations

import re
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from published_results import PAGES, POOLS, RESULTS, name_of, runs_in_pool
from tiny_run import configured

from dgc_repro.launch.identity import config_hash, is_same_run, run_folder
from dgc_repro.launch.reproduction import OPTIONAL_RUNS, runs_of
from dgc_repro.launch.run import Job, published_run
from dgc_repro.launch.study import kind_of
from dgc_repro.names import GONE, git, with_current_names
from dgc_repro.paper import pool
from dgc_repro.paper.index import entries
from dgc_repro.paper.publish import artifact_of, run_ids
from dgc_repro.paper.records import Run

EVERY_DAY = (
    "dynamic-small-table1",
    "gravac-small-table3",
    "lecture-quick-allreduce",
    "lecture-quick-density",
)


def jobs_of(artifact: str, scale: str) -> list[Job]:
    jobs, given = runs_of(artifact, [f"scale={scale}"]), [f"scale={scale}"]
    return jobs if kind_of(jobs[0].config) else [*jobs, *runs_of(artifact, given, OPTIONAL_RUNS)]


@pytest.mark.parametrize(
    "folder",
    [
        pytest.param(
            folder,
            marks=[] if name_of(folder) in EVERY_DAY else pytest.mark.slow,
            id=name_of(folder),
        )
        for folder in PAGES
    ],
)
def test_an_artifact_finds_its_published_runs(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paper, scale, artifact = folder.parts[-3:]
    wanted = set(run_ids(folder))
    seeds = {run.seed for run in pool.read(folder.parent, wanted)}
    monkeypatch.chdir(tmp_path)
    found = set()
    for config, _ in jobs_of(f"{paper}/{artifact}", scale):
        config["paths"]["results"] = str(RESULTS)
        for seed in seeds | {config["seed"]}:
            if run := published_run({**config, "seed": seed}):
                found.add(run.id)
    assert wanted - found == set()


@pytest.mark.parametrize(
    ("given", "later", "value"),
    [
        ("", "train.profile", True),
        ("", "train.local_steps", 2),
        ("", "exchange.aggregation", "sharded"),
        ("", "optimizer.clip_norm", 1.0),
        ("model=resnet101", "model.blocks", [1, 1, 1, 1]),
        ("compressor=topk", "wrapper.error_feedback.decay", 0.9),
        ("compressor=randomk", "compressor.unbiased", True),
        ("network=ethernet_1gbit", "network.as_workers", 4),
        ("stopping.target=50", "stopping.every_steps", 7),
    ],
)
def test_a_record_without_a_setting_is_the_run_with_its_default_alone(
    given: str, later: str, value: Any
) -> None:
    config = configured(*given.split())
    record, other = deepcopy(config), deepcopy(config)
    *groups, last = later.split(".")
    for node, change in ((record, dict.pop), (other, dict.__setitem__)):
        section: Any = node
        for group in groups:
            section = section[group]
        change(section, last, *([value] if node is other else []))
    assert is_same_run(record, config)
    assert not is_same_run(record, other)
    assert not is_same_run(config, other)
    assert not is_same_run({**record, "seed": 99}, config)
    assert config_hash(other) != config_hash(config)


@pytest.mark.parametrize(
    ("given", "gone", "value"),
    [
        ("", "launch.workers_per_node", 2),
        ("compressor=powersgd", "compressor.feedback", "mean"),
        ("compressor=topk", "compressor.indices", "int32"),
        ("compressor=topk", "compressor.values", "fp16"),
    ],
)
def test_a_record_with_a_key_that_is_gone_is_the_run_without_it_where_it_did_nothing(
    given: str, gone: str, value: Any
) -> None:
    config, (group, key) = configured(*given.split()), gone.split(".")
    without_effect, _ = GONE[group, key]
    for stated, same in ((without_effect, True), (value, False)):
        record = deepcopy(config)
        record[group][key] = stated
        assert is_same_run(with_current_names(record), config) == same


def test_a_finished_run_is_found_by_its_settings_whatever_its_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = configured("experiment=dynamic/none", "seed=3")
    assert run_folder(config).name == f"dynamic-table1-none-quick-s3-{config_hash(config)}"
    older = deepcopy(config)
    del older["train"]["profile"], older["exchange"]["aggregation"]
    folder = Path("runs/dynamic-table1-none-quick-s3-01234567")
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(older))
    assert run_folder(config) == folder
    assert run_folder({**config, "seed": 4}).name.startswith("dynamic-table1-none-quick-s4-")
    assert run_folder(configured("experiment=dynamic/none", "seed=3", "optimizer.lr=1")) != folder


def test_a_run_of_published_settings_gets_the_published_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = configured("experiment=dynamic/static8", "scale=small", f"paths.results={RESULTS}")
    published = run_folder(config)
    assert published.name in pool.configs(RESULTS / "dynamic" / "small")
    assert published.name.rpartition("-")[2] != config_hash(config)


# What is published names no machine

LOCAL = re.compile(r"(?:^|[\s\"'=(\[,:])(/(?!/)[A-Za-z][\w.-]*/[\w.-]+|~/\S+|[A-Z]:\\\w+)")
"""An absolute path of two parts or more; of a link, what is before it is a host."""


def strings(node: object) -> Iterator[str]:
    """Every text in a nested record."""
    if isinstance(node, dict):
        for value in node.values():
            yield from strings(value)
    elif isinstance(node, list):
        for value in node:
            yield from strings(value)
    elif isinstance(node, str):
        yield node


def test_publishing_blanks_what_is_local_and_keeps_the_id(tmp_path: Path) -> None:
    (run, *_) = pool.read(RESULTS / "dynamic" / "quick")
    local = deepcopy(run.config)
    local["paths"] = {"runs": "/home/me/runs", "reproduced": "/home/me", "results": "/home/me/r"}
    local["dataset"]["root"] = "/data/cifar10"
    local["sink"] = {"entity": "me", "project": "secret"}
    slurm = {"kind": "slurm", "account": "mine", "partition": "gpu", "setup": ["source /home/me/x"]}
    local["launch"] = {**local["launch"], **slurm}
    pool.write([replace(run, config=local)], tmp_path)
    (written,) = pool.read(tmp_path)
    assert written.id == run.id
    assert not [
        text for text in strings(written.config) if re.search("home|secret|mine|data/", text)
    ]
    assert is_same_run(written.config, local)
    assert config_hash(written.config) == config_hash(local)


# All pools, each read once

Pool = tuple[Path, tuple[Run, ...]]


@pytest.fixture(scope="module", params=POOLS, ids=lambda place: "-".join(place.parts[-2:]))
def place_and_runs(request: pytest.FixtureRequest) -> Pool:
    return request.param, runs_in_pool(request.param)


def test_every_run_is_named_by_an_artifact_and_every_artifact_has_a_module(
    place_and_runs: Pool,
) -> None:
    place, runs = place_and_runs
    own = [entry for entry in entries(RESULTS) if entry.folder.parent == place]
    assert {run.id for run in runs} == {name for entry in own for name in run_ids(entry.folder)}
    assert all(callable(artifact_of(entry.paper, entry.artifact).page) for entry in own)


def test_every_record_names_a_commit_of_this_history_or_says_that_it_does_not(
    place_and_runs: Pool,
) -> None:
    if git("rev-parse --is-shallow-repository") != "false":
        pytest.skip("no whole git history here")
    commits = {
        stretch["commit"]
        for run in place_and_runs[1]
        for stretch in (run.environment, *run.environment.get("before", ()))
        if stretch.get("commit_in_history", True)
    }
    assert commits <= set(git("rev-list HEAD").split())


def test_no_record_has_a_path_of_the_machine_that_trained(
    place_and_runs: Pool,
) -> None:
    for run in place_and_runs[1]:
        texts = strings([run.config, run.environment, run.summary])
        assert [text for text in texts if LOCAL.search(text)] == [], run.id


def test_no_page_has_a_path_of_the_machine_that_trained() -> None:
    found = []
    for file in RESULTS.rglob("*"):
        if file.suffix in (".md", ".csv", ".json"):
            text = re.sub(r"\]\([^)]*\)|https?://\S+", "", file.read_text(encoding="utf-8"))
            found += [(file.name, match[1]) for match in LOCAL.finditer(text)]
    assert found == []


def test_results_are_few_and_small() -> None:
    files = [RESULTS.parent / name for name in git("ls-files --full-name :/results").splitlines()]
    there = [path for path in files if path.is_file()]
    assert len(there) <= 200
    assert sum(path.stat().st_size for path in there) < 16e6
