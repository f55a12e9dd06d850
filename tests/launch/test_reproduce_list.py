"""``reproduce list=<file>``: what is missing of a list is trained in order, and published as it finishes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from commands import PATIENCE_SECONDS, Command, wait_for
from ranks import processes_of
from tiny_run import TINY

from dgc_repro.launch import paths
from dgc_repro.launch import reproduce as reproducing
from dgc_repro.launch import run as running
from dgc_repro.launch.environment import RUNS_AT_ONCE, threads_of_worker
from dgc_repro.launch.main import answer
from dgc_repro.launch.new_paper import files
from dgc_repro.launch.ranks import RunFailed, held
from dgc_repro.launch.reproduce import reproduce
from dgc_repro.launch.run import check_rows
from dgc_repro.launch.worker import read_config
from dgc_repro.paper.publish import published, run_ids
from dgc_repro.train.run import Run

PAPER = "queued/table1"
TABLE1 = " ".join([PAPER, *TINY])
Reproduce = Callable[..., tuple[int, list[str], list[str]]]


def write(*entries: dict[str, Any]) -> None:
    """A list of these entries, each expected to take an hour a run."""
    text = yaml.safe_dump({"queue": [{"minutes": 60, **entry} for entry in entries]})
    Path("queue.yaml").write_text(text)


@pytest.fixture
def paper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A paper of the user's with the rows dense and topk, beside the list."""
    monkeypatch.setattr(paths, "_ADDED", [])
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("queued", "queued.table1"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    for name, text in files(*PAPER.split("/")).items():
        place = tmp_path / "queued" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)


