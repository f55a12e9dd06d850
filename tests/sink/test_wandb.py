"""The mirror: real offline runs read back, and failures that must not reach the training."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import wandb
from made_up_run import (
    NUM_EPOCHS,
    STEPS_PER_EPOCH,
    epoch_record,
    play,
    record,
    run_info,
    step_metrics,
)
from PIL import Image
from wandb.sdk.lib.wbauth import unauthenticate_session
from wandb_file import items, records

from dgc_repro.errors import UserError
from dgc_repro.kernel import native
from dgc_repro.launch.environment import describe
from dgc_repro.launch.mirror import sync_line
from dgc_repro.sink.interface import FanOut
from dgc_repro.sink.wandb import AXES, Wandb, setting_name

KEY = "0" * 40


@pytest.fixture(autouse=True)
def no_key_on_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    home = tmp_path / "home"
    home.mkdir()
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    # Ours to set in the process; named here so that it is taken away again.
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("NETRC", raising=False)
    monkeypatch.chdir(tmp_path)
    yield
    unauthenticate_session(update_settings=True)  # wandb keeps key and settings for the process
    wandb.teardown()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "dynamic-table1-static8_ef-quick-s3-0a1b2c3d"


def offline_file(folder: Path) -> Path:
    """The one offline run below ``folder``."""
    (found,) = (folder / "wandb").glob("offline-run-*/*.wandb")
    return found


def mirror(folder: Path, sink: Wandb, last_epoch: int = NUM_EPOCHS) -> list[Any]:
    """Record a run with ``sink`` beside the record, and read the mirror back."""
    record(folder, sink, last_epoch=last_epoch)
    return records(offline_file(folder))


def history(found: list[Any]) -> list[dict[str, Any]]:
    """The logged rows, without wandb's own clocks, and without the table, whose file has a random name."""
    own = ("_timestamp", "_runtime", "policy/trace")
    rows = [items(r.history.item) for r in found if r.HasField("history")]
    return [{key: row[key] for key in row if not key.startswith(own)} for row in rows]


def summary(found: list[Any]) -> dict[str, Any]:
    """The summary after all updates."""
    values: dict[str, Any] = {}
    for one in found:
        if one.HasField("summary"):
            values |= items(one.summary.update)
    return values


def artifacts(found: list[Any]) -> dict[str, set[str]]:
    """By type, the files of the logged artifacts."""
    logged = [r.request.log_artifact.artifact for r in found if r.HasField("request")]
    logged += [r.artifact for r in found if r.HasField("artifact")]
    return {a.type: {entry.path for entry in a.manifest.contents} for a in logged if a.type}


def test_a_group_is_the_seeds_of_one_setting(folder: Path) -> None:
    def group(row: str = "static8_ef", paper: str = "dynamic", seed: int = 3, lr: float = 1) -> str:
        run = run_info(folder)
        experiment = {"paper": paper, "artifact": "table1", "row": row}
        config = {**run.config, "experiment": experiment, "seed": seed, "optimizer": {"lr": lr}}
        paths = {"paths": {"runs": f"runs{seed}"}}
        return setting_name(replace(run, name=f"{row}-s{seed}-{seed}{lr}", config=config | paths))

    assert group() == group(seed=4)
    assert group() != group(lr=2)
    assert group(row="topk-lr2", paper="none") == "topk-lr2"


