"""`reproduce` from end to end on runs that the trainer itself has written, small ones."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from tiny_run import TINY

from dgc_repro.launch.reproduce import reproduce

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
    assert str(published.relative_to(tmp_path)) in printed

    with (published / "table.csv").open(newline="") as file:
        lines = [line for line in csv.DictReader(file) if line["quantity"] == "test accuracy"]
    assert [line["row"] for line in lines] == list(ROWS)
    for line, folder in zip(lines, trained, strict=True):
        summary = json.loads((folder / "summary.json").read_text())
        assert float(line["mean"]) == pytest.approx(summary["test/accuracy_percent"], rel=1e-9)
        assert (line["n"], line["scale"]) == ("1", "custom")
    record = json.loads((published / "verdicts.json").read_text())
    assert record["runs"] == [folder.name for folder in trained]
    words = {"indicative (+)", "indicative (-)", "not tested", "cannot follow"}
    assert {v["verdict"] for v in record["verdicts"]} <= words
    for stem in ("table1", "policy"):
        assert (published / f"{stem}.png").stat().st_size > 0

    reproduce(command)
    assert len(trained) == len(ROWS)


def test_the_lectures_row_is_trained_on_text_and_published(
    trained: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ("train.epochs=2", "model.width=8", "dataset.bptt=20", "launch.device=cpu")
    reproduce(["lecture/ptb", "launch=simulated", "launch.threads=1", "sink=none", *small])
    assert len(trained) == 2
    published = tmp_path / "reproduced" / "lecture" / "custom" / "ptb"
    printed = capsys.readouterr().out
    assert "\n2 workers (launch=simulated), scale=custom: dataset=descriptions" in printed
    with (published / "table.csv").open(newline="") as file:
        lines = {(line["row"], line["quantity"]): line for line in csv.DictReader(file)}
    for row, folder in zip(("dense", "dgc"), trained, strict=True):
        summary = json.loads((folder / "summary.json").read_text())
        ours = float(lines[row, "test perplexity"]["mean"])
        assert ours == pytest.approx(summary["test/perplexity"], rel=1e-9)
    assert float(lines["dgc", "ratio of payload"]["mean"]) > 1
    environment = json.loads((trained[0] / "environment.json").read_text())
    assert environment["data"].startswith("scikit-learn's descriptions (embedded, sha256 ")
