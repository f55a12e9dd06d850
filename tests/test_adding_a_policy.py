"""The policy of docs/adding-a-compressor.md: its code is taken from the page and run, its commands too."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from test_docs import REPOSITORY, TIMEOUT_S, TINY, blocks, output, transcripts

PAGE = REPOSITORY / "docs" / "adding-a-compressor.md"  # the policy comes after the compressor
pytestmark = [pytest.mark.slow, pytest.mark.timeout(2 * TIMEOUT_S + 20)]


@pytest.fixture
def own_folder(tmp_path: Path) -> Path:
    """A user's folder with the page's files."""
    policy, check, half = blocks(PAGE, "python")[-3:]
    *_, overlay = blocks(PAGE, "yaml")
    (tmp_path / "my_conf" / "policy").mkdir(parents=True)
    (tmp_path / "backoff.py").write_text(policy, encoding="utf-8")
    (tmp_path / "check_backoff.py").write_text(check, encoding="utf-8")
    (tmp_path / "half.py").write_text(half, encoding="utf-8")
    (tmp_path / "my_conf" / "policy" / "backoff.yaml").write_text(overlay, encoding="utf-8")
    return tmp_path


def commands() -> list[str]:
    return [command.removeprefix("python ") for command, _ in transcripts(PAGE)[5:]]


def run_folder(printed: str) -> Path:
    """Which folder a command's last line names."""
    return Path(printed.splitlines()[-1].removeprefix("run folder: "))


def test_the_check_of_the_page_prints_what_it_says(own_folder: Path) -> None:
    command, printed = transcripts(PAGE)[5]
    assert output([command.removeprefix("python ")], own_folder) == printed


def test_the_policy_of_the_page_trains_by_class_name_and_by_overlay_as_one_run(
    own_folder: Path,
) -> None:
    first, second = (
        output([*command.split(), *TINY, "train.epochs=2"], own_folder)
        for command in commands()[1:3]
    )
    assert "already done" not in first
    assert "already done" in second
    assert run_folder(first) == run_folder(second)
    with (own_folder / run_folder(first) / "policy.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["epoch"], row["label"]) for row in rows] == [
        ("1", "density=0.01"),
        ("2", "density=0.01"),
    ]


def test_the_policy_that_looks_at_the_gradient_writes_each_decision_down(own_folder: Path) -> None:
    folder = own_folder / run_folder(output([*commands()[3].split(), *TINY], own_folder))
    lines = [json.loads(line) for line in (folder / "decisions.jsonl").read_text().splitlines()]
    assert lines
    for number, line in enumerate(lines, 1):
        assert line["decision"] == number
        assert line["decision/rung"] in (1, 2)
        assert 0 <= line["decision/gain"] <= 1
        assert (line["decision/gain"] >= 0.5) or line["decision/rung"] == 1