def test_an_offline_run_holds_the_whole_run_and_no_key(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    key = "5f0c" * 10
    monkeypatch.setenv("WANDB_API_KEY", key)
    found = mirror(folder, Wandb(tags=["mine"]))

    # A row's step is the step of training. An epoch's record shares the row of its last step, so that a chart
    # may draw accuracy over steps, bytes or seconds.
    rows = {row["_step"]: row for row in history(found)}
    assert list(rows) == [10, 20, 30, 40, 50, 60], "every tenth step"
    assert rows[10]["train/loss"] == step_metrics(10)["train/loss"]
    for epoch in range(1, NUM_EPOCHS + 1):
        row = rows[epoch * STEPS_PER_EPOCH]
        values = {key: value for key, value in epoch_record(epoch).items() if key != "step"}
        assert {key: row[key] for key in values} == values
        assert set(row) >= set(AXES)
    metrics = {r.metric.name: r.metric for r in found if r.HasField("metric")}
    assert set(metrics) >= set(AXES)

    # Named as its folder; seeds of one setting share a group.
    run = next(r.run for r in found if r.HasField("run"))
    config = items(run.config.update)
    assert (config["seed"], config["environment"]) == (3, {"hardware": "synthetic"})
    assert config["compressor"]["bits"] == 8
    assert list(config["wrapper"]) == ["error_feedback"], "wrappers in use"
    assert not {"sink", "paths"} & set(config)
    group, _, settings = run.run_group.rpartition("-")
    assert (group, len(settings), run.job_type) == ("dynamic-table1-static8_ef-quick", 8, "train")
    assert run.display_name == "dynamic-table1-static8_ef-quick-s3-0a1b2c3d"
    assert set(run.tags) == {"dynamic", "table1", "uniform", "fixed", "quick", "mine"}

    # The best and the last test accuracy, how the run ended, and one number as the metric of a sweep.
    ended = summary(found)
    assert (ended["status"], ended["parameters"]) == ("finished", 7)
    best = {"max": 62.5, "last": 61.25}
    name = "test/accuracy_percent"
    assert ended.get(name, {k: ended.get(f"{name}.{k}") for k in best}) == best
    assert ended["validation/accuracy_percent"] == 60.0
    assert ended["comm/wire_bytes"] == 6_000_000
    assert [r.exit.exit_code for r in found if r.HasField("exit")] == [0]

    # The record and the policy's trace are artifacts.
    logged = artifacts(found)
    texts = {"config.yaml", "environment.json", "summary.json", "policy.csv"}
    assert logged["run"] == texts | {"metrics.jsonl", "steps.jsonl"}
    assert logged["run_table"] == {"policy/trace.table.json"}
    (path,) = folder.rglob("trace_*.table.json")
    table = json.loads(path.read_text())
    assert table["columns"] == ["epoch", "rung", "next_rung", "label"]
    assert table["data"] == [[1, 0, 1, "bits=8"], [2, 1, 1, "bits=8"]]

    # All of it but wandb's debug logs lies in the run folder, nothing is printed, and the key is nowhere.
    kept = (folder, tmp_path / "home" / ".cache" / "wandb" / "logs")
    assert [p for p in tmp_path.rglob("*") if p.is_file() and not set(kept) & set(p.parents)] == []
    said = capfd.readouterr()
    assert (said.out, said.err) == ("", "")
    monkeypatch.setattr(
        native, "library", lambda: None
    )  # would be compiled: this home has no cache
    assert key not in json.dumps(describe(torch.device("cpu"), "simulated", 2, "digits"))
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert offline_file(folder) in files
    assert [path for path in files if key.encode() in path.read_bytes()] == []


def test_a_run_that_did_not_finish_is_marked_as_failed_and_one_without_steps_has_epochs(
    folder: Path,
) -> None:
    found = mirror(folder, Wandb(every_steps=0), last_epoch=2)
    assert [r.exit.exit_code for r in found if r.HasField("exit")] == [1]
    assert [row["_step"] for row in history(found)] == [20, 40]
    assert artifacts(found) == {}


def test_decisions_are_drawn_by_step_with_factor_gain_branch_and_throughput(folder: Path) -> None:
    bare = replace(run_info(folder), name="mine", config={"seed": 0, "experiment": None})
    sink = Wandb(every_steps=1)
    sink.start(bare)
    for step, branch in enumerate(("dense", "theta_min", "candidate"), start=1):
        decided = {
            "decision/branch": branch,
            "decision/theta_min": 10.0,
            "decision/candidate": 40.0,
            "decision/gain": 0.75,
            "decision/gain_candidate": 0.5,
            "decision/energies": [1.0, 0.75, 0.5],
            "decision/timed_throughput": 96.0,
        }
        sink.step({**step_metrics(step), **decided})  # type: ignore[dict-item]
    sink.close()
    found = records(offline_file(folder))
    run = next(one.run for one in found if one.HasField("run"))
    assert (run.run_group, list(run.tags)) == ("mine", []), "a run outside any experiment"
    rows = history(found)
    assert [row["_step"] for row in rows] == [1, 2, 3]
    assert [row["decision/factor"] for row in rows] == [1.0, 10.0, 40.0]
    assert [row["decision/branch_level"] for row in rows] == [0, 1, 2]
    assert {row["decision/gain"] for row in rows} == {0.75}
    assert {row["decision/timed_throughput"] for row in rows} == {96.0}
    assert "decision/energies" not in rows[0]


def test_the_mirror_of_a_run_that_continues_is_whole_and_the_only_one(tmp_path: Path) -> None:
    parts, whole = tmp_path / "parts" / "run", tmp_path / "whole" / "run"
    record(parts, Wandb(), 1, 1)
    begun = offline_file(parts)
    record(parts, Wandb(), 2, NUM_EPOCHS)
    continued = offline_file(parts)
    assert continued.name == begun.name, "one id"
    expected = mirror(whole, Wandb())
    assert offline_file(whole).name != continued.name, "two folders of one name have two ids"
    found = records(continued)
    assert history(found) == history(expected)


def test_the_last_lines_say_where_offline_copies_are_and_how_to_upload_them(tmp_path: Path) -> None:
    one, two, other = (tmp_path / "runs" / name for name in ("one", "two", "other"))
    for folder in (one, two):
        (folder / "wandb" / "offline-run-1").mkdir(parents=True)
        (folder / "wandb" / "offline-run-1" / "run-1.wandb").touch()
    assert sync_line([other]) is None
    line = sync_line([one, other])
    where = f"{one}/wandb; upload it with: wandb sync {one}/wandb/offline-run-*"
    assert line == f"wandb: the offline copy is in {where}"
    upload = f"upload them with: wandb sync {one.parent}/*/wandb/offline-run-*"
    assert sync_line([one, two, other]).endswith(f"2 runs have offline copies; {upload}")
    offline_file(two).with_name("run-1.wandb.synced").touch()  # as `wandb sync` does
    assert sync_line([one, two]) == line


def test_a_finished_run_is_mirrored_from_its_record_as_it_was_while_it_trained(
    tmp_path: Path,
) -> None:
    live, later = tmp_path / "live" / "run", tmp_path / "later" / "run"
    expected = mirror(live, Wandb())
    ended = record(later, FanOut([]))
    assert not (later / "wandb").exists()
    assert Wandb().upload(run_info(later, start_epoch=NUM_EPOCHS), ended)
    found = records(offline_file(later))
    assert history(found) == history(expected)
    assert summary(found).keys() == summary(expected).keys()
    assert artifacts(found)["run"] == artifacts(expected)["run"]
    # Machine and commit of the moment of the upload are not those of the training.
    assert any(one.HasField("environment") for one in expected)
    assert not any(one.HasField(name) for one in found for name in ("environment", "stats"))


def test_closing_leaves_a_whole_file_no_process_and_nothing_printed(
    tmp_path: Path, repository: Path
) -> None:
    # A fresh process: wandb decides at its first import how much it says. It ends without atexit,
    # as a rank that is killed does, so that only close() can have written the file.
    program = (
        "import os, sys; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path\n"
        "from made_up_run import play, run_info\n"
        "from dgc_repro.sink.wandb import Wandb\n"
        "def children():\n"
        "    return Path(f'/proc/self/task/{os.getpid()}/children').read_text().split()\n"
        "sink = Wandb(); sink.start(run_info(Path('run'))); play(sink)\n"
        "assert children(), 'wandb has a process of its own'\n"
        "sink.finish({'status': 'finished'}); sink.close()\n"
        "assert not children()\n"
        "os._exit(0)\n"
    )
    environment = {k: v for k, v in os.environ.items() if k != "WANDB_SILENT"}
    environment["PYTHONPATH"] = str(repository)
    done = subprocess.run(
        [sys.executable, "-c", program, str(repository / "tests" / "sink")],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert any(record.HasField("exit") for record in records(offline_file(tmp_path / "run")))


def test_disabled_leaves_no_run(folder: Path) -> None:
    record(folder, Wandb(mode="disabled"))
    assert not list(folder.glob("wandb/*run-*"))


def test_online_needs_a_key_where_wandb_finds_it(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = Wandb(mode="online")
    for refusing in (sink.check, lambda: sink.start(run_info(folder))):
        with pytest.raises(UserError, match="^sink.mode: online needs a wandb key.*mode=offline$"):
            refusing()
    assert not folder.exists()
    for mode in ("offline", "disabled"):
        Wandb(mode=mode).check()
    monkeypatch.setenv("WANDB_API_KEY", "short")
    with pytest.raises(UserError, match="needs a wandb key, WANDB_API_KEY invalid"):
        sink.check()
    monkeypatch.delenv("WANDB_API_KEY")
    path = tmp_path / "home" / ".netrc"
    path.write_text(f"machine api.wandb.ai\n  login user\n  password {KEY}\n")
    path.chmod(0o600)
    sink.check()


def raising(error: Exception) -> Callable[..., None]:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    return fail


@pytest.mark.parametrize(
    ("mode", "trouble", "said"),
    [
        ("offline", "start", "CommError: no server; the mirror is incomplete, the record in "),
        ("offline", "on the way", "disk full"),
        ("online", "no server", ""),
    ],
)
def test_a_failure_of_the_mirror_is_said_once_and_training_goes_on(
    mode: str, trouble: str, said: str, folder: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    if trouble == "start":
        monkeypatch.setattr(wandb, "init", raising(wandb.errors.CommError("no\nserver")))
    elif trouble == "no server":
        monkeypatch.setenv("WANDB_API_KEY", KEY)
        monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")  # the discard port: refused
        monkeypatch.setenv("WANDB_INIT_TIMEOUT", "3")
    sink = Wandb(mode=mode)
    sink.start(run_info(folder))
    if trouble == "on the way":
        monkeypatch.setattr(wandb.Run, "log", raising(OSError("disk full")))
    play(sink)
    sink.finish({"status": "finished"})
    sink.close()
    printed = capsys.readouterr().err
    (line,) = [line for line in printed.splitlines() if line.startswith("wandb: ")]
    assert said in line
    assert KEY not in printed


def test_a_reproduced_page_is_an_artifact_with_its_table_and_figures(
    tmp_path: Path, folder: Path
) -> None:
    page = tmp_path / "page"
    page.mkdir()
    (page / "table.md").write_text("# A page\n")
    numbers = (
        "artifact,row,quantity,value\npage,dense,accuracy,90.5\npage,topk,bytes,\nother,a,b,1\n"
    )
    (tmp_path / "numbers.csv").write_text(numbers)
    Image.new("RGB", (4, 4)).save(page / "table1.png")
    Wandb().log_page(page, folder, "dynamic-table1-quick", {"runs": ["a", "b"]})
    found = records(offline_file(folder))
    assert artifacts(found)["page"] == {"table.md", "table1.png"}
    run = next(r.run for r in found if r.HasField("run"))
    assert (run.display_name, run.job_type) == ("dynamic-table1-quick", "reproduce")
    assert items(run.config.update)["runs"] == ["a", "b"]
    assert [r.exit.exit_code for r in found if r.HasField("exit")] == [0]
    (row,) = history(found)
    assert (row["table.nrows"], row["table1._type"]) == (2, "image-file")
    copies = [e.local_path for r in found for e in r.artifact.manifest.contents]
    assert all(Path(copy).is_relative_to(folder) for copy in copies), "the page may be made again"


def test_a_missing_wandb_is_one_line_that_names_the_extra(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    line = r"^wandb is not installed; pip install 'dgc_repro\[wandb\]'$"
    for mode in ("offline", "online"):
        with pytest.raises(UserError, match=line):
            Wandb(mode=mode).check()
    with pytest.raises(UserError, match="pip install"):
        Wandb().start(run_info(folder))
    assert not folder.exists()