@pytest.fixture
def run(
    paper: None, trained: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Reproduce:  # fmt: skip
    """Runs the command on a list: exit code, lines on stdout and on stderr. A run takes 6 core-minutes."""
    monkeypatch.setattr(Run, "cpu_seconds", 360.0)
    monkeypatch.setattr(reproducing, "code_has_changed", bool)
    monkeypatch.setattr(running, "warning", lambda *_: None)
    monkeypatch.setattr(os, "nice", lambda increment: increment)
    monkeypatch.setenv(RUNS_AT_ONCE, "1")

    queue = Path("queue.yaml").absolute()

    def command(*arguments: str) -> tuple[int, list[str], list[str]]:
        code = answer(lambda: reproduce([f"list={queue}", *arguments]))
        said = capsys.readouterr()
        return code, said.out.splitlines(), said.err.splitlines()

    return command


def names(folders: list[Path]) -> list[tuple[str, int]]:
    """Row and seed of each run that was trained since the last call."""
    configs = [read_config(folder) for folder in folders]
    folders.clear()
    return [(config["experiment"]["row"], config["seed"]) for config in configs]


def page() -> list[str]:
    """The runs of the published page, each as ``<row>-custom-s<seed>``."""
    runs = run_ids(Path("results", "queued", "custom", "table1"))
    return sorted(run.removeprefix("queued-table1-").rpartition("-")[0] for run in runs)


def test_runs_are_trained_once_in_the_order_of_the_list_dense_first(
    run: Reproduce, trained: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def backwards(arguments: list[str]) -> Any:
        asked = prepared(arguments)
        return replace(asked, jobs=asked.jobs[::-1])

    priorities: list[int] = []
    prepared = reproducing.prepared
    monkeypatch.setattr(reproducing, "prepared", backwards)
    monkeypatch.setattr(os, "nice", priorities.append)
    first = {"run": TABLE1, "rows": ["topk"], "why": "first of all"}
    write(first, {"run": f'{TABLE1} "seed=[0,1]"'})
    code, lines, errors = run()
    assert (code, errors) == (0, [])
    assert names(trained) == [("topk", 0), ("dense", 1), ("topk", 1), ("dense", 0)]
    assert lines == [
        "4 of 4 runs to train, 4.0 core-hours left",
        f"[1/4] {PAPER} topk, seed 0: 6.0 core-minutes; 3.0 core-hours left",
        f"[2/4] {PAPER} dense, seed 1: 6.0 core-minutes; 0.2 core-hours left",
        f"[3/4] {PAPER} topk, seed 1: 6.0 core-minutes; 0.1 core-hours left",
        f"[4/4] {PAPER} dense, seed 0: 6.0 core-minutes; 0.0 core-hours left",
    ]
    assert priorities == [10]
    assert threads_of_worker({"workers": 1, "threads": None}) == 1

    # A third seed: the two that are finished say how long it takes.
    write({"run": f'{TABLE1} "seed=[0,1,2]"'})
    code, lines, _ = run("plan=true")
    assert code == 0
    assert lines[0].strip() == "0.2 core-hours left"
    assert lines[-2].split() == ["1", PAPER, "custom", "6", "4", "2", "6.0", "measured", "0.2"]
    assert names(trained) == []


def test_what_is_finished_is_published_again_and_again(run: Reproduce, trained: list[Path]) -> None:
    what = f"{PAPER} scale=custom"
    write({"run": f"{TABLE1} seed=7", "rows": ["topk"]})
    assert run("publish=true") == (0, [f"{what}: no finished run yet"], [])
    run()
    assert run("publish=true")[:2] == (0, [f"{what}: no finished dense run yet, not published"])
    assert not Path("results/queued/custom").exists()

    write({"run": f"{TABLE1} seed=7"})
    run()
    code, lines, _ = run("publish=true")
    assert (code, lines) == (0, [f"{what}: 2 runs, published in results/queued/custom/table1"])
    assert page() == ["dense-custom-s7", "topk-custom-s7"]
    assert Path("results/README.md").is_file()
    assert run("publish=true")[1] == [f"{what}: 2 runs, published already"]

    # On another machine the published runs are as good, whatever their seeds.
    shutil.rmtree("runs")
    trained.clear()
    before = published(Path("results"), "queued", "custom")
    eighth = {"run": f"{TABLE1} seed=8", "rows": ["dense"]}
    write({"run": f'{TABLE1} "seed=[7,0]"'}, eighth)
    run()
    assert names(trained) == [("dense", 0), ("topk", 0), ("dense", 8)]
    write({"run": f"{TABLE1} seed=0"})  # the other seeds are in no entry any more
    code, lines, _ = run("publish=true")
    assert (code, lines) == (0, [f"{what}: 5 runs, published in results/queued/custom/table1"])
    rows = [f"{row}-custom-s{seed}" for row in ("dense", "topk") for seed in (0, 7)]
    assert page() == sorted([*rows, "dense-custom-s8"])
    after = published(Path("results"), "queued", "custom")
    for name, old in before.items():
        assert (after[name].config, after[name].summary) == (old.config, old.summary)


def test_a_page_that_cannot_be_made_does_not_stop_the_others(
    run: Reproduce, monkeypatch: pytest.MonkeyPatch
) -> None:
    write({"run": TABLE1})
    run()

    def refuse(*_: object) -> None:
        raise reproducing.UserError("train.epochs: the same in every run")

    monkeypatch.setattr(reproducing.Reproduction, "publish", refuse)
    what = f"{PAPER} scale=custom"
    said = f"{what}: not published: train.epochs: the same in every run"
    assert run("publish=true") == (1, [said], [f"error: not published: {what}"])


def test_a_run_that_fails_is_named_and_one_of_another_process_is_left_to_it(
    run: Reproduce, trained: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where both processes begin at once: the folder is not taken for a mistake's."""
    train = running.execute

    def fail(config: dict[str, Any], folder: Path, **_: Any) -> None:
        if config["seed"] == 2:
            with held(folder), held(folder):
                pass
        if config["experiment"]["row"] == "dense":
            raise RunFailed("rank 0 was killed by SIGSEGV")
        train(config, folder)

    monkeypatch.setattr(running, "execute", fail)
    monkeypatch.setattr(running, "warning", lambda *_: "the run diverged")
    third = {"run": f"{TABLE1} seed=2", "rows": ["dense"]}
    write({"run": f'{TABLE1} "seed=[0,1]"'}, third)
    code, lines, errors = run()
    assert code == 1
    assert names(trained) == [("topk", 0), ("topk", 1)]
    assert lines[1].startswith(f"[1/5] {PAPER} dense, seed 0: failed: rank 0 was killed by")
    assert "topk, seed 0: 6.0 core-minutes (warning: the run diverged); " in lines[2]
    assert f"[5/5] {PAPER} dense, seed 2: another process trains it; " in lines[5]
    assert len(list(Path("runs").glob("queued-table1-dense-custom-s2-*"))) == 1
    (error,) = errors
    assert error.startswith("error: 2 of 5 runs failed: queued-table1-dense-custom-s0-")
    assert error.endswith("; the same command tries them again")
    monkeypatch.setattr(running, "execute", train)
    assert run()[0] == 0
    assert names(trained) == [("dense", 0), ("dense", 1), ("dense", 2)]


def test_a_cpu_that_emulates_bf16_is_named_before_the_first_run(
    run: Reproduce, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": False}, raising=False)
    first, later = {"run": TABLE1}, {"run": f"{TABLE1} train.precision=bf16"}
    write(*(entry | {"rows": ["topk"]} for entry in (first, later)))
    code, lines, _ = run()
    assert code == 0
    says = "train.precision: this CPU computes no bfloat16 itself"
    assert [line for line in lines if says in line] == [lines[0]]
    records = [path.read_text() for path in Path("runs").glob("*/metrics.jsonl")]
    assert [says in text for text in records].count(True) == 1


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"run": "dynamic/tabel1"}, "entry 1 (dynamic/tabel1): reproduce: no artifact"),
        ({"run": f"{TABLE1} train.epoch=3"}, "did you mean train.epochs?"),
        (
            {"run": f"{TABLE1} 'seed=1"},
            "run: No closing quotation; close the quotes, or leave them",
        ),
        ({"run": f"{TABLE1} share=1/2"}, "share: not for an entry; leave it out"),
        ({"run": f"{TABLE1} launch=local"}, "launch: a list has one core; add launch=simulated"),
        ({"run": f"{TABLE1} launch.threads=2"}, "launch: a list has one core"),
        ({"run": "gravac/table1"}, "run: gravac/table1 is not trained; make it with reproduce"),
        ({"run": TABLE1, "rows": ["dence"]}, "rows: no row 'dence'; did you mean dense?"),
        ({"run": TABLE1, "minute": 3}, "entry 1.minute: no such key; did you mean minutes?"),
    ],
)
def test_a_mistake_in_the_list_names_its_entry_before_anything_is_trained(
    entry: dict[str, Any], message: str, run: Reproduce, trained: list[Path]
) -> None:
    write(entry)
    code, _, errors = run()
    assert (code, len(errors)) == (2, 1), errors
    assert errors[0].startswith(f"error: {Path('queue.yaml').absolute()}, entry 1")
    assert message in errors[0]
    assert trained == []


