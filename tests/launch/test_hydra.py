"""What a Hydra user types: flags, tab completion, configs from elsewhere, launchers, sweepers."""

from __future__ import annotations

import importlib.metadata
import json
import logging
import math
import os
import re
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from commands import PATIENCE_SECONDS, Command, refused, wait_for
from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf
from ranks import processes_of
from tiny_run import FINISHED, PLAIN, TEXT, TIMED, TINY, built, play

from dgc_repro.errors import UserError
from dgc_repro.launch import main, paths
from dgc_repro.launch.environment import RUNS_AT_ONCE, available_cores, threads_of_worker
from dgc_repro.launch.overrides import composed
from dgc_repro.launch.paths import conf_dir
from dgc_repro.launch.sweep import EVERY_RUN, KEY, MODELLED, OF_KIND, _runs_at_once, best, measured
from dgc_repro.names import installed_papers

Printed = Callable[..., str]
SHORT = (*TINY, "train.epochs=1")
POISONED = ("~model", "+model={_target_:odd_models.Plain,poisoned_steps:[2],poisoned_rank:1}")
"""A run that fails, unless train.on_nonfinite=skip."""

OPTUNA = pytest.mark.filterwarnings("ignore")  # it warns of itself


@pytest.fixture
def printed(
    ended: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Printed]:
    """Runs the command line with these arguments here; what it prints. Its exit code is the keyword."""
    monkeypatch.setattr(paths, "_ADDED", [])
    log = logging.getLogger()
    before, level = list(log.handlers), log.level

    def run(*arguments: str, code: int = 0) -> str:
        found, out, errors = ended(*arguments)
        assert found == code, out + errors
        return out

    yield run
    log.handlers[:] = before  # --info logs to stdout as it is now
    log.setLevel(level)


# Flags.


def test_cfg_prints_the_config_or_one_package_of_it(printed: Printed) -> None:
    whole = yaml.safe_load(printed("compressor=topk", "--cfg", "job"))
    assert whole["compressor"]["_target_"].endswith("TopK")
    assert "hydra" not in whole
    part = printed("--cfg", "job", "--package", "compressor", "compressor=topk")
    assert yaml.safe_load(part) == whole["compressor"]
    batch = ("train.batch_size=${launch.workers}", "--cfg", "job", "--package", "train")
    assert yaml.safe_load(printed(*batch))["batch_size"] == "${launch.workers}"
    assert yaml.safe_load(printed(*batch, "--resolve"))["batch_size"] == 2


