"""Figures can be shown in a talk: two lines above the axes, letters of 9 points, names that people say, and
nothing cut off. The page has the rest as a caption."""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text
from published_results import each_page
from talk import ROW_ID, require_fit_for_a_talk

from dgc_repro.paper import panels, plot
from dgc_repro.paper.page import PAGE_FILE, Drawing, Page, markdown

IMAGE = re.compile(r"^!\[(.*)\]\((.*)\.png\)\n\n(.*)$", re.MULTILINE)
NOT_OF_ROWS = ("Claims", "Where the paper is silent")
"""Sections whose first column is no row: ids of claims, config keys."""


@each_page
def test_each_figure_of_a_published_page_has_words_and_a_caption_under_it(folder: Path) -> None:
    text = (folder / PAGE_FILE).read_text("utf-8")
    found = IMAGE.findall(text)
    assert {name for _, name, _ in found} == {path.stem for path in folder.glob("*.png")}
    for words, name, caption in found:
        assert words != name
        assert re.fullmatch(r"\*[A-Z][^*]*\.\*", caption), caption
        assert "educed scale: " in caption or "aper scale" in caption


@each_page
def test_no_table_of_a_published_page_calls_a_row_by_its_id(folder: Path) -> None:
    text = (folder / PAGE_FILE).read_text("utf-8")
    sections = [part for part in text.split("\n## ") if not part.startswith(NOT_OF_ROWS)]
    first = [line.split("|")[1] for part in sections for line in re.findall(r"^\|.*", part, re.M)]
    others = {"char_lstm"}  # what `recipe=` takes
    assert [cell for cell in first if ROW_ID.search(cell) and cell.strip() not in others] == []


def a_figure(title: str, facts: list[str], labels: list[str], legend: int = 4) -> Figure:
    drawn = [panels.lines([([1, 2], [1, 2])], label) for label in labels]
    return plot.figure(title, facts, [panels.panel("", *drawn, x="bytes")], legend=legend)


def test_facts_that_do_not_fit_their_line_are_left_out_from_the_end() -> None:
    facts = ["reduced scale: small", "n = 3", 60 * "data ", "4 workers"]
    assert a_figure("A figure", facts, ["a"]).get_suptitle() == (
        "A figure\nreduced scale: small; n = 3"
    )
    assert a_figure("A figure", ["n = 3"], ["a"]).get_suptitle() == "A figure\nn = 3"
    assert a_figure("A figure", [], ["a"]).get_suptitle() == "A figure"


def test_a_title_of_any_length_is_one_line_inside_the_canvas() -> None:
    figure = a_figure(15 * "words of a $title$ ", ["n = 3"], ["a"])
    title, facts = figure.get_suptitle().splitlines()
    assert title.endswith(" ...")
    assert facts == "n = 3"
    figure.draw_without_rendering()
    (drawn,) = [text for text in figure.findobj(Text) if "words" in text.get_text()]
    assert drawn.get_window_extent().x1 <= figure.bbox.x1


@pytest.mark.parametrize(
    ("name", "count"),
    [*((("row " * n), 5) for n in (1, 10, 17, 100)), ("x", 20), ("W" * 300, 2), ("long" * 70, 2)],
    ids=["short", "words", "more words", "many words", "twenty", "wide letters", "a long word"],
)
def test_a_legend_stays_inside_the_canvas_whatever_its_names(name: str, count: int) -> None:
    figure = a_figure("A figure", ["n = 3"], [f"{name}{place}" for place in range(count)])
    require_fit_for_a_talk(figure)
    assert figure.axes[0].bbox.height > 50
    assert len(figure.legends[0].get_texts()) == count


def test_a_caption_of_a_strangers_record_is_plain_text() -> None:
    said = "A * star, a [link](x) and\na line."
    page = Page("A page", "quick", [], [], [], [], None, figures={  # type: ignore[arg-type]
        "one": Drawing("A <b>title</b>", said, lambda: a_figure("t", [], ["a"]))
    })  # fmt: skip
    (words, name, caption) = IMAGE.findall(markdown(page))[0]
    assert (words, name) == ("A &#60;b&#62;title&#60;/b&#62;", "one")
    assert caption == "*A &#42; star, a &#91;link&#93;(x) and a line.*"


@pytest.mark.skipif(
    np.finfo(np.longdouble).eps == np.finfo(float).eps, reason="no precision beyond float64 here"
)
def test_a_logarithmic_axis_does_not_depend_on_the_processor() -> None:
    """Its logarithms are those of the real numbers, rounded once (or, rarely, twice)."""
    values = np.exp(np.random.default_rng(0).uniform(-5, 15, 2000))
    _, draw = panels.panel("", lambda axes: axes.plot(values, values), log="x")
    draw(axes := Figure().subplots())
    drawn = axes.xaxis.get_transform().transform(values)
    rounded = [float(Decimal(float(value)).log10()) for value in values]
    assert sum(drawn != rounded) <= 4
    assert sum(np.abs(drawn - rounded) > np.spacing(np.abs(rounded))) == 0
