"""The ways into wandb beside a live run: its sweeps, `wandb <folder>`, and the workspace."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import wandb
import yaml
from commands import refused
from tiny_run import FINISHED, TINY
from wandb import wandb_agent

from dgc_repro.errors import UserError
from dgc_repro.launch.identity import RESULTS_VERSION, run_folder
from dgc_repro.launch.overrides import composed
from dgc_repro.launch.paths import conf_dir
from dgc_repro.launch.run import check, expand, own_name
from dgc_repro.sink import wandb_report
from dgc_repro.sink.interface import RunInfo
from dgc_repro.sink.wandb import Wandb

SWEEPS = sorted((conf_dir() / "wandb").glob("*.yaml"))
SMALL = [one for one in TINY if not one.startswith("sink")]
Run = Callable[..., tuple[int, list[str]]]


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("WANDB_SILENT", "true")  # the sink sets it too; here it is taken away again
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("NETRC", raising=False)
    yield
    wandb.teardown()


def started(path: Path, values: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The command that wandb's agent starts for these values of a sweep's parameters."""
    sweep = yaml.safe_load(path.read_text(encoding="utf-8"))
    found: list[list[str]] = []
    process = lambda command, **_: found.append(command) or SimpleNamespace()  # noqa: E731
    monkeypatch.setattr(wandb_agent, "AgentProcess", process)
    for name in ("WANDB_RUN_ID", "WANDB_SWEEP_PARAM_PATH"):
        monkeypatch.setenv(name, "")  # the agent sets them in its own process, here in ours
    agent: Any = SimpleNamespace(
        _in_jupyter=False, _function=None, _sweep_command=sweep["command"], _run_processes={},
        _forward_signals=False,
    )  # fmt: skip
    given = {key: {"value": value} for key, value in values.items()}
    job = {"run_id": "abc", "program": sweep["program"], "args": given}
    wandb_agent.Agent._command_run(agent, job)
    (command,) = found
    return command


def samples(path: Path) -> list[dict[str, Any]]:
    """All combinations of a sweep's parameters; of a range its two ends."""
    parameters = yaml.safe_load(path.read_text(encoding="utf-8"))["parameters"]
    choices = [p["values"] if "values" in p else [p["min"], p["max"]] for p in parameters.values()]
    return [dict(zip(parameters, values, strict=True)) for values in itertools.product(*choices)]


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_every_run_of_a_sweep_is_valid_and_its_seeds_are_one_group(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dgc_repro.sink.wandb.key_problem", lambda: None)
    opened: list[dict[str, Any]] = []
    monkeypatch.setattr(
        Wandb, "_open", lambda self, folder, name, **said: opened.append({"name": name, **said})
    )
    values = samples(path)
    for one in values:
        *python, module, program = (command := started(path, one, monkeypatch))[:4]
        assert (python, module, program) == (["/usr/bin/env", "python"], "-m", "dgc_repro")
        overrides = command[4:]
        config = composed(overrides)
        check(config, overrides)
        config["experiment"]["row"] = own_name(overrides)  # as launch/run.py
        assert config["network"]["rate"], "for time/modelled_seconds"
        mirror = config["sink"]["mirror"]
        assert mirror["mode"] == "online"
        folder = run_folder(config)
        Wandb().start(RunInfo(Path(folder.name), folder.name, config, {}, 1, 1))
    assert len({run["name"] for run in opened}) == len(values), "no two runs are called the same"
    groups = {run["group"] for run in opened}
    seeds = len({one.get("seed") for one in values})
    assert len(groups) * seeds == len(values)
    if path.stem == "grid":
        page = (conf_dir().parent / "docs" / "sweeps.md").read_text(encoding="utf-8")
        (shown,) = re.findall(r"^python -m dgc_repro --multirun (.*) sink=wandb$", page, re.M)
        described = [[o for o in job if "network" not in o] for job in expand(shown.split())]
        assert described == [[f"{key}={value}" for key, value in one.items()] for one in values]
        assert len(values) == 12
        assert "topk-ethernet_1gbit-accordion" in groups
        tags = {tag for run in opened for tag in run["tags"]}
        assert tags == {"topk", "randomk", "redsync", "fixed", "accordion", "quick"}
        assert opened[2]["tags"] == ["topk", "accordion", "quick"]


def files() -> list[str]:
    """The names of the offline runs."""
    return sorted(path.name for path in Path().glob("runs/*/wandb/offline-run-*/*.wandb"))


def test_a_finished_run_names_the_command_that_mirrors_it_and_a_sweep_gets_its_record(
    command: Run, trained: list[Path], said: list[str],
    monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    setting = [*SMALL, "compressor=topk"]
    config = composed(setting)
    config["experiment"]["row"] = own_name(setting)
    folder = run_folder(config)
    shutil.copytree(FINISHED, folder)
    ended = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps(ended | {"results_version": RESULTS_VERSION}))

    assert command(*setting, "sink=wandb") == (0, [])
    assert f"not mirrored: python -m dgc_repro wandb {folder} does it" in said
    assert files() == []

    Path("runs/begun").mkdir()
    Path("runs/begun/config.yaml").write_text("seed: 0\n")
    assert command("wandb", "runs", "sink.tags=[mine]") == (0, [])
    assert "runs/begun: not finished, left out" in said
    assert f"[1/1] {folder}" in said
    (mirrored,) = files()

    # wandb's agent says which run of the sweep it has started.
    monkeypatch.setenv("WANDB_SWEEP_ID", "sweep1")
    monkeypatch.setenv("WANDB_RUN_ID", "abc123")
    assert command(*setting, "sink=wandb") == (0, [])
    assert set(files()) == {"run-abc123.wandb", mirrored}
    assert trained == []


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("wandb runs", "runs: no run folder, and none in it; settings are written sink.<key>="),
        ("wandb project=x", "project=x: no run folder"),
        ("wandb . sink.projcet=x", "sink.projcet: no such key"),
        ("wandb . sink.mode=on", "sink.mode: one of offline, online, disabled, got 'on'"),
        ("wandb . sink.mode=online", "sink.mode: online needs a wandb key"),
        (
            " ".join([*SMALL, "sink=wandb", "sink.mode=online"]),
            "sink.mode: online needs a wandb key",
        ),
    ],
    ids=["no run", "no key=value", "a typo", "a wrong mode", "no key", "no key for a training"],
)
def test_what_cannot_be_mirrored_is_one_line(arguments: str, line: str, command: Run) -> None:
    assert refused(command(*arguments.split())).startswith(line)
    assert not Path("runs").exists()


