"""`reproduce` of what is computed: from the command line to the published folder, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from dgc_repro.errors import UserError
from dgc_repro.launch.identity import run_folder
from dgc_repro.launch.paths import conf_dir
from dgc_repro.launch.reproduce import _artifact, artifacts, reproduce, studied_runs_of
from dgc_repro.launch.study import build_study, worker_gradients
from dgc_repro.paper import pool
from dgc_repro.paper.gravac import MODELS, table3
from dgc_repro.paper.publish import artifact_of, rebuild

pytestmark = pytest.mark.slow

WAITING, DENSITY = "lecture/waiting", "lecture/density"
STUDIES = [name for name in artifacts() if "study" in _artifact(name)]
TINY_WAITING = ("study.waiting.workers=[1,4,16]", "study.waiting.trials=200")
TINY_DENSITY = (
    *("model.width=4", "dataset.train_size=128", "launch.threads=1", "study.real.steps=2"),
    *("study.random.values=2000", "study.random.workers=[2,8]", "study.real.workers=[2,4]"),
)


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def configs(name: str, *given: str) -> list[dict[str, Any]]:
    return [config for config, _ in studied_runs_of(name, given)]


@pytest.mark.parametrize("scale", ["quick", "small", "paper"])
@pytest.mark.parametrize("name", STUDIES)
def test_the_parts_of_a_study_build_at_every_scale_and_are_different_runs(
    name: str, scale: str
) -> None:
    found = configs(name, f"scale={scale}")
    assert {c["scale"]["name"] for c in found} == {scale}
    assert len({run_folder(c) for c in found}) == len(found)
    for config in found:
        assert f"{config['experiment']['paper']}/{config['experiment']['artifact']}" == name
        build_study(config["study"])
    assert callable(artifact_of(*name.split("/")).page)


def test_a_study_is_published_not_computed_again_and_rebuilt_to_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    reproduce([WAITING, *TINY_WAITING])
    published = tmp_path / "reproduced" / "lecture" / "custom" / "waiting"
    assert str(published.relative_to(tmp_path)) in capsys.readouterr().out
    before = contents(published)
    runs = pool.read(published.parent)
    assert len(runs) == 5  # seeds
    for run in runs:
        assert run.setting("study.trials") == 200
        assert len(run.lines)
    assert {"table.md", "waiting.svg", "waiting.png"} <= set(before)
    verdicts = pool.records(published.parent)["waiting"]["verdicts"]
    assert {v["verdict"] for v in verdicts} <= {"agrees", "differs", "inconclusive"}
    assert {v["n"] for v in verdicts} == {5}
    rebuild(published)
    assert contents(published) == before
    monkeypatch.setenv("HOME", str(tmp_path))
    reproduce([WAITING, *TINY_WAITING, "sink=wandb"])
    assert capsys.readouterr().out.count("already done: ") == 5
    (mirror,) = tmp_path.glob("runs/lecture-waiting-custom/wandb/offline-run-*")
    logged = {path.name.partition("_")[0] for path in mirror.rglob("media/*/*")}
    assert logged == {"table", "waiting"}
    assert contents(published) == before


def test_gradients_of_simulated_workers_become_densities(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One number of the sweep's three factors: the others are the same code."""
    monkeypatch.chdir(tmp_path)
    reproduce([DENSITY, *TINY_DENSITY, "launch.workers=4", "seed=1"])
    published = tmp_path / "reproduced" / "lecture" / "custom" / "density"
    assert {run.row for run in pool.read(published.parent)} == {
        "random",
        "gradient",
        "fed_10",
        "fed_100",
        "fed_1000",
    }
    record = pool.records(published.parent)["density"]
    verdicts = {v["claim"]: v["verdict"] for v in record["verdicts"]}
    assert verdicts["gradient.10"].startswith("indicative")  # one seed
    assert verdicts["dense.gradient"].startswith("indicative")
    text = (published / "table.md").read_text()
    assert "reduced scale: custom" in text
    assert "after 2 steps" in text
    assert (published / "density.png").stat().st_size > 10_000


def test_every_worker_has_its_own_gradient_and_residuals_are_added() -> None:
    given = (*TINY_DENSITY, "launch.workers=3", "study.real.workers=[2,3]", "seed=0")
    found = {c["experiment"]["row"]: c for c in configs(DENSITY, *given)}
    plain = {k: v for k, v in found["gradient"].items() if k != "study"}
    alone, facts = worker_gradients(plain, 1)
    assert alone.values.shape == (3, facts["parameters"])
    assert not alone.fed
    assert not (alone.values[0] == alone.values[1]).all()
    again, _ = worker_gradients(plain, 1)
    assert (alone.values == again.values).all()
    fed, _ = worker_gradients({k: v for k, v in found["fed_1000"].items() if k != "study"}, 1)
    assert fed.fed
    # What top-k of the first step left behind is most of that step's gradient.
    assert (fed.values**2).sum() > 1.2 * (alone.values**2).sum()


def test_compress_times_are_measured_on_real_gradients_of_every_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    tiny = ("model.width=2", "launch.threads=1", "study.saturation.repeats=3")
    reproduce(["gravac/fig3", *tiny, "study.saturation.steps=1"])
    assert torch.get_num_threads() == threads
    published = tmp_path / "reproduced" / "gravac" / "custom" / "fig3"
    for run in pool.read(published.parent):
        measured = run.lines[run.lines["compress"] == "measured"]
        assert (measured["compress_low"] > 0).all()
        assert (measured["compress_low"] <= measured["compress_ms"]).all()
        assert run.environment["threads_per_worker"] == 1
    verdicts = pool.records(published.parent)["fig3"]["verdicts"]
    judged = [v for v in verdicts if v["verdict"] != "not run"]
    assert judged
    assert all(v["verdict"].endswith("(given)") and v["modelled"] for v in judged)


def test_stated_compress_times_are_half_of_the_papers_direct_dgc() -> None:
    for scale in ("quick", "small", "paper"):
        stated = {
            c["experiment"]["row"]: c["study"]["stated_ms"]
            for c in configs("gravac/fig3", f"scale={scale}")
        }
        assert stated == {m: table3.TABLE_3(f"{m}.dgc", table3.DIRECT) / 2 for m in MODELS}


def test_the_networks_of_a_study_stand_in_its_record_as_their_files_have_them() -> None:
    (config,) = configs("lecture/allreduce")
    for name, node in config["study"]["networks"].items():
        path = conf_dir() / "network" / f"{name}.yaml"
        assert node == yaml.safe_load(path.read_text(encoding="utf-8"))
    (other,) = configs("lecture/allreduce", "study.allreduce.networks=[nvlink]")
    assert list(other["study"]["networks"]) == ["nvlink"]
    assert other["scale"]["name"] == "custom"


def test_other_settings_depart_from_the_scale_and_are_another_run() -> None:
    stated, other = configs(WAITING)[0], configs(WAITING, "study.waiting.trials=7")[0]
    assert (stated["scale"]["name"], other["scale"]["name"]) == ("quick", "custom")
    assert run_folder(stated) != run_folder(other)
    assert set(stated) == {"seed", "scale", "experiment", "paths", "study"}


def test_more_workers_than_are_simulated_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        UserError, match=r"^study\.real\.workers: at most the 2 that have gradients"
    ):
        reproduce([DENSITY, *TINY_DENSITY, "launch.workers=2", "seed=0"])


def test_gradients_of_real_processes_are_refused() -> None:
    config = configs(DENSITY, "launch.kind=local", "seed=0")[1]
    with pytest.raises(UserError, match=r"^launch\.kind: simulated"):
        worker_gradients(config, 1)
