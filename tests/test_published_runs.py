"""Every published run is the run that its artifact composes today: `published=true` trains none again."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import pytest

from dgc_repro.launch import reproduce
from dgc_repro.launch.identity import config_hash, is_same_run
from dgc_repro.launch.reproduce import Job, published_run
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
    sections, given = reproduce._artifact(artifact), [f"scale={scale}"]
    if "study" in sections:
        return reproduce.studied_runs_of(artifact, given)
    if "measure" in sections:
        return reproduce.measured_runs_of(artifact, given)
    optional = reproduce.runs_of(artifact, given, reproduce.OPTIONAL_RUNS)
    return [*reproduce.runs_of(artifact, given), *optional]


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


def test_a_record_without_a_setting_is_the_run_with_its_neutral_value_alone() -> None:
    (config, *_), *_ = jobs_of("dynamic/table1", "small")
    record = deepcopy(config)
    del record["train"]["profile"], record["optimizer"]["clip_norm"]
    assert is_same_run(record, config)
    for section, key, value in (
        ("train", "profile", True),
        ("optimizer", "clip_norm", 1.0),
        ("optimizer", "lr", 77.0),
    ):
        other = deepcopy(config)
        other[section][key] = value
        assert not is_same_run(record, other), key
        assert not is_same_run(config, other), key
    assert not is_same_run({**record, "seed": 99}, config)


def test_the_folder_of_the_data_is_no_part_of_a_run() -> None:
    (config, *_), *_ = jobs_of("dynamic/table1", "small")
    other = {**config, "dataset": {**config["dataset"], "root": "/elsewhere"}}
    assert config_hash(other) == config_hash(config)
    assert is_same_run(other, config)
