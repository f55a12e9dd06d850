"""The words of pages: what a template holds, and that no text is left behind."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

import dgc_repro.paper
from dgc_repro.paper.claims import OURS, Check, Choice, Claim, Note, printed_table
from dgc_repro.paper.frame import lines
from dgc_repro.paper.page import CONTRADICT, FOUND, LIMITS, SILENT, Section, Template, made

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


def test_claims_and_notes_are_filled_in_with_what_the_module_says(tmp_path: Path) -> None:
    path = tmp_path / "table9.md"
    path.write_text(
        "# Table 9\n\n## Claims\n\n| claim | where | says | how it is read |\n|---|---|---|---|\n"
        "| faster | Table 9 | {model} is {times:g}x faster. | Seconds. |\n\n"
        f"## {CONTRADICT}\n\n| note | arithmetic |\n|---|---|\n| Odd. | 1 < 2 |\n"
    )
    words, check = Template.read(path), Check("seconds", "a", "b")
    found = words.claim(
        "faster", check, of="vgg", ours=True, premises=(check,), model="VGG", times=2.0
    )
    assert found == Claim(
        "vgg.faster", "VGG is 2x faster.", "Table 9", (check,), "Seconds.", (check,), OURS
    )
    assert words.notes == (Note("Odd.", "1 < 2"),)
    with pytest.raises(KeyError):
        words.claim("faster", check, model="VGG")


def test_a_printed_table_is_text() -> None:
    found = printed_table("Table 9", "accuracy [%], speed", "a 1 2 3 failed\nb 5 6 7 8", ("x", "y"))
    assert dict(found.columns) == {"accuracy": "%", "speed": ""}
    assert (found("x.a", "speed"), found("y.b", "accuracy")) == (2.0, 7.0)
    assert math.isnan(found("y.a", "speed"))
    with pytest.raises(ValueError, match="'b' has 1 numbers, of the columns accuracy, speed"):
        printed_table("Table 9", "accuracy [%], speed", "a 1 2\nb 3")
    with pytest.raises(ValueError, match="'92,4' in 'a 92,4' is no number"):
        printed_table("Table 9", "accuracy [%]", "a 92,4")


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_every_text_of_a_template_has_its_section_in_the_module(path: Path) -> None:
    code = path.with_suffix(".py").read_text(encoding="utf-8").lower()
    for title in Template.read(path).texts.keys() - {FOUND, LIMITS}:
        assert title.lower() in code
