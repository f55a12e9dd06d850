"""What a figure needs so that it can be shown in a talk."""

from __future__ import annotations

import itertools
import re

from matplotlib.figure import Figure
from matplotlib.text import Text

from dgc_repro.paper import plot

LEAST_POINTS = 9.0
ROW_ID = re.compile(r"[a-z0-9]_[A-Za-z0-9]|\b[a-z]\w*\.[a-z]")
"""Names of rows and of config keys: ``topk_0.01``, ``low.dense``."""


def texts(figure: Figure) -> list[Text]:
    """Every text that is drawn: not those of hidden axes and of ticks outside the view."""
    hidden: list[Text] = []
    for axes in figure.axes:
        hidden += [] if axes.axison else axes.findobj(Text)
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
                if not low <= tick.get_loc() <= high:
                    hidden += [tick.label1, tick.label2]
    return [
        text
        for text in figure.findobj(Text)
        if text.get_visible() and text.get_text().strip() and text not in hidden
    ]


def require_fit_for_a_talk(figure: Figure) -> None:
    with plot.style():
        figure.draw_without_rendering()
        heading = figure.get_suptitle().splitlines()
        assert len(heading) <= 2
        assert not any(line.endswith("...") for line in heading), heading
        drawn = [axes for axes in figure.axes if axes.axison]
        titles = [axes.get_title(loc="left") for axes in drawn]
        assert not any("\n" in title for title in titles)
        assert len(drawn) > 1 or titles == [""]
        canvas = figure.bbox.padded(1)
        for text in texts(figure):
            said, box = text.get_text(), text.get_window_extent()
            assert text.get_fontsize() >= LEAST_POINTS, said
            assert not ROW_ID.search(said), said
            assert canvas.contains(*box.min), said
            assert canvas.contains(*box.max), said
        shown = set(texts(figure))
        for axis in (axis for axes in drawn for axis in (axes.xaxis, axes.yaxis)):
            labels = [text for text in axis.get_ticklabels() if text in shown]
            level = [
                text.get_window_extent().padded(2) for text in labels if text.get_rotation() == 0
            ]
            assert not any(a.overlaps(b) for a, b in itertools.pairwise(level)), axis.get_label()
        for legend in figure.legends:
            box = legend.get_window_extent()
            assert canvas.contains(*box.min)
            assert canvas.contains(*box.max)
