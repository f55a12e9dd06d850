"""GraVAC's Table I: counted from the built models, beside what is printed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from torch import nn

from dgc_repro.launch.reproduce import reproduce
from dgc_repro.launch.study_inputs import layers_of
from dgc_repro.paper import gravac_table1 as paper
from dgc_repro.report import gravac_table1
from dgc_repro.report.__main__ import main
from dgc_repro.report.publish import rebuild
from dgc_repro.study.given import Tensors
from dgc_repro.study.models import Models

# papers.md, section B, the table of models, written out once more.
PRINTED = {"resnet101": (101, 170), "vgg16": (16, 528), "lstm": (2, 252)}


def test_the_printed_numbers_are_those_of_the_paper() -> None:
    assert {row.id: row.cells for row in paper.TABLE_1.rows} == PRINTED
    assert paper.TARGETS["lstm"] == "22.0 perplexity"
    assert paper.DATA["vgg16"] == "CIFAR-100"


def test_a_shortcut_is_no_layer_and_a_recurrent_network_counts_its_own() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.fc = nn.Conv2d(1, 1, 1), nn.Linear(1, 1)
            self.downsample = nn.Sequential(nn.Conv2d(1, 1, 1), nn.BatchNorm2d(1))

    assert layers_of(Block()) == 2
    assert layers_of(nn.Sequential(nn.Embedding(3, 2), nn.LSTM(2, 2, 3), nn.Linear(2, 3))) == 3


def test_a_row_is_the_sum_over_tensors() -> None:
    (row,) = Models().run(0, Tensors("x", (2**18, 2**18), 7))
    assert row == {"layers": 7, "tensors": 2, "parameters": 2**19, "mib": 2.0}


def test_a_model_that_is_built_otherwise_differs() -> None:
    found = {
        model: {"row": model, "layers": layers, "mib": mb + 0.2}
        for model, (layers, mb) in PRINTED.items()
    }
    words = {c.id: v.word for c, v in gravac_table1.judged(
        paper.CLAIMS, gravac_table1.values(found), "quick")}  # fmt: skip
    assert set(words.values()) == {"by construction"}
    found["vgg16"]["mib"] = 60.0
    found["lstm"]["layers"] = 3
    words = {c.id: v.word for c, v in gravac_table1.judged(
        paper.CLAIMS, gravac_table1.values(found), "quick")}  # fmt: skip
    assert words == {"resnet101": "by construction", "vgg16": "differs", "lstm": "differs"}
    del found["resnet101"]
    words = {c.id: v.word for c, v in gravac_table1.judged(
        paper.CLAIMS, gravac_table1.values(found), "quick")}  # fmt: skip
    assert words["resnet101"] == "not run"


def test_the_built_models_have_the_printed_sizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    reproduce(["gravac/table1"])
    published = tmp_path / "reproduced" / "gravac" / "table1" / "quick"
    verdicts = json.loads((published / "verdicts.json").read_text())
    assert {v["verdict"] for v in verdicts} == {"by construction"}
    text = (published / "table.md").read_text()
    for size in ("44,549,160", "138,365,992", "138,357,544", "66,034,000", "51,034,000"):
        assert size in text
    before = {p.name: p.read_bytes() for p in published.iterdir() if p.is_file()}
    rebuild(published)
    assert {p.name: p.read_bytes() for p in published.iterdir() if p.is_file()} == before
    capsys.readouterr()
    assert main([str(published)]) == 0
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 100
    assert "…" not in printed
