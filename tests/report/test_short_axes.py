"""Logarithmic axes of small panels: their labels are plain numbers and do not run into each other."""

from __future__ import annotations

import itertools

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from dgc_repro.report.style import house_style, plain_log


def labels(low: float, high: float, *, plain: bool) -> tuple[list[str], bool]:
    """What stands under a panel of 1.8 inches, and whether two of it overlap."""
    with house_style():
        figure = Figure(figsize=(1.8, 1.5), layout="constrained")
        canvas = FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        axes.barh([0, 1], [low, high])
        axes.set_xscale("log")
        if plain:
            plain_log(axes.xaxis)
        axes.set_xlim(low, high)
        canvas.draw()
        shown = [
            text
            for text in (*axes.get_xticklabels(), *axes.get_xticklabels(minor=True))
            if text.get_text() and low <= text.get_position()[0] <= high
        ]
        boxes = [text.get_window_extent() for text in shown]
        overlap = any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))
        return [text.get_text() for text in shown], overlap


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(0.25, 2.0, ["0.5", "1", "2"]), (0.8, 9.0, ["1", "2", "5"]), (3.0, 15.0, ["5", "10"])],
)
def test_labels_are_plain_numbers_that_keep_apart(
    low: float, high: float, expected: list[str]
) -> None:
    assert labels(low, high, plain=True) == (expected, False)


def test_matplotlibs_own_labels_of_such_a_panel_overlap() -> None:
    assert labels(0.25, 2.0, plain=False)[1]
