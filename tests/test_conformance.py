"""results/conformance: the methods against the recorded answers of their authors' code."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from dgc_repro.compressor import eden

REPOSITORY = Path(__file__).resolve().parent.parent
SCRIPT = REPOSITORY / "scripts" / "conformance.py"
sys.path.insert(0, str(SCRIPT.parent))
import conformance  # noqa: E402
from authors.case import CASES, World, difference  # noqa: E402

PUBLISHED = {line["row"]: line for line in conformance.table(conformance.RESULTS / "methods.csv")}


def red(row: str) -> bool:
    """Whether this side differs from the recorded answers."""
    old = PUBLISHED[row]
    case = CASES[row]
    found = conformance.row_of(case, conformance.recorded(case), old["commit"], old["commit_date"])
    return not found.agrees


@pytest.mark.parametrize("row", CASES)
def test_every_row_agrees_with_the_recorded_answers(row: str) -> None:
    assert not red(row)
    assert PUBLISHED[row]["agrees"] == "True"


def test_the_readme_has_the_number_of_methods() -> None:
    page = (conformance.RESULTS / "README.md").read_text(encoding="utf-8")
    ((methods, own),) = re.findall(r"for (\d+) methods: (\d+) against", page)
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    assert f"[{methods} of them](results/conformance/README.md)" in readme
    assert int(methods) >= 20
    assert f"{own} with the authors' own" in readme


def test_one_level_of_eden_turns_its_row_red() -> None:
    original = eden.levels
    levels = original(4, torch.device("cpu")).clone()
    levels[3] *= 1.001

    def perturbed(bits: int, device: torch.device) -> Tensor:
        return levels if bits == 4 else original(bits, device)

    with patch.object(eden, "levels", perturbed):
        assert red("eden_4")
        assert not red("eden_3")


def test_a_difference_is_of_the_largest_value_and_never_hides_a_nan() -> None:
    here, there = torch.tensor([1.0, 4.0]), torch.tensor([1.5, 4.0])
    assert difference([here], [there]) == 0.125
    assert difference([here], [here]) == 0
    assert difference([here], [here * torch.nan]) == float("inf")
    assert difference([here], [here, here]) == float("inf")


def test_workers_in_threads_gather_what_each_has() -> None:
    world = World(3)

    def job(rank: int) -> tuple[float, float]:
        total = torch.tensor([float(rank)])
        torch.distributed.all_reduce(total)
        first = torch.tensor([float(rank)])
        torch.distributed.broadcast(first, 0)
        return float(total), float(first)

    assert world.run(job) == [(3.0, 0.0)] * 3
    with pytest.raises(ZeroDivisionError):
        world.run(lambda rank: 1 // rank)


def test_the_page_follows_from_the_tables() -> None:
    rows = conformance.rows()
    counted = conformance.table(conformance.RESULTS / "bytes.csv")
    text = (conformance.RESULTS / "README.md").read_text(encoding="utf-8")
    published = [conformance.Row(**conformance.typed(line)) for line in PUBLISHED.values()]
    assert conformance.page(published, counted) == text
    assert [row.row for row in rows] == list(CASES)
    assert {line["row"] for line in counted} == set(conformance.COUNTED)
    assert all(line["equal"] == "True" for line in counted)
    assert not re.search(r"/(root|tmp|work|home)/", text)


def test_the_page_of_methods_links_each_row() -> None:
    text = (REPOSITORY / "docs" / "methods.md").read_text(encoding="utf-8")
    linked = set(re.findall(r"results/conformance/README\.md#(\w+)\)", text))
    assert linked == set(CASES)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_ranks_hand_over_what_their_ledgers_say() -> None:
    found = conformance.count_bytes()
    published = conformance.table(conformance.RESULTS / "bytes.csv")
    assert [{key: str(value) for key, value in line.items()} for line in found] == published


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["eden_4"], "give a checkout of github.com/amitport/EDEN"),
        (["eden_5", "."], "invalid choice: 'eden_5'"),
        (["eden_4", "tests"], "no git checkout of github.com/amitport/EDEN"),
        (["--checkouts", "tests"], "no clone of a known repository lies there"),
    ],
)
def test_a_mistake_is_one_line(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        conformance.main(arguments)
    assert ended.value.code == 2
    assert says in capsys.readouterr().err.splitlines()[-1]


def test_a_checkout_with_changes_is_refused(tmp_path: Path) -> None:
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    (tmp_path / "demo.py").write_text("one = 1\n")
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-qm", "one"]):
        subprocess.run([*git, *arguments], check=True)
    (tmp_path / "demo.py").write_text("one = 2\n")
    with pytest.raises(conformance.NotThere, match="has changes"):
        conformance.run(CASES["demo"], tmp_path, tmp_path)
