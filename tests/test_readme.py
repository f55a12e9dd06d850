"""README.md says what the published pages say; tests/test_findings.py compares its numbers with the pools."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest
from shell import program
from test_docs import blocks

REPOSITORY = Path(__file__).resolve().parent.parent
README = REPOSITORY / "README.md"
LOOP = """
import torch, torch.distributed as dist, torch.nn as nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo", init_method="tcp://127.0.0.1:0", rank=0, world_size=1)
model, checkpoint = DistributedDataParallel(nn.Linear(600, 10)), {{}}
optimizer, loss = torch.optim.SGD(model.parameters(), lr=0.1), nn.functional.cross_entropy
loader = [(torch.randn(8, 600), torch.randint(10, (8,))) for _ in range(2)]
{code}
print(sorted(checkpoint["exchange"]))
"""
"""What the README's lines are put into."""


def test_the_first_screen_has_the_figure_and_one_table_of_five_to_seven_rows() -> None:
    head = README.read_text(encoding="utf-8").partition("\n## Install")[0]
    (figure,) = re.findall(r"^!\[[^]]+\]\(([^)]+)\)$", head, re.MULTILINE)
    assert (REPOSITORY / figure).is_file()
    rows = [line for line in head.splitlines() if line.startswith("| ")]
    assert rows[0].count("|") == 7
    assert 5 <= len(rows) - 1 <= 7
    results = (REPOSITORY / "results" / "README.md").read_text(encoding="utf-8")
    assert [line for line in results.splitlines() if line.startswith("| ")][: len(rows)] == rows


def test_the_readme_is_read_in_minutes() -> None:
    text = README.read_text(encoding="utf-8")
    assert len(text.splitlines()) < 170
    prose = re.sub(r"```.*?```|<!--.*?-->|^\|.*$", "", text, flags=re.M | re.S)
    assert len(prose.split()) < 700


@pytest.mark.slow
def test_the_lines_of_the_readme_train_a_model() -> None:
    (code,) = blocks(README, "python")
    assert "'ledger'" in program(LOOP.format(code=code))


def test_the_readme_says_how_table_1_was_trained() -> None:
    """Seeds, and the payload of uncompressed training, of the table under "Reproduce a paper"."""
    text = " ".join(README.read_text(encoding="utf-8").split())
    for scale, model, said in (
        ("air", "Air, 0.375 M parameters", "a network of 0.37 M parameters trains for 8 epochs"),
        ("medium", "18-layer ResNet, width 16", "an 18-layer ResNet of width 16 for 30 epochs"),
    ):
        folder = REPOSITORY / "results" / "dynamic" / scale
        table = pd.read_csv(folder / "numbers.csv")
        own = table[(table["artifact"] == "table1") & (table["quantity"] == "test accuracy")]
        (seeds,) = re.findall(rf"here, `{scale}`, n = (\d+)", text)
        assert set(own["n"]) == {int(seeds)}
        assert model in (folder / "table1" / "table.md").read_text(encoding="utf-8")
        assert said in text
