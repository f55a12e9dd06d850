"""The words of pages: what a template holds, and that no text is left behind."""

from __future__ import annotations

from pathlib import Path

import pytest

import dgc_repro.paper
from dgc_repro.paper.claims import Choice
from dgc_repro.paper.frame import lines
from dgc_repro.paper.page import SILENT, Section, Template, made

PAPERS = Path(dgc_repro.paper.__file__).parent
TEMPLATES = sorted(PAPERS.glob("*/*.md"))


def test_a_template_has_a_title_texts_and_choices(tmp_path: Path) -> None:
    path = tmp_path / "table9.md"
    path.write_text(
        "# Table {number}\n\n## Rows\n\nOver {n}\nseeds.\n\n"
        f"## {SILENT}\n\n| silent | chosen | config key |\n|---|---|---|\n| the rate | 0.1 | optimizer |\n"
    )
    assert Template.read(path).choices == (Choice("the rate", "0.1", "optimizer"),)
    own = Section("Notes", text="Own {words}.")
    page = made(
        str(path.with_suffix(".py")), "quick", [], lines([]), [Section("Rows"), own],
        said={"number": 9, "n": 3}, facts=(),
    )  # fmt: skip
    assert page.title == "Table 9"
    assert [section.text for section in page.sections] == ["Over 3\nseeds.", "Own {words}."]


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_text_of_a_template_has_its_section_in_the_module(path: Path) -> None:
    module = (
        path.with_name("shared.py") if path.stem == "training_runs" else path.with_suffix(".py")
    )
    code = module.read_text(encoding="utf-8").lower()
    for title in Template.read(path).texts:
        assert title.lower() in code