def test_info_is_that_of_the_command_line(printed: Printed) -> None:
    said = printed("compressor=topk", "--info", "all")
    assert "compressor/topk" in said
    assert str(conf_dir()) in said


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("compressor=to", {"compressor=topk"}),
        ("comp", {"compressor=", "compressor."}),
        ("compressor=topk compressor.d", {"compressor.density="}),
        ("--config-dir my_conf experiment=", {"experiment=mine"}),
        ("reproduce dyn", {"dynamic/table1", "dynamic/sensitivity"}),
        ("reproduce ", {"benchmark/methods", "mlsbench/payloads", "list="}),
        ("reproduce dynamic/table1 ", {"published=", "plan=", "device=", "share=", "publish="}),
        ("reproduce dynamic/table1 scale=sm", {"scale=small"}),
        ("reproduce dynamic/table1 plan=true train.ep", {"train.epochs="}),
        ("compare --b", {"--by"}),
        ("compare my", {"my_conf/"}),
        ("recommend ", {"network=", "workers=", "model=", "image=", "max_cost=", "measure="}),
        ("reproduce list=queue ", {"plan=", "publish="}),
        ("calibrate launch=netl", {"launch=netlab"}),
        ("selfcheck ", {"rows=", "timeout=", "report="}),
        ("netlab ", {"clean"}),
        ("rec", {"recommend", "recipe="}),
        # After a command of ours nothing is offered that it does not know.
        *((f"{command} zzz", set()) for command in ("reproduce", "compare")),
        ("new-paper ", set()),
    ],
)
def test_tab_completes_groups_members_and_keys(
    line: str, offered: set[str], own: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    monkeypatch.chdir(own)
    monkeypatch.setenv("COMP_LINE", f"dgc-repro {line}")
    monkeypatch.setattr(sys, "argv", ["dgc-repro", "-sc", "query=bash"])
    main.complete()
    found, errors = capsys.readouterr()
    assert offered <= set(found.split())
    assert offered or not found.strip()
    assert errors == ""


def test_completion_is_installed_for_the_name_of_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where a module has been asked for it."""
    monkeypatch.setattr(sys, "argv", ["dgc_repro/__main__.py", "-sc", "install=bash"])
    main.complete()
    assert capsys.readouterr().out.splitlines()[-1].endswith(" dgc-repro")


# Configs from elsewhere.


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder with ``my_conf``, and a package ``own_of_a_test`` with the same configs."""
    monkeypatch.setattr(paths, "_ADDED", [])
    package = tmp_path / "own_of_a_test"
    files = {
        "compressor/mine": (
            "compressor: {_target_: dgc_repro.compressor.topk.TopK, density: 0.02}\n"
            "wrap: [per_layer, error_feedback]\n"
        ),
        "policy/mine": "policy: {_target_: dgc_repro.policy.fixed.Fixed, field: density,"
        " values: [0.1], rung: 1}\n",
        "experiment/mine": "defaults:\n  - override /compressor: mine\nseed: 7\n",
        "tuned/fast": "optimizer: {lr: 0.3}\n",
    }
    for name, text in files.items():
        path = package / "conf" / f"{name}.yaml"
        path.parent.mkdir(parents=True)
        path.write_text(f"# @package _global_\n{text}", encoding="utf-8")
    for folder in (package, package / "conf"):
        (folder / "__init__.py").touch()
    shutil.copytree(package / "conf", tmp_path / "my_conf")
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.slow
def test_a_folder_of_ones_own_gives_members_of_every_group(
    own: Path, printed: Printed, trained: list[Path]
) -> None:
    given = ("--config-dir", "my_conf", "experiment=mine", "policy=mine", "+tuned=fast")
    config = yaml.safe_load(printed(*given, "--cfg", "job"))
    assert config["compressor"] == {"_target_": "dgc_repro.compressor.topk.TopK", "density": 0.02}
    assert (config["seed"], config["policy"]["values"]) == (7, [0.1])
    assert config["optimizer"]["lr"] == 0.3
    printed(*given, *SHORT)
    # Not dense, though only the experiment names the compressor.
    assert trained[0].name.startswith("mine-mine-mine-fast-")


def test_a_typo_beside_a_folder_of_ones_own_is_told_its_names(
    own: Path, whole_command: Callable[..., tuple[int, list[str]]]
) -> None:
    line = refused(whole_command("--config-dir", "my_conf", "+tuned=fats"))
    assert line == "tuned: no 'fats'; did you mean fast?"


@pytest.mark.parametrize("way", ["file", "pkg", "plugin", "installed paper"])
def test_configs_of_ones_own_are_found_in_other_ways_too(
    way: str, own: Path, printed: Printed, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Mine(SearchPathPlugin):
        def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
            search_path.append("own_of_a_test", "pkg://own_of_a_test.conf")

    places = {"file": f"file://{own}/my_conf", "pkg": "pkg://own_of_a_test.conf"}
    given = [f"hydra.searchpath=[{places[way]}]"] if way in places else []
    if way == "plugin":
        known = Plugins.instance().plugin_type_to_subclass_list
        monkeypatch.setitem(known, SearchPathPlugin, [*known[SearchPathPlugin], Mine])
    elif way == "installed paper":
        found = {"mypaper": "own_of_a_test", "broken": "own_of_a_test.nowhere.at_all"}
        points = [SimpleNamespace(name=name, value=value) for name, value in found.items()]
        monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: points)
    given += ["compressor=mine", "policy=mine"]
    assert "density: 0.02" in printed(*given, "--cfg", "job")
    if way in places:
        printed(*given, *SHORT)
    else:
        assert composed(["experiment=mine"])["seed"] == 7


def test_of_two_papers_with_one_name_the_first_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [SimpleNamespace(name="twice", value=value) for value in ("first", "second")]
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: points)
    assert installed_papers() == {"twice": "first"}


# Launchers.


def test_a_sweep_prints_one_table_and_names_what_failed(printed: Printed) -> None:
    text = printed("--multirun", *SHORT, *POISONED, "train.on_nonfinite=raise,skip", code=2)
    assert "[2/2] " in text
    assert " accuracy %" in text
    end = text.partition("failed: 1 of 2 runs\n")[2]
    assert "train.on_nonfinite=raise: train.on_nonfinite: the gradient is not finite" in end
    (record,) = Path().glob("multirun/*/*/runs.jsonl")
    head, failed, finished = map(json.loads, record.read_text().splitlines())
    assert head["runs"] == 2
    assert "error" in failed
    assert Path(finished["folder"]).is_dir()


