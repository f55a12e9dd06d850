"""docs/adding-a-paper.md: its code is the template, and its commands make a page."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from shell import run
from test_docs import REPOSITORY, blocks, output, transcripts

from dgc_repro.errors import UserError
from dgc_repro.launch.new_paper import files, new_paper

PAGE = REPOSITORY / "docs" / "adding-a-paper.md"
RUNS = "conf/paper/mypaper.yaml"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(420)]


def test_the_code_on_the_page_is_the_template() -> None:
    made = files("mypaper", "table1")
    assert len(made) == 3
    shown = [*blocks(PAGE, "python"), *blocks(PAGE, "yaml")]
    assert sorted(shown) == sorted(made.values())
    text = PAGE.read_text(encoding="utf-8")
    assert [name for name in made if f"`mypaper/{name}`" not in text] == []


def test_the_commands_of_the_page_make_a_page(tmp_path: Path) -> None:
    new, _, _, tiny = _commands()
    written = output(new.split(), tmp_path).splitlines()
    assert written[0] == "paper mypaper, with its table or figure table1:"
    assert written[1:-1] == [f"mypaper/{name}" for name in files("mypaper", "table1")]
    (tmp_path / "conf" / "paper").mkdir(parents=True)
    (tmp_path / "conf" / "paper" / "theirs.yaml").write_text(
        "artifact: {theirs/fig9: {sweeps: []}}\n"
    )
    listed = output([*new.split()[:2], "reproduce", "--help", "--config-dir", "conf"], tmp_path)
    for name in (
        "dynamic/table1",
        "mypaper/table1",
        "theirs/fig9",
        "usage: python -m dgc_repro reproduce <artifact>",
    ):
        assert name in listed
    printed = output(tiny.split(), tmp_path)
    assert "Table 1 of mypaper (example numbers: replace them) (reduced scale: custom)" in printed
    folder = tmp_path / "reproduced" / "mypaper" / "custom" / "table1"
    page = (folder / "table.md").read_text(encoding="utf-8")
    for part in ("top-k 1 %", "92.4", "Top-k sends at least ten times less.", "indicative (+)"):
        assert part in page
    assert (folder / "curve.png").is_file()


def test_a_paper_names_its_table_or_figure() -> None:
    made = files("mypaper", "fig3")
    assert {"fig3.py", "conf/paper/mypaper.yaml"} < set(made)
    assert '"Figure 3",' in made["fig3.py"]
    assert "artifact: fig3," in made["conf/paper/mypaper.yaml"]
    assert '"""speedup of ' in files("mypaper", "speedup")["speedup.py"]


@pytest.mark.parametrize(
    ("name", "why"), [("numpy", "is an installed package"), ("gravac", "exists already")]
)
def test_a_name_that_is_taken_says_by_what(name: str, why: str) -> None:
    with pytest.raises(UserError, match=f"^new-paper: {name} {why}; give another name"):
        new_paper([name])


@pytest.mark.parametrize(
    ("file", "old", "new", "says"),
    [
        (RUNS, "sweeps:", "sweep:", "artifact.mypaper/table1.sweep: no such key; did you mean"),
        (RUNS, "sweeps:\n", "optional_runs:\n", "artifact.mypaper/table1: it has no runs"),
        (RUNS, "artifact: table1, row: topk", "artefact: table1, row: topk", "experiment: mypaper/table1"),
        ("table1.py", "margin=1.0", 'margin="1.0"', "mypaper.table1: margin: a number, got '1.0'"),
        ("table1.py", "above=10.0", "abov=10.0", "mypaper.table1: "),
    ],
)  # fmt: skip
def test_a_mistake_in_a_paper_is_one_line_before_anything_is_trained(
    file: str, old: str, new: str, says: str, tmp_path: Path
) -> None:
    for name, text in files("mypaper", "table1").items():
        path = tmp_path / "mypaper" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace(old, new) if name == file else text, encoding="utf-8")
    assert refusal("mypaper/table1", tmp_path).startswith(f"error: {says}")
    assert not (tmp_path / "runs").exists()


def test_a_paper_that_another_one_of_its_name_hides_is_refused(tmp_path: Path) -> None:
    (tmp_path / "gravac" / "conf" / "paper").mkdir(parents=True)
    assert "rename the folder" in refusal("gravac/table2", tmp_path)


def refusal(name: str, folder: Path) -> str:
    """The one line of a reproduction that is refused."""
    found = run(sys.executable, "-m", "dgc_repro", "reproduce", name, cwd=folder)
    assert found.returncode == 2, found.stderr
    (line,) = found.stderr.splitlines()
    return line


def test_the_page_lists_every_name_of_an_epochs_record() -> None:
    recorded = set()
    for path in (REPOSITORY / "results").glob("*/*/epochs.parquet"):
        recorded |= set(pq.read_schema(path).names) - {"run"}
    section = PAGE.read_text(encoding="utf-8").partition("| name |")[2].partition("\n## ")[0]
    named = re.findall(r"`(epoch|step|lr|\w+/\w+)`", section)
    of_a_lab = {name for name in named if name.startswith("net/")}  # of which no run is published
    assert set(named) - of_a_lab == recorded


def _commands() -> list[str]:
    """Each line of a block with a prompt is a command."""
    lines = [line for command, more in transcripts(PAGE) for line in [command, *more.splitlines()]]
    return [line.removeprefix("$ ").removeprefix("python ") for line in lines]
