"""A page from data and words alone: misspelt names are errors before anything is trained; departures from the
scale are listed; no text of a template is left behind."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from synthetic import write_run

import dgc_repro.paper
from dgc_repro.errors import UserError
from dgc_repro.names import conf_dir
from dgc_repro.paper import facts, panels, plot
from dgc_repro.paper.artifact import ACCURACY, LESS, Artifact, Rows
from dgc_repro.paper.claims import OURS, Check, Choice, Claim, Note, Printed, printed_table
from dgc_repro.paper.frame import Column, Relative, lines
from dgc_repro.paper.page import CONTRADICT, FOUND, LIMITS, SILENT, Template
from dgc_repro.paper.records import Run, read_run

ROWS = {"none": "no compression", "static8": "8 bits"}
THERE_ARE = f"there are: test accuracy, floats sent, payload, wire, {LESS}"


def page_with(
    *checks: Check, premises: tuple[Check, ...] = (), printed: Printed | None = None
) -> Artifact:
    claims = [Claim("2", "It holds.", "section 3", checks, premises=premises)] if checks else []
    quantities = {"test accuracy": ACCURACY}
    return Artifact("A page", rows=ROWS, quantities=quantities, claims=claims, printed=printed)


def test_a_misspelt_name_in_a_claim_or_a_printed_table_is_an_error() -> None:
    fine = Check("payload", "none", "static8")
    assert page_with(fine, premises=(Check(LESS, "static8"),)).rows == ROWS
    with pytest.raises(UserError, match="^claim 2: no quantity 'test acc'; " + THERE_ARE):
        page_with(Check("test acc", "none", "static8"))
    with pytest.raises(UserError, match="^claim 2: no quantity 'test acc'"):
        page_with(fine, premises=(Check("test acc", "none"),))
    with pytest.raises(UserError, match="^claim 2: no row 'static'; there are: none, static8"):
        page_with(Check("payload", "none", "static"))
    with pytest.raises(UserError, match="^Table 1: no quantity 'top-1'; there are: test accuracy"):
        page_with(printed=Printed("Table 1", {"top-1": "%"}, {"none": (90.0,)}))
    with pytest.raises(UserError, match="^Table 1: no row in ROWS 'dense'; there are: none"):
        page_with(printed=Printed("Table 1", {"test accuracy": "%"}, {"dense": (90.0,)}))
    claims = page_with(fine).claims
    with pytest.raises(UserError, match="^claim 2: two claims have this id; give each its own"):
        Artifact("A page", rows=ROWS, claims=[*claims, *claims])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"quantities": {"share": Relative("paylod", "none")}},
            "quantity 'share': no quantity 'paylod'; there are: share, floats sent, payload",
        ),
        (
            {"quantities": {"share": Relative("payload", "non")}},
            "quantity 'share': no row 'non'; there are: none, static8",
        ),
        ({"tables": {"Sent": ["paylod"]}}, "table 'Sent': no quantity 'paylod'; there are: "),
        (
            {"tables": {"Sent": Rows(ROWS, [Column("bytes", "paylod")])}},
            "table 'Sent': no quantity 'paylod'; there are: ",
        ),
    ],
)
def test_a_misspelt_name_that_would_leave_a_column_empty_is_an_error(
    given: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=f"^{message}"):
        Artifact("A page", rows=ROWS, **given)
    assert Artifact("A page", rows=ROWS, tables={"Sent": pd.DataFrame({"any": [1]})}).tables


def test_a_printed_column_may_be_what_is_sent_in_its_own_unit() -> None:
    rows = {"none": (400.0,), "static8": (100.0,)}
    printed = Printed("Table 1", {"payload": "bytes"}, rows)
    assert page_with(printed=printed).printed == printed
    with pytest.raises(UserError, match="^Table 1: payload is measured in bytes, got .MB.; name"):
        page_with(printed=Printed("Table 1", {"payload": "MB"}, rows))


def test_a_trained_row_that_the_page_lacks_is_an_error() -> None:
    page_with().require_rows(["static8"])
    with pytest.raises(
        UserError, match=r"^experiment.row: no row in ROWS 'static'; there are: none"
    ):
        page_with().require_rows(["none", "static"])


def quick_run(root: Path, row: str = "none", **departs: dict[str, Any]) -> Run:
    """A record whose settings are those of the scale quick, but for those given."""
    conf = {
        name: yaml.safe_load((conf_dir() / f"{name}.yaml").read_text("utf-8"))
        for name in (
            *("config", "scale/quick", "dataset/digits", "model/resnet18"),
            *("optimizer/sgd", "schedule/cosine"),
        )
    }
    sizes = conf["scale/quick"]
    settings = {
        "dataset": conf["dataset/digits"] | sizes["dataset"] | {"root": "/somewhere"},
        "model": conf["model/resnet18"] | sizes["model"],
        "optimizer": conf["optimizer/sgd"],
        "schedule": conf["schedule/cosine"],
        "train": conf["config"]["train"] | sizes["train"],
    }
    for group, keys in departs.items():
        settings[group] = keys if "_target_" in keys else settings[group] | keys
    return read_run(write_run(root, row, 0, settings=settings))


def test_a_page_lists_what_departs_from_its_scale(tmp_path: Path) -> None:
    names = [name for name, _ in page_with()([quick_run(tmp_path / "usual")], "quick").facts]
    assert not [name for name in names if name.startswith("differs")]
    constant = {"_target_": "dgc_repro.train.schedule.Constant", "warmup_epochs": 0.0}
    other = quick_run(
        tmp_path / "other", train={"epochs": 15}, optimizer={"lr": 0.05}, schedule=constant
    )
    facts = dict(page_with()([other], "quick").facts)
    assert facts["differs from scale quick"] == (
        "optimizer.lr=0.05 (0.1), schedule=Constant(warmup_epochs=0) (cosine), train.epochs=15 (10)"
    )
    custom = dict(page_with()([replace(other)], "custom").facts)
    assert "model.width=8 (64)" in custom["differs from scale none"]
    assert "train.epochs=15 (to give)" in custom["differs from scale none"]


def test_the_head_of_a_page_names_every_model_of_a_row(tmp_path: Path) -> None:
    runs = [quick_run(tmp_path / str(width), model={"width": width}) for width in (8, 16)]
    head = dict(facts.facts(runs, "quick"))["model"]
    assert "width 8" in head
    assert "width 16" in head


@pytest.mark.parametrize("log", ["", "x"])
def test_ticks_are_plain_numbers_without_powers_of_ten(log: str) -> None:
    drawn = panels.lines([([2e4, 4e9], [1, 2])])
    drawing = plot.figure("A figure", ["made up"], [panels.panel("", drawn, x="bytes", log=log)])
    drawing.draw_without_rendering()
    axis = drawing.axes[0].xaxis
    texts = [label.get_text() for label in axis.get_ticklabels()]
    assert "1 G" in texts
    assert not [text for text in texts if "e" in text]
    assert axis.get_offset_text().get_text() == ""


def test_times_less_are_the_first_rows_bytes_over_the_rows(tmp_path: Path) -> None:
    """static8 sends a quarter of the bytes of the first row: 4 times less, not 0.25."""
    runs = [quick_run(tmp_path, row) for row in ROWS]
    page = page_with()(runs, "quick")
    (table,) = [section.table for section in page.sections if section.table is not None]
    rows = table.set_index("method")
    assert list(rows["times less"]) == ["1.00", "4.00"]


# The words of pages


PAPERS = Path(dgc_repro.paper.__file__).parent
TEMPLATES = sorted(PAPERS.glob("*/*.md"))


def test_a_template_has_a_title_texts_and_choices(tmp_path: Path) -> None:
    path = tmp_path / "table9.md"
    path.write_text(
        "# Table {number}\n\n## Rows\n\nOver {n}\nseeds.\n\n"
        f"## {SILENT}\n\n| silent | chosen | config key |\n|---|---|---|\n| the rate | 0.1 | optimizer |\n"
    )
    assert Template.read(path).choices == (Choice("the rate", "0.1", "optimizer"),)
    own = Artifact(
        str(path.with_suffix(".py")), rows={}, numbers=lambda _: lines([]), tables={"Rows": ()},
        said=lambda _: {"number": 9, "n": 3}, alike=(),
    )  # fmt: skip
    page = own([], "quick")
    assert page.title == "Table 9"
    assert [section.text for section in page.sections] == ["Over 3\nseeds."]


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
