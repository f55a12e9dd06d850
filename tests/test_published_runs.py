"""Every published run is the run that its artifact composes today: `published=true` trains none again."""

from __future__ import annotations

import re
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from tiny_run import configured

from dgc_repro.launch.identity import config_hash, is_same_run, run_folder
from dgc_repro.launch.reproduction import OPTIONAL_RUNS, runs_of
from dgc_repro.launch.run import Job, published_run
from dgc_repro.launch.study import kind_of
from dgc_repro.names import GONE, with_current_names
from dgc_repro.paper import pool
from dgc_repro.paper.publish import artifacts_in, run_ids

RESULTS = Path(__file__).resolve().parent.parent / "results"
POOLS = sorted(path.parent for path in RESULTS.rglob(pool.RUNS_FILE))
PAGES = [folder for place in POOLS for folder in artifacts_in(place)]
EVERY_DAY = (
    "dynamic-small-table1",
    "gravac-small-table3",
    "lecture-quick-allreduce",
    "lecture-quick-density",
)


def name_of(folder: Path) -> str:
    return "-".join(folder.parts[-3:])


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


@pytest.mark.parametrize("place", POOLS, ids=lambda place: "-".join(place.parts[-2:]))
def test_a_page_names_each_run_of_a_pool(place: Path) -> None:
    ids = {run.id for run in pool.read(place)}
    assert ids == {name for folder in artifacts_in(place) for name in run_ids(folder)}


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


def test_the_folder_of_the_data_is_no_part_of_a_run() -> None:
    (config, *_), *_ = jobs_of("dynamic/table1", "small")
    other = {**config, "dataset": {**config["dataset"], "root": "/elsewhere"}}
    assert config_hash(other) == config_hash(config)
    assert is_same_run(other, config)


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


def test_no_record_and_no_page_has_a_path_of_the_machine_that_trained() -> None:
    found = []
    for folder in sorted(file.parent for file in RESULTS.glob("*/*/runs.parquet")):
        for run in pool.read(folder):
            for text in strings([run.config, run.environment, run.summary]):
                if LOCAL.search(text):
                    found.append((folder.name, run.id, text))
    for file in RESULTS.rglob("*"):
        if file.suffix in (".md", ".csv", ".json"):
            text = re.sub(r"\]\([^)]*\)|https?://\S+", "", file.read_text(encoding="utf-8"))
            found += [(file.name, "", match[1]) for match in LOCAL.finditer(text)]
    assert found == []


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