def test_a_sweep_with_uncompressed_training_judges_the_others_against_it(printed: Printed) -> None:
    text = printed("--multirun", "compressor=dense,topk", *SHORT)
    table = text.partition("\nagainst Dense, margin 0.5 points of accuracy\n")[2]
    assert re.search(r"^Dense +1 +1\.00x +0\.00 +- +- +- +-$", table, re.M)
    assert re.search(r"^TopK\b.* 1 +\d.*x +\S+ +- +undecided, n = 1 +- +2\+$", table, re.M)
    assert "compare runs --against dense draws them" in text
    # A setting that all swept members have may be shared.
    text = printed("--multirun", "compressor=topk,randomk", "compressor.density=0.1", *SHORT)
    assert "[2/2] compressor=randomk compressor.density=0.1 " in text
    assert "against" not in text


def test_runs_at_the_same_time_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    launch = {"threads": None, "workers": 1}
    for at_once in (1, 2):
        monkeypatch.setenv(RUNS_AT_ONCE, str(at_once))
        assert threads_of_worker(launch) == max(1, available_cores() // at_once)

    def asked(launcher: str, n_jobs: int, num_runs: int = 8) -> int:
        choices = {"hydra/launcher": launcher}
        node = {"runtime": {"choices": choices}, "launcher": {"n_jobs": n_jobs}, "sweeper": {}}
        return _runs_at_once(OmegaConf.create(node), num_runs)

    assert asked("basic", 4) == 1
    assert asked("joblib", 4) == 4
    assert asked("joblib", 4, num_runs=3) == 3
    assert asked("joblib", -1, num_runs=10**6) == available_cores()


def test_a_plugin_that_is_not_installed_is_named_with_its_extra(
    whole_command: Callable[..., tuple[int, list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = ConfigStore.instance().repo["hydra"]
    for group, plugin, extra, given in (
        ("launcher", "joblib", "sweep", "hydra/launcher=joblib"),
        ("launcher", "submitit_slurm", "slurm", "hydra/launcher=submitit_slurm"),
        ("sweeper", "optuna", "sweep", "hparams_search=density_lr"),
    ):
        monkeypatch.delitem(repository[group], f"{plugin}.yaml")
        line = f"error: hydra/{group}: no {plugin!r}; pip install 'dgc_repro[{extra}]'"
        assert whole_command("--multirun", given) == (2, [line])


JOBLIB = ("--multirun", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2", *TINY)


@pytest.mark.slow
@pytest.mark.timeout(2 * PATIENCE_SECONDS)
def test_joblib_runs_in_parallel_and_ends_with_the_table(commands: Callable[..., Command]) -> None:
    command = commands(*JOBLIB, *POISONED, "train.epochs=1", "train.on_nonfinite=raise,skip")
    command.start()
    code, lines = command.end()
    assert code == 2
    assert lines[-1].startswith("error: train.on_nonfinite: the gradient is not finite")
    assert " accuracy %" in command.printed()
    assert "failed: 1 of 2 runs\n" in command.printed()


@pytest.mark.slow
@pytest.mark.timeout(2 * PATIENCE_SECONDS)
def test_a_signal_ends_a_parallel_sweep_with_its_runs(commands: Callable[..., Command]) -> None:
    command = commands(*JOBLIB, "train.epochs=100000", "seed=0,1", "sink.every_steps=1")
    command.start()
    wait_for(lambda: len(list(command.runs.glob("*/steps.jsonl"))) == 2, "both runs")
    command.process.terminate()
    command.process.communicate(timeout=PATIENCE_SECONDS / 2)
    assert command.process.returncode == 128 + signal.SIGTERM
    wait_for(lambda: processes_of(command.runs) == {}, "the end of all ranks", 10)


# Sweepers.


@OPTUNA
def test_optuna_finds_the_fewest_bytes_and_writes_its_result(printed: Printed) -> None:
    small = ("hydra.sweeper.n_trials=3", "stopping.target=1")
    text = printed("hparams_search=density_lr", *small, *SHORT)
    assert "[3/3] compressor=topk compressor.density=" in text
    (result,) = Path().glob("multirun/*/*/optimization_results.yaml")
    found = yaml.safe_load(result.read_text())
    densities = {}
    for folder in Path().glob("runs/topk-*"):
        summary = json.loads((folder / "summary.json").read_text())
        config = yaml.safe_load((folder / "config.yaml").read_text())
        densities[summary["comm/payload_bytes"]] = config["compressor"]["density"]
    assert len(densities) == 3
    assert found["best_value"] == min(densities)
    assert found["best_params"]["compressor.density"] == densities[min(densities)]
    assert (
        f"best: comm/payload_bytes@target {min(densities):.6g} with compressor=topk compressor."
        in text
    )


def test_the_best_trials_are_those_that_no_other_beats() -> None:
    head = {"objectives": ["test/loss", "comm/bytes"], "goals": ["minimize", "maximize"]}
    values = {"a": [0.5, 9.0], "b": [0.5, 9.0], "c": [0.4, 8.0], "d": [0.6, 9.0], "e": None}
    lines: list[dict[str, Any]] = [
        {"overrides": [f"optimizer.lr={name}"], "folder": os.path.abspath(name), KEY: value}
        for name, value in values.items()
    ]
    first, *others = best(head, lines)
    assert first == "the best 3 trials (no other is better in everything):"
    assert others[0] == "test/loss 0.5, comm/bytes 9 with optimizer.lr=a (a)"
    assert [text[-2] for text in others] == ["a", "b", "c"]
    alone = [line | {KEY: line[KEY][1]} for line in lines if line[KEY]]
    one = {"objectives": ["comm/bytes"], "goals": ["maximize"]}
    assert best(one, alone) == ["best: comm/bytes 9 with optimizer.lr=a (a)"]
    assert best(one, []) == []
    assert best(head, lines[-1:]) == []  # all have failed


@OPTUNA
@pytest.mark.slow
def test_a_search_goes_on_after_a_failed_trial_and_says_when_no_trial_gets_there(
    printed: Printed,
) -> None:
    given = ("hparams_search=density_lr", "stopping.target=100", *SHORT, *POISONED)
    raises, three = "train.on_nonfinite=raise", "hydra.sweeper.n_trials=3"
    text = printed(*given, three, f"{raises},skip")
    assert "[3/3] " in text
    assert "no trial reached stopping.target" in text
    assert "failed: " in text.partition("no trial")[2]
    text = printed(*given, "hydra.sweeper.n_trials=1", raises, code=1)
    assert "failed: 1 of 1 runs" in text


@OPTUNA
@pytest.mark.slow
def test_a_search_may_have_several_goals(printed: Printed) -> None:
    text = printed("hparams_search=pareto", "hydra.sweeper.n_trials=2", *SHORT)
    assert "trials (no other is better in everything):\nvalidation/accuracy_percent " in text
    (result,) = Path().glob("multirun/*/*/optimization_results.yaml")
    for solution in yaml.safe_load(result.read_text())["solutions"]:
        assert len(solution["values"]) == 2


def test_the_names_that_a_search_takes_are_those_that_a_run_records() -> None:
    spans = {name for name in EVERY_RUN if name.endswith("_ms")}  # of steps after the warm-up
    images = play(built("train.epochs=1", *PLAIN, *TIMED)).records[-1]
    assert {*EVERY_RUN, *MODELLED} - spans <= set(images)
    words = play(built("train.epochs=1", *TEXT)).records[-1]
    assert {*EVERY_RUN, *OF_KIND["words"]} - spans <= set(words)


def test_at_target_is_the_first_epoch_that_reaches_it() -> None:
    folder = Path("run")
    shutil.copytree(FINISHED, folder)
    config = yaml.safe_load((folder / "config.yaml").read_text())
    config.pop("goal", None)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for target, epoch in ((77, 3), (0, 1), (100, None)):
        config["stopping"] = {"target": target}
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
        reached = [e["comm/payload_bytes"] for e in lines if e.get("epoch") == epoch]
        at = reached[0] if reached else math.inf
        last = [e for e in lines if "test/loss" in e][-1]["test/loss"]
        assert measured(["comm/payload_bytes@target", "test/loss"], folder) == [at, last]
        assert measured(["comm/payload_bytes@target"], folder) == at
    assert measured([], folder) is None
    with pytest.raises(UserError, match="no time/modelled_seconds in its epochs"):
        measured(["time/modelled_seconds"], folder)
