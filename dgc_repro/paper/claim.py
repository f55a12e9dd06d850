"""The types a paper is written down in: sources, printed numbers, claims, contradictions.

A claim is a sentence of the paper and one or more checks. A check is about one quantity of a run
(``dgc_repro.report.quantities``) and two rows of the table: the difference ``greater - lesser``,
paired by seed, has to lie strictly between ``above`` and ``below``. The paper's printed difference,
where there is one, stands beside it with the tolerance we allow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Source:
    """Where something is printed: ``paper`` (authors, title) and ``where`` (table, section)."""

    paper: str
    where: str

    def __post_init__(self) -> None:
        for field in ("paper", "where"):
            if not getattr(self, field):
                raise ValueError(f"{field}: a name, got an empty one; say where this is printed")

    def __str__(self) -> str:
        return f"{self.paper}, {self.where}"


@dataclass(frozen=True)
class PublishedColumn:
    """A column of a printed table: ``id`` for the code, ``label`` and ``unit`` for the reader."""

    id: str
    label: str
    unit: str


@dataclass(frozen=True)
class PublishedRow:
    """A printed row. ``cells`` has one value a column; empty where the paper has no such row."""

    id: str
    label: str
    cells: tuple[float, ...] = ()


@dataclass(frozen=True)
class PublishedTable:
    """A printed table with its source; ``value`` is how everything else reads a number of it."""

    title: str
    source: Source
    columns: tuple[PublishedColumn, ...]
    rows: tuple[PublishedRow, ...]

    def __post_init__(self) -> None:
        for row in self.rows:
            if row.cells and len(row.cells) != len(self.columns):
                raise ValueError(
                    f"rows: {len(self.columns)} cells a row, got {len(row.cells)} in "
                    f"{row.id!r}; compare with the printed table"
                )

    def value(self, row: str, column: str) -> float | None:
        """The printed number, or None where the paper has no such row; KeyError for a typo."""
        position = [c.id for c in self.columns].index(column)
        for candidate in self.rows:
            if candidate.id == row:
                return candidate.cells[position] if candidate.cells else None
        raise KeyError(row)

    def printed(self, row: str, column: str) -> float:
        """The printed number; KeyError where nothing is printed."""
        value = self.value(row, column)
        if value is None:
            raise KeyError(f"{row}.{column} is not printed in {self.title}")
        return value


@dataclass(frozen=True)
class Check:
    """The paired difference ``greater - lesser`` lies strictly between ``above`` and ``below``.

    quantity   name in ``dgc_repro.report.quantities.QUANTITIES``
    greater    row id whose value the claim says is larger; ``lesser`` is the other row
    relative   the difference is divided by the value of ``greater`` (0.25 = a quarter less)
    ratio      the quotient ``greater / lesser`` is judged, not the difference (1 = equal)
    magnitude  the paper's printed difference in the same unit, None for a direction only
    tolerance  how far from ``magnitude`` the measured mean may lie
    """

    quantity: str
    greater: str
    lesser: str
    above: float = 0.0
    below: float = math.inf
    relative: bool = False
    ratio: bool = False
    magnitude: float | None = None
    tolerance: float | None = None

    def __post_init__(self) -> None:
        if not self.above < self.below:
            raise ValueError(
                f"above: less than below ({self.below}), got {self.above}; swap the two"
            )
        if self.relative and self.ratio:
            raise ValueError("ratio: not together with relative; a quotient has no unit already")
        if (self.magnitude is None) != (self.tolerance is None):
            raise ValueError(
                f"tolerance: given exactly when magnitude is, got {self.tolerance} with "
                f"magnitude {self.magnitude}; a magnitude without a tolerance judges nothing"
            )


@dataclass(frozen=True)
class Contradiction:
    """Printed numbers that cannot all hold. ``arithmetic`` is computed from them, never typed."""

    text: str
    arithmetic: str


@dataclass(frozen=True)
class Claim:
    """One sentence to judge. ``reading`` says how it was made measurable and why so.

    With ``cannot_follow`` set, the claim's own numbers contradict each other: it gets that verdict
    and the measured differences are printed beside it without a judgement. With ``needs_setting``,
    only runs whose config has that key meet the claim's premise; without one it is not run.
    ``assumed``: an input of the study that nobody has measured and that the verdict rests on; it is then
    *indicative* at most and names it. ``by_construction``: both sides are formulas, so that only a defect
    could make it fail; it then never counts as agreement. ``premises``: what must be so of the same runs
    for the claim to be tested at all; where one does not hold the verdict is *not tested*.
    """

    id: str
    text: str
    source: Source
    checks: tuple[Check, ...]
    reading: str
    cannot_follow: Contradiction | None = None
    needs_setting: str | None = None
    assumed: str = ""
    by_construction: bool = False
    premises: tuple[Check, ...] = ()

    def __post_init__(self) -> None:
        if not self.checks:
            raise ValueError("checks: at least one, got none; a claim without one is not judged")
        if self.assumed and self.by_construction:
            raise ValueError(
                f"assumed: nothing of what holds by construction, got {self.assumed!r}; set one of both"
            )


@dataclass(frozen=True)
class SilentChoice:
    """What the paper leaves out, what we put there, and the config key that holds it."""

    silent: str
    chosen: str
    key: str