def test_a_row_that_an_entry_leaves_out_may_need_more_than_one_core(
    run: Reproduce, trained: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_local_topk(arguments: list[str]) -> Any:
        asked = prepared(arguments)
        for job in asked.jobs:
            if job.row == "topk":
                job.config["launch"]["kind"] = "local"
        return asked

    prepared = reproducing.prepared
    monkeypatch.setattr(reproducing, "prepared", with_local_topk)
    write({"run": TABLE1, "rows": ["dense"]})
    assert run()[0] == 0
    assert {row for row, _ in names(trained)} == {"dense"}


def test_mistakes_of_the_command_are_one_line(run: Reproduce) -> None:
    assert "has no list `queue:`" in run()[2][0]  # no file
    Path("queue.yaml").write_text("- run: dynamic/table1")
    assert "has no list `queue:`" in run()[2][0]
    write()
    for argument, message in (
        ("seed=1", "seed: no such key; there are"),
        ("plan=yes", "plan: true or false, got 'yes'"),
        ("dynamic/table1", "list: its file names the artifacts; leave dynamic/table1 out"),
    ):
        code, _, errors = run(argument)
        assert (code, len(errors)) == (2, 1)
        assert errors[0].startswith(f"error: {message}")
    assert run("plan=true", "publish=true")[0] == 2


@pytest.mark.slow  # the list has 900 runs, each composed and checked
def test_the_committed_list_is_valid() -> None:
    parts = reproducing.read_list("queue", [])
    assert all(part.jobs for part in parts), "an entry whose runs are all in entries before it"
    check_rows(job for part in parts for job in part.jobs.values())


@pytest.mark.slow
@pytest.mark.timeout(6 * PATIENCE_SECONDS)
def test_a_list_continues_after_a_kill_and_after_a_stop(
    paper: None, commands: Callable[..., Command]
) -> None:
    sizes = "dataset.train_size=640 train.epochs=4 sink.every_steps=1"
    write({"run": f'{TABLE1} {sizes} "seed=[0,1]"', "rows": ["dense"]})
    command = commands("reproduce", f"list={Path('queue.yaml').absolute()}")
    command.start()
    command.wait_for_step(50)
    os.kill(command.process.pid, signal.SIGKILL)
    command.process.communicate(timeout=PATIENCE_SECONDS)
    wait_for(lambda: processes_of(command.runs) == {}, "the worker to end")
    (first,) = command.runs.iterdir()
    command.start()
    wait_for(lambda: len(list(command.runs.iterdir())) == 2, "the second run")
    (second,) = set(command.runs.iterdir()) - {first}
    wait_for((second / "steps.jsonl").is_file, "its first step")
    command.process.send_signal(signal.SIGTERM)
    code, errors = command.end()
    assert (code, errors[-1].partition("; ")[2]) == (143, "the same command continues")
    assert "seed 1" not in command.printed()
    command.start()
    assert command.end()[0] == 0
    assert "\n[1/2]" not in command.printed()  # it was finished before
    assert f"[2/2] {PAPER} dense, seed 1: " in command.printed()
    for folder in (first, second):
        texts = (folder / "steps.jsonl").read_text().splitlines()
        assert [json.loads(text)["step"] for text in texts] == list(range(1, 81))
        assert "continuing at step" in (folder / "metrics.jsonl").read_text()
        assert json.loads((folder / "summary.json").read_text())["time/cpu_seconds"] > 0


@pytest.mark.usefixtures("paper", "trained")
def test_reproduce_keeps_seeds_that_are_published_only(capsys: pytest.CaptureFixture[str]) -> None:
    sized = [*TABLE1.split(), "publish=true", "published=true"]
    reproduce([*sized, "seed=5"])
    shutil.rmtree("runs")
    reproduce([*sized, "seed=0"])
    assert "the page has finished seeds [5] too" in capsys.readouterr().out
    assert {run.rpartition("-")[2] for run in page()} == {"s0", "s5"}
