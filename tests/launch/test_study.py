"""`reproduce` of what is computed and not trained: from the command line to the page, and what is refused."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from dgc_repro.dataset.cifar10 import Cifar10
from dgc_repro.errors import UserError
from dgc_repro.launch import study
from dgc_repro.launch.identity import run_folder
from dgc_repro.launch.paths import artifacts, conf_dir
from dgc_repro.launch.reproduce import reproduce
from dgc_repro.launch.reproduction import artifact_node, runs_of
from dgc_repro.launch.run import run_config
from dgc_repro.launch.study import built, worker_gradients
from dgc_repro.paper import pool
from dgc_repro.paper.gravac import MODELS, table3
from dgc_repro.paper.publish import artifact_of, rebuild

pytestmark = pytest.mark.slow

WAITING, DENSITY, TABLE3 = "lecture/waiting", "lecture/density", "gravac/table3"
COMPUTED = [name for name in artifacts() if study.kind_of(artifact_node(name))]
TINY_WAITING = ("study.waiting.workers=[1,4,16]", "study.waiting.trials=200")
TINY_DENSITY = (
    *("model.width=4", "dataset.train_size=128", "launch.threads=1", "study.real.steps=2"),
    *("study.random.values=2000", "study.random.workers=[2,8]", "study.real.workers=[2,4]"),
)
TINY_TABLE3 = (
    *("launch.threads=1", "model.width=2", "dataset.train_size=null"),
    *("measure.repeats=3", "measure.steps=1"),
)


def configs(name: str, *given: str) -> list[dict[str, Any]]:
    return [config for config, _ in runs_of(name, given)]


def by_row(name: str, *given: str) -> dict[str, dict[str, Any]]:
    return {config["experiment"]["row"]: config for config in configs(name, *given)}


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.parametrize("scale", ["quick", "small", "paper"])
@pytest.mark.parametrize("name", COMPUTED)
def test_the_parts_build_at_every_scale_and_are_different_runs(name: str, scale: str) -> None:
    found = configs(name, f"scale={scale}")
    assert {c["scale"]["name"] for c in found} == {scale}
    assert len({run_folder(c) for c in found}) == len(found)
    for config in found:
        assert f"{config['experiment']['paper']}/{config['experiment']['artifact']}" == name
        built(config)
    assert callable(artifact_of(*name.split("/")).page)


def test_a_study_is_published_not_computed_again_and_rebuilt_to_the_same_bytes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reproduce([WAITING, *TINY_WAITING])
    published = Path("reproduced/lecture/custom/waiting")
    assert str(published) in capsys.readouterr().out
    before = contents(published)
    runs = pool.read(published.parent)
    assert len(runs) == 5  # seeds
    for run in runs:
        assert run.setting("study.trials") == 200
        assert len(run.lines)
    verdicts = pool.records(published.parent)["waiting"]["verdicts"]
    assert {v["verdict"] for v in verdicts} <= {"agrees", "differs", "inconclusive"}
    assert {v["n"] for v in verdicts} == {5}
    rebuild(published)
    assert contents(published) == before
    monkeypatch.setenv("HOME", str(Path().absolute()))
    reproduce([WAITING, *TINY_WAITING, "sink=wandb"])
    assert capsys.readouterr().out.count("already done: ") == 5
    (mirror,) = Path().glob("runs/lecture-waiting-custom/wandb/offline-run-*")
    logged = {path.name.partition("_")[0] for path in mirror.rglob("media/*/*")}
    assert logged == {"table", "waiting"}
    assert contents(published) == before


def test_gradients_of_simulated_workers_become_densities() -> None:
    reproduce([DENSITY, *TINY_DENSITY, "launch.workers=4", "seed=1"])
    published = Path("reproduced/lecture/custom/density")
    rows = {run.row for run in pool.read(published.parent)}
    assert rows == {"random", "gradient", "fed_10", "fed_100", "fed_1000"}
    record = pool.records(published.parent)["density"]
    verdicts = {v["claim"]: v["verdict"] for v in record["verdicts"]}
    assert verdicts["gradient.10"].startswith("indicative")  # one seed


def test_every_worker_has_its_own_gradient_and_residuals_are_added() -> None:
    given = (*TINY_DENSITY, "launch.workers=3", "study.real.workers=[2,3]", "seed=0")
    found = {row: study.without_section(c) for row, c in by_row(DENSITY, *given).items()}
    alone, facts = worker_gradients(found["gradient"], 1)
    assert alone.values.shape == (3, facts["parameters"])
    assert not alone.fed
    assert not (alone.values[0] == alone.values[1]).all()
    again, _ = worker_gradients(found["gradient"], 1)
    assert (alone.values == again.values).all()
    fed, _ = worker_gradients(found["fed_1000"], 1)
    assert fed.fed
    # What top-k of the first step left behind is most of that step's gradient.
    assert (fed.values**2).sum() > 1.2 * (alone.values**2).sum()


def test_compress_times_are_measured_on_real_gradients_of_every_model() -> None:
    threads = torch.get_num_threads()
    tiny = ("model.width=2", "launch.threads=1", "study.saturation.repeats=3")
    reproduce(["gravac/fig3", *tiny, "study.saturation.steps=1"])
    assert torch.get_num_threads() == threads
    for run in pool.read(Path("reproduced/gravac/custom")):
        measured = run.lines[run.lines["compress"] == "measured"]
        assert (measured["compress_low"] > 0).all()
        assert (measured["compress_low"] <= measured["compress_ms"]).all()
        assert run.environment["threads_per_worker"] == 1


def test_stated_compress_times_are_half_of_the_papers_direct_dgc() -> None:
    for scale in ("quick", "small", "paper"):
        found = by_row("gravac/fig3", f"scale={scale}")
        printed = {m: table3.TABLE_3(f"{m}.dgc", table3.DIRECT) / 2 for m in MODELS}
        assert {row: c["study"]["stated_ms"] for row, c in found.items()} == printed


def test_the_networks_of_a_study_stand_in_its_record_as_their_files_have_them() -> None:
    (config,) = configs("lecture/allreduce")
    for name, node in config["study"]["networks"].items():
        path = conf_dir() / "network" / f"{name}.yaml"
        assert node == yaml.safe_load(path.read_text(encoding="utf-8"))
    (other,) = configs("lecture/allreduce", "study.allreduce.networks=[nvlink]")
    assert list(other["study"]["networks"]) == ["nvlink"]
    assert other["scale"]["name"] == "custom"


@pytest.mark.parametrize(
    ("name", "given", "scale"),
    [
        (WAITING, ["study.waiting.trials=7"], "custom"),
        (TABLE3, ["measure.steps=2"], "custom"),
        ("dynamic/table1", ["seed=0", "model.width=4"], "custom"),
        ("dynamic/table1", ["scale=small", "seed=0", "train.epochs=2"], "custom"),
        ("dynamic/table1", ["scale=small", "seed=7", "dataset.root=elsewhere"], "small"),
    ],
)
def test_settings_that_depart_from_a_scale_make_other_runs_without_its_name(
    name: str, given: list[str], scale: str
) -> None:
    stated, other = configs(name, *given[: len(given) - 1])[0], configs(name, *given)[0]
    assert stated["scale"]["name"] == ("small" if "scale=small" in given else "quick")
    assert other["scale"]["name"] == scale
    assert (run_folder(stated) == run_folder(other)) == (scale == "small")


def test_a_measurement_becomes_a_table_and_is_not_made_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    reproduce([TABLE3, *TINY_TABLE3])
    published = Path("reproduced/gravac/custom")
    verdicts = {v["claim"]: v for v in pool.records(published)["table3"]["verdicts"]}
    assert {verdicts[f"{model}.dgc.faster"]["n"] for model in MODELS} == {3}
    # Exact top-k chooses the same entries in every way, whatever the machine does.
    chosen = [entry for run in pool.read(published) for entry in run.summary["chosen"]]
    exact = [entry for entry in chosen if entry["method"] == "topk"]
    assert len(exact) == 6
    assert {entry["multilevel_apart"] for entry in exact} == {0}
    assert {entry["single_pass_apart"] for entry in exact} == {0}
    with (published / "numbers.csv").open(newline="") as file:
        rows = {(r["row"], r["quantity"]): r["mean"] for r in csv.DictReader(file)}
    assert float(rows["lstm.topk.direct", "compression time"]) > 0
    capsys.readouterr()
    reproduce([TABLE3, *TINY_TABLE3])
    assert capsys.readouterr().out.count("already done: ") == 3


def test_the_measured_models_have_the_papers_sizes() -> None:
    counts = {}
    for row, config in by_row(TABLE3, "scale=small").items():
        assert (config["optimizer"]["lr"], config["measure"]["repeats"]) == (0.1, 9)
        counts[row] = sum(p.numel() for p in study.unallocated(config).parameters())
    assert counts == {"resnet101": 44_549_160, "vgg16": 138_365_992, "lstm": 66_034_000}


def test_data_that_are_not_here_are_replaced_and_said_unless_a_folder_was_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def not_here(self: Cifar10) -> None:
        raise UserError("dataset.root: no network")

    monkeypatch.setattr(Cifar10, "load", not_here)
    config = by_row(TABLE3, "scale=small", "model.width=2")["resnet101"]
    plain, how = study.without_section(config), (1, config["measure"]["embedded"], "measure.steps")
    _, _, facts = study.last_gradient(plain, *how)
    assert (facts["data"], facts["steps"]) == ("digits", 1)
    assert "no cifar10 here, the embedded digits take its place" in capsys.readouterr().out
    full = {**plain, "scale": {**plain["scale"], "name": "paper"}}
    with pytest.raises(UserError, match=r"^roots\.cifar10: dataset\.root: no network; give its"):
        study.last_gradient(full, *how)
    plain["dataset"]["root"] = "data/cifar10"
    with pytest.raises(UserError, match="no network"):
        study.last_gradient(plain, *how)


def test_what_cannot_be_computed_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"^study\.real\.workers: at most the 2 that have grad"):
        reproduce([DENSITY, *TINY_DENSITY, "launch.workers=2", "seed=0"])
    with pytest.raises(UserError, match=r"^launch\.kind: simulated"):
        worker_gradients(configs(DENSITY, "launch.kind=local", "seed=0")[1], 1)
    monkeypatch.setattr(study.environment, "available_bytes", lambda: 10**9)
    with pytest.raises(UserError, match=r"^model\.width: 138 M parameters need 4\.43 GB"):
        run_config(by_row(TABLE3, "scale=small")["vgg16"])
