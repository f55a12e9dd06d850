"""A run folder is data: reading it, comparing it, repeating a command beside it and training what it says
import nothing that the user's own command line does not name."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from tiny_run import TINY, configured

import dgc_repro
from dgc_repro.errors import UserError
from dgc_repro.launch import single
from dgc_repro.launch.identity import run_folder
from dgc_repro.launch.ranks import OWN_TARGETS
from dgc_repro.launch.worker import read_config, run_worker

TARGETS = ("payload.Payload", "runs.evil.payload.Payload", "payload:Payload", "runs.evil.payload")
PAYLOAD = "from pathlib import Path\n\nPath({marker!r}).touch()\n\n\nclass Payload:\n    pass\n"


@pytest.fixture(params=TARGETS)
def evil(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    """A config that names a component in ``runs/evil``, where Python finds it."""
    folder = tmp_path / "runs" / "evil"
    folder.mkdir(parents=True)
    (folder / "payload.py").write_text(PAYLOAD.format(marker=str(tmp_path / "executed")))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delenv(OWN_TARGETS, raising=False)
    for name in ("payload", "runs", "runs.evil", "runs.evil.payload"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    config = configured(*TINY)
    config["compressor"] = {"_target_": request.param, "path": "${oc.env:HOME}"}
    return config


def write(config: dict[str, Any], folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    (folder / "environment.json").write_text("{}")
    (folder / "summary.json").write_text('{"status": "finished"}')
    (folder / "metrics.jsonl").write_text("{}\n")
    return folder


def is_refused(read: Callable[[], object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        read()
    assert not Path("executed").exists()


def test_reading_and_comparing_runs_imports_nothing(evil: dict[str, Any]) -> None:
    write(evil, Path("runs/evil"))
    is_refused(lambda: dgc_repro.load_runs("runs"), r"evil|no finished run")
    is_refused(lambda: dgc_repro.compare.main(["runs"]), r"evil|no finished run")


def test_a_command_whose_folder_holds_another_config_imports_nothing(
    evil: dict[str, Any],
) -> None:
    own = configured(*TINY)
    folder = write(evil, run_folder(own))
    is_refused(lambda: single.prepare(folder, own), "holds another config")


def test_a_worker_trains_no_component_that_no_command_line_names(evil: dict[str, Any]) -> None:
    folder = write(evil, Path("runs/evil"))
    is_refused(lambda: run_worker(folder), "which no command line has named")


def test_a_worker_takes_a_component_that_its_command_line_names(
    evil: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(evil, Path("runs/evil"))
    monkeypatch.setenv(OWN_TARGETS, evil["compressor"]["_target_"])
    assert read_config(folder)["compressor"] == evil["compressor"]  # no resolver has run


def test_a_run_that_another_folder_continues_imports_nothing(evil: dict[str, Any]) -> None:
    source = write(evil, Path("runs/evil"))
    own = configured(*TINY, f"train.resume_from={source}")
    is_refused(lambda: single.run_config(own), "train.resume_from: no checkpoint")


@pytest.mark.parametrize("tag", ["!!python/object/apply:pathlib.Path.touch", "!!python/name:os.x"])
def test_a_tag_of_python_in_a_config_is_refused(tmp_path: Path, tag: str) -> None:
    (tmp_path / "config.yaml").write_text(f"seed: {tag} []\n")
    with pytest.raises(UserError, match="is not a config"):
        read_config(tmp_path)
