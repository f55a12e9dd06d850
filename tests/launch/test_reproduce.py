"""`reproduce` from end to end on runs that the trainer itself has written, small ones."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest
from tiny_run import TINY

from dgc_repro.errors import UserError
from dgc_repro.launch.identity import run_folder
from dgc_repro.launch.new_paper import files
from dgc_repro.launch.paths import _ADDED
from dgc_repro.launch.reproduce import other_seeds, reproduce, runs_of

ROWS = ("none", "static8", "dynamic", "static8_ef", "dynamic_ef")


def test_trained_runs_become_a_table_and_are_not_trained_again(
    trained: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["dynamic/table1", *TINY, "train.epochs=4", "seed=3"]
    reproduce(command)
    assert len(trained) == len(ROWS)
    # Neither the quick scale nor any other: too small to be called by its name.
    published = tmp_path / "reproduced" / "dynamic" / "custom" / "table1"
    printed = capsys.readouterr().out
    assert "claims:" in printed
    assert "[1/5] dynamic/table1 none, seed 3\n" in printed
    assert re.search(r"\[4/5\] dynamic/table1 static8_ef, seed 3, about \d+ s left\n", printed)
    assert str(published.relative_to(tmp_path)) in printed

    with (published.parent / "numbers.csv").open(newline="") as file:
        lines = [line for line in csv.DictReader(file) if line["quantity"] == "test accuracy"]
    assert [line["row"] for line in lines] == list(ROWS)
    for line, folder in zip(lines, trained, strict=True):
        summary = json.loads((folder / "summary.json").read_text())
        assert float(line["mean"]) == pytest.approx(summary["test/accuracy_percent"], rel=1e-9)
        assert (line["n"], line["scale"]) == ("1", "custom")
    record = json.loads((published.parent / "verdicts.json").read_text())["table1"]
    assert record["runs"] == [folder.name for folder in trained]
    words = {"indicative (+)", "indicative (-)", "not tested", "cannot follow"}
    assert {v["verdict"] for v in record["verdicts"]} <= words
    for stem in ("table1", "policy"):
        assert (published / f"{stem}.png").stat().st_size > 0

    reproduce(command)
    assert len(trained) == len(ROWS)
    assert " left\n" not in capsys.readouterr().out


def test_the_lectures_row_is_trained_on_text_and_published(
    trained: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ("train.epochs=2", "model.width=8", "dataset.bptt=20", "launch.device=cpu")
    reproduce(["lecture/ptb", "launch=simulated", "launch.threads=1", "sink=none", *small])
    assert len(trained) == 2
    published = tmp_path / "reproduced" / "lecture" / "custom" / "ptb"
    printed = capsys.readouterr().out
    assert "\n2 workers (launch=simulated), scale=custom: dataset=descriptions" in printed
    with (published.parent / "numbers.csv").open(newline="") as file:
        lines = {(line["row"], line["quantity"]): line for line in csv.DictReader(file)}
    for row, folder in zip(("dense", "dgc"), trained, strict=True):
        summary = json.loads((folder / "summary.json").read_text())
        ours = float(lines[row, "test perplexity"]["mean"])
        assert ours == pytest.approx(summary["test/perplexity"], rel=1e-9)
    assert float(lines["dgc", "ratio of payload"]["mean"]) > 1
    environment = json.loads((trained[0] / "environment.json").read_text())
    assert environment["data"].startswith("scikit-learn's descriptions (embedded, sha256 ")


def test_a_page_keeps_the_seeds_that_are_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    jobs = runs_of("dynamic/table1", TINY)
    later = runs_of("dynamic/table1", [*TINY, "seed=[12,1]"])
    other = runs_of("dynamic/table1", [*TINY, "seed=1", "optimizer.lr=0.2"])
    for config, _ in (*jobs, *later, *other):
        folder = run_folder(config)
        folder.mkdir(parents=True)
        (folder / "summary.json").write_text('{"status": "finished", "results_version": 1}')
    (run_folder(later[0][0]) / "summary.json").write_text('{"status": "stopped"}')
    found = {run_folder(config).name for config, _ in other_seeds(jobs)}
    assert found == {run_folder(config).name for config, _ in later[1:]}
    assert other_seeds(runs_of("dynamic/table1", [*TINY, "scale.seeds=[0]"])) == []


@pytest.mark.parametrize(
    ("file", "right", "wrong", "message"),
    [
        (
            "table1.py",
            'Check("test accuracy"',
            'Check("test acc"',
            "claim 1: no quantity 'test acc'",
        ),
        (
            "conf/paper/{paper}.yaml",
            "row: topk",
            "row: random",
            "experiment.row: no row in ROWS 'random'; there are: dense, topk",
        ),
        ("table1.py", "dense   92.96", "dense 92.96 1", "rows: 'dense' has 2 of 1 numbers"),
    ],
)
def test_a_mistake_in_a_paper_is_said_before_anything_is_trained(
    file: str,
    right: str,
    wrong: str,
    message: str,
    trained: list[Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("dgc_repro.launch.paths._ADDED", list(_ADDED))
    paper = f"slip{abs(hash((file, wrong)))}"  # a module of its own
    for name, text in files(paper, "table1").items():
        place = tmp_path / paper / name
        place.parent.mkdir(parents=True, exist_ok=True)
        if name == file.format(paper=paper):
            assert right in text
            text = text.replace(right, wrong)
        place.write_text(text)
    with pytest.raises(UserError, match=message):
        reproduce([f"{paper}/table1", *TINY, "train.epochs=1"])
    assert trained == []
