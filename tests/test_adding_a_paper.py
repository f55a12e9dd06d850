"""docs/adding-a-paper.md: its code is the template, and its commands make a page."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_docs import REPOSITORY, blocks, output, transcripts

from dgc_repro.launch.new_paper import NAME, TEMPLATE

PAGE = REPOSITORY / "docs" / "adding-a-paper.md"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(420)]


def template() -> dict[str, str]:
    """The files of the template by name, as ``new-paper mypaper`` writes them."""
    return {
        str(path.relative_to(TEMPLATE)).replace(NAME, "mypaper"): path.read_text(
            encoding="utf-8"
        ).replace(NAME, "mypaper")
        for path in sorted(TEMPLATE.rglob("*"))
        if path.suffix in (".py", ".yaml")
    }


def test_the_code_on_the_page_is_the_template() -> None:
    files = template()
    assert len(files) == 5
    shown = [*blocks(PAGE, "python"), *blocks(PAGE, "yaml")]
    assert sorted(shown) == sorted(files.values())
    text = PAGE.read_text(encoding="utf-8")
    assert [name for name in files if f"`mypaper/{name}`" not in text] == []


def test_the_commands_of_the_page_make_a_page(tmp_path: Path) -> None:
    new, _, tiny = _commands()
    written = output(new.split(), tmp_path).splitlines()
    assert written[:-1] == [f"mypaper/{name}" for name in template()]
    printed = output(tiny.split(), tmp_path)
    assert "Table 1 of mypaper (example numbers: replace them) (reduced scale: custom)" in printed
    folder = tmp_path / "reproduced" / "mypaper" / "custom" / "table1"
    page = (folder / "table.md").read_text(encoding="utf-8")
    for part in ("top-k 1 %", "92.4", "Top-k sends at least ten times less.", "indicative (+)"):
        assert part in page
    assert (folder / "curve.png").is_file()


def _commands() -> list[str]:
    """Each line of a block with a prompt is a command."""
    lines = [line for command, more in transcripts(PAGE) for line in [command, *more.splitlines()]]
    return [line.removeprefix("$ ").removeprefix("python ") for line in lines]
