"""EECE695D, Efficient ML Systems, distributed training part 2 (lecture): what its artifacts share.

The project has the text of the slides and no figure, so the claims are sentences and the tolerances are ours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd

from dgc_repro.paper import panels
from dgc_repro.paper.artifact import Shown, looks_of
from dgc_repro.paper.claims import Paper
from dgc_repro.paper.frame import Column, Values, number, pivot
from dgc_repro.paper.plot import Look

PAPER = Paper("EECE695D: Efficient ML Systems, Distributed Training part 2")


def exact(values: Values) -> str:
    """A number without noise: no standard deviation."""
    return number(values[:1], 3)


def first(values: Values) -> str:
    """A setting that all seeds share."""
    return f"{values[0]:g}" if values else "-"


def cross_entropy(shown: Shown) -> list[tuple[str, str]]:
    """The training cross-entropy that every network is trained to, as a fact of a page."""
    target = shown.runs[0].setting("stopping.target")
    return [("training cross-entropy to reach", f"{target:g} nats")]


def by_setting(frame: pd.DataFrame, quantity: str, row: str) -> dict[float, list[float]]:
    """A quantity of a row by its settings that are or end in numbers, such as 64 or "rank 4"."""
    own = frame[(frame["quantity"] == quantity) & (frame["row"] == row)]
    last = own["setting"].str.split().str[-1]
    return dict(own.groupby(pd.to_numeric(last, errors="coerce"))["value"].apply(list))


def by_number(
    shown: Shown, quantity: str, rows: Mapping[str, str | Look], title: str = "", **axes: Any
) -> panels.Panel:
    """A panel with a line for each row: mean and standard deviation by its settings that are numbers."""
    lines = [
        panels.series(by_setting(shown.frame, quantity, row), **look.line)
        for row, look in looks_of(rows).items()
    ]
    own = shown.frame[shown.frame["quantity"] == quantity]
    is_percent = set(own["unit"]) == {"%"}
    return panels.panel(title, *lines, y=f"{quantity} (%)" if is_percent else quantity, **axes)


def line_for_each(heading: str, columns: Sequence[Column]) -> Callable[[Shown], pd.DataFrame]:
    """A table with a line for each row of the page and each number among its settings."""

    def table(shown: Shown) -> pd.DataFrame:
        labels = {
            f"{row}, {place:g}": f"{look.label}, {place:g}"
            for row, look in shown.looks.items()
            for place in by_setting(shown.frame, columns[0].quantity, row)
        }
        turned = shown.frame.assign(row=shown.frame["row"] + ", " + shown.frame["setting"])
        return pivot(turned.assign(setting=""), labels, columns, heading)

    return table