def test_a_run_that_is_not_mirrored_completely_is_an_error(
    command: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(FINISHED, "runs/own")
    monkeypatch.setattr("dgc_repro.launch.mirror.upload", lambda *_: False)
    line = "error: wandb: 1 of 1 runs were not mirrored completely"
    assert command("wandb", "runs") == (1, [line])


def test_wandb_writes_through_no_link(command: Run) -> None:
    """A linked run folder is not found in a folder, and a linked folder of wandb's is refused."""
    outside = Path("outside").absolute()
    (outside / "wandb").mkdir(parents=True)
    shutil.copytree(FINISHED, outside / "linked")
    shutil.copytree(FINISHED, "runs/own")
    Path("runs/link").symlink_to(outside / "linked")
    Path("runs/own/wandb").symlink_to(outside / "wandb")
    code, lines = command("wandb", "runs")
    assert code == 2
    assert "wandb is a symbolic link" in lines[-1]
    assert [path.name for path in (outside / "wandb").iterdir()] == []
    assert not (outside / "linked" / "wandb").exists()


def test_the_workspace_draws_quality_over_bytes_and_time_rungs_and_bytes_by_kind() -> None:
    pytest.importorskip("wandb_workspaces")
    spec = wandb_report.workspace("me", "mine")._to_model().spec.section
    panels = {
        section.name: [panel.config for panel in section.panels if hasattr(panel.config, "metrics")]
        for section in spec.panel_bank_config.sections
    }
    for metric, section in (
        ("test/accuracy_percent", "Test accuracy (%)"),
        ("test/perplexity", "Test perplexity"),
    ):
        axes = {panel.x_axis for panel in panels[section] if panel.metrics == [metric]}
        assert axes >= {"_step", "comm/wire_bytes", "time/modelled_seconds"}
    assert ["policy/rung"] in [panel.metrics for panel in panels["Policy"]]
    drawn = {metric for panel in panels["Bytes"] for metric in panel.metrics}
    assert drawn >= {"comm/wire_bytes", "comm/signal_bytes", "comm/buffer_bytes"}
    (runs,) = spec.run_sets
    assert [(key.section, key.name) for key in runs.grouping] == [("run", "group")]


def test_the_workspace_needs_a_key_and_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["wandb_report.py"])
    with pytest.raises(UserError, match="needs a wandb key, found none .*; run `wandb login`$"):
        wandb_report.main()
    monkeypatch.setitem(sys.modules, "wandb_workspaces", None)
    with pytest.raises(UserError, match=r"pip install 'dgc_repro\[reports\]'$"):
        wandb_report.main()
