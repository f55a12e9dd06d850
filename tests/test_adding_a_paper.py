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
    ("name", "says"),
    [
        ("numpy", "numpy is an installed package; give another name"),
        ("gravac", "gravac exists already; give another name"),
        ("Mine", "a Python name in lower case, got 'Mine'"),
        ("class", "a Python name in lower case, got 'class'"),
    ],
)
def test_a_name_that_no_paper_can_have_says_why(name: str, says: str) -> None:
    with pytest.raises(UserError, match=f"^new-paper: {says}$"):
        new_paper([name])


def test_a_paper_that_another_one_of_its_name_hides_is_refused(tmp_path: Path) -> None:
    (tmp_path / "gravac" / "conf" / "paper").mkdir(parents=True)
    found = run(sys.executable, "-m", "dgc_repro", "reproduce", "gravac/table2", cwd=tmp_path)
    assert found.returncode == 2, found.stderr
    (line,) = found.stderr.splitlines()
    assert "rename the folder" in line


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
