"""The mirror: real offline runs read back, and failures that must not reach the training."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import wandb
from made_up_run import NUM_EPOCHS, STEPS_PER_EPOCH, epoch_record, play, run_info, step_metrics
from wandb.sdk.lib.wbauth import unauthenticate_session
from wandb_file import items, records

from dgc_repro.errors import UserError
from dgc_repro.launch.environment import describe
from dgc_repro.sink.wandb import Wandb

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
    return tmp_path / "dynamic table1-static8_ef"


def offline_file(folder: Path) -> Path:
    """The one offline run below ``folder``."""
    (found,) = (folder / "wandb").glob("offline-run-*/*.wandb")
    return found


def mirror(folder: Path, sink: Wandb, status: str = "finished") -> list[Any]:
    """Play a whole run into ``sink`` and read it back."""
    sink.start(run_info(folder))
    play(sink)
    sink.note("something to know")
    sink.finish({"status": status, "steps": 60})
    sink.close()
    return records(offline_file(folder))


def test_an_offline_run_holds_the_whole_run_under_its_labels_and_no_key(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    key = "5f0c" * 10
    monkeypatch.setenv("WANDB_API_KEY", key)
    found = mirror(folder, Wandb(tags=["mine"]))

    history = [items(r.history.item) for r in found if r.HasField("history")]
    epochs = [line for line in history if "test/accuracy_percent" in line]
    steps = [line for line in history if "test/accuracy_percent" not in line]
    assert [line["step"] for line in steps] == [10, 20, 30, 40, 50, 60], "every tenth step"
    assert steps[0]["train/loss"] == step_metrics(10)["train/loss"]
    assert len(epochs) == NUM_EPOCHS
    for epoch, line in enumerate(epochs, start=1):
        assert {key: line[key] for key in epoch_record(epoch)} == epoch_record(epoch)

    # It can be grouped by paper, artifact, compressor, policy and seed.
    run = next(r.run for r in found if r.HasField("run"))
    config = items(run.config.update)
    assert config["labels"] == {
        "paper": "dynamic",
        "artifact": "table1",
        "row": "static8_ef",
        "compressor": "uniform",
        "wrap": "error_feedback",
        "policy": "fixed",
        "scale": "quick",
    }
    assert (config["seed"], config["environment"]) == (3, {"hardware": "synthetic"})
    assert (run.run_group, run.job_type) == ("dynamic/table1/quick", "static8_ef")
    assert run.display_name == "dynamic-table1-static8_ef-seed3"
    assert set(run.tags) == {*config["labels"].values(), "mine"}
    assert run.run_id.startswith("dynamic-table1-static8_ef-")

    # The axes are steps for training and epochs for all else.
    metrics = [r.metric for r in found if r.HasField("metric")]
    axis = {metric.name or metric.glob_name: metric.step_metric for metric in metrics}
    assert axis["train/*"] == axis["policy/rung"] == axis["comm/payload_bytes"] == "step"
    assert axis["*"] == axis["test/accuracy_percent"] == "epoch"

    # The summary has the best and the last test accuracy, and how the run ended.
    summary: dict[str, Any] = {}
    for record in found:
        if record.HasField("summary"):
            summary |= items(record.summary.update)
    assert summary["run"]["status"] == "finished"
    best = {k: v for k, v in summary.items() if k.startswith("test/accuracy_percent")}
    assert best == {"test/accuracy_percent": {"max": 62.5, "last": 61.25}} or best == {
        "test/accuracy_percent.max": 62.5,
        "test/accuracy_percent.last": 61.25,
    }
    assert [r.exit.exit_code for r in found if r.HasField("exit")] == [0]

    # All of it lies in the run folder, nothing is printed, and the key is nowhere.
    assert not (tmp_path / "wandb").exists()
    said = capfd.readouterr()
    assert (said.out, said.err) == ("", "")
    assert key not in json.dumps(describe(torch.device("cpu"), "simulated", 2, "digits"))
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert offline_file(folder) in files
    assert [path for path in files if key.encode() in path.read_bytes()] == []


def test_a_run_that_did_not_finish_is_marked_as_failed_and_one_without_steps_has_epochs(
    folder: Path,
) -> None:
    found = mirror(folder, Wandb(every_steps=0), "interrupted")
    assert [r.exit.exit_code for r in found if r.HasField("exit")] == [1]
    assert sum(record.HasField("history") for record in found) == NUM_EPOCHS


def test_decisions_are_drawn_by_step_with_factor_gain_branch_and_throughput(folder: Path) -> None:
    sink = Wandb(every_steps=1)
    sink.start(run_info(folder))
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
    history = [items(r.history.item) for r in found if r.HasField("history")]
    assert [line["decision/factor"] for line in history] == [1.0, 10.0, 40.0]
    assert [line["decision/branch_level"] for line in history] == [0, 1, 2]
    assert {line["decision/gain"] for line in history} == {0.75}
    assert {line["decision/timed_throughput"] for line in history} == {96.0}
    assert "decision/energies" not in history[0]
    axes = [r.metric for r in found if r.HasField("metric")]
    assert {m.step_metric for m in axes if (m.name or m.glob_name) == "decision/*"} == {"step"}


def test_a_resumed_run_goes_on_under_its_id(folder: Path) -> None:
    for start_epoch in (0, 1):
        sink = Wandb()
        sink.start(run_info(folder, start_epoch=start_epoch))
        play(sink, start_epoch + 1, start_epoch + 1)
        sink.close()
    files = list((folder / "wandb").glob("*run-*/*.wandb"))
    assert len({file.name for file in files}) == 1


def test_two_folders_of_one_name_have_two_ids(tmp_path: Path) -> None:
    ids = []
    for place in ("here", "there"):
        sink = Wandb()
        sink.start(run_info(tmp_path / place / "run"))
        sink.close()
        ids.append(offline_file(tmp_path / place / "run").name)
    assert ids[0] != ids[1]


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
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert any(record.HasField("exit") for record in records(offline_file(tmp_path / "run")))


def test_disabled_leaves_no_run(folder: Path) -> None:
    sink = Wandb(mode="disabled")
    sink.start(run_info(folder))
    play(sink)
    sink.close()
    assert not list(folder.glob("wandb/*run-*"))


def test_online_without_a_key_is_one_line_before_anything_starts(folder: Path) -> None:
    sink = Wandb(mode="online")
    with pytest.raises(UserError, match="^sink.mode: online needs a wandb key.*mode=offline$"):
        sink.check()
    with pytest.raises(UserError, match="^sink.mode: "):
        sink.start(run_info(folder))
    assert not folder.exists()
    for mode in ("offline", "disabled"):
        Wandb(mode=mode).check()


def test_a_key_is_found_where_wandb_finds_it_and_one_that_cannot_be_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "short")
    with pytest.raises(
        UserError, match="^sink.mode: online needs a wandb key, WANDB_API_KEY invalid"
    ):
        Wandb(mode="online").check()
    monkeypatch.delenv("WANDB_API_KEY")
    path = tmp_path / "home" / ".netrc"
    path.write_text(f"machine api.wandb.ai\n  login user\n  password {KEY}\n")
    path.chmod(0o600)
    Wandb(mode="online").check()


def raising(error: Exception) -> Callable[..., None]:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    return fail


@pytest.mark.parametrize(
    ("mode", "trouble", "said"),
    [
        ("offline", "start", "CommError: no server; training goes on without the mirror"),
        ("offline", "on the way", "disk full"),
        ("online", "no server", ""),
    ],
)
def test_a_failure_of_the_mirror_is_said_once_and_training_goes_on(
    mode: str,
    trouble: str,
    said: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if trouble == "start":
        monkeypatch.setattr(wandb, "init", raising(wandb.errors.CommError("no\nserver")))
    elif trouble == "no server":
        monkeypatch.setenv("WANDB_API_KEY", KEY)
        monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")  # the discard port: refused
        monkeypatch.setattr("dgc_repro.sink.wandb.INIT_TIMEOUT_SECONDS", 3.0)
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


def test_a_run_outside_any_experiment_is_mirrored_too(folder: Path) -> None:
    run = run_info(folder)
    bare = type(run)(folder, "mine", {"seed": 0, "experiment": None}, {}, STEPS_PER_EPOCH, 1)
    sink = Wandb()
    sink.start(bare)
    sink.close()
    (found,) = [r.run for r in records(offline_file(folder)) if r.HasField("run")][:1]
    assert (found.run_group, list(found.tags)) == ("", [])
