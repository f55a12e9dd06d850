"""What a paper prints: numbers with a source, and claims that runs can confirm or contradict.

A claim is one sentence and one or more checks. A check names a quantity and the range in which its value
must lie: the value of one row, or the difference or the ratio of two rows, paired by seed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, Final, Literal

PRINTED: Final = "printed"
OURS: Final = "ours"


@dataclass(frozen=True)
class Printed:
    """A printed table. ``columns``: names and units; ``rows``: by row id, one number a column (NaN where
    the paper prints none, or "failed"). ``where``: table or section."""

    where: str
    columns: Mapping[str, str]
    rows: Mapping[str, tuple[float, ...]]

    def __post_init__(self) -> None:
        for row, cells in self.rows.items():
            if len(cells) != len(self.columns):
                named = ", ".join(self.columns)
                raise ValueError(
                    f"rows: {row!r} has {len(cells)} numbers, of the columns {named} ({len(self.columns)})"
                )

    def __call__(self, row: str, column: str) -> float:
        """The printed number, NaN where there is no such row. Raises KeyError for an unknown column."""
        place = list(self.columns).index(column) if column in self.columns else None
        if place is None:
            raise KeyError(f"{column}: not a column of {self.where}")
        return self.rows[row][place] if row in self.rows else math.nan

    @property
    def numbers(self) -> dict[tuple[str, str], float]:
        """All printed numbers by row and column."""
        return {(row, column): self(row, column) for row in self.rows for column in self.columns}


def printed_table(where: str, columns: str, rows: str, groups: Iterable[str] = ()) -> Printed:
    """A printed table written as text.

    columns  names, separated by commas, each with its unit in brackets: "test accuracy [%], speedup"
    rows     a line for each row: its id and one number a column; a word in place of a number, such as
             "failed" or "-", is NaN
    groups   where several tables stand side by side, such as one for each model: a line has the columns of
             all groups, and makes a row ``<group>.<id>`` for each
    """
    named = [column.strip().removesuffix("]").partition(" [") for column in columns.split(",")]
    units, found = {name: unit for name, _, unit in named}, {}
    for line in (text.split() for text in rows.strip().splitlines()):
        row, *cells = line
        numbers = [_number(cell, line=" ".join(line)) for cell in cells]
        for place, group in enumerate(list(groups) or [""]):
            own = numbers[place * len(units) :][: len(units) if groups else None]
            found[f"{group}.{row}" if group else row] = tuple(own)
    return Printed(where, units, found)


def _number(cell: str, line: str) -> float:
    """A printed number; NaN for a word without a digit. Raises ValueError for a misspelt number."""
    try:
        return float(cell) if any(letter.isdigit() for letter in cell) else math.nan
    except ValueError as error:
        raise ValueError(
            f"rows: {cell!r} in {line!r} is no number; a line is a row's id and one number a column, "
            "separated by spaces"
        ) from error


@dataclass(frozen=True)
class Check:
    """``greater - lesser``, or ``greater / lesser``, lies strictly between ``above`` and ``below``.

    quantity   name of a quantity in the frame (frame.py)
    greater    row whose value the claim says is larger; ``lesser``: the other row. Without ``lesser`` the
               value of ``greater`` itself is judged
    setting    of the frame's lines, where a row has several
    ratio      judge the ratio of the rows (1 = equal) and not their difference
    printed    the number the paper prints for it; shown beside the measured one
    """

    quantity: str
    greater: str
    lesser: str | None = None
    above: float = 0.0
    below: float = math.inf
    setting: str = ""
    ratio: bool = False
    printed: float = math.nan

    def __post_init__(self) -> None:
        for name in ("above", "below", "printed"):
            _require_number(name, getattr(self, name))
        if not self.above < self.below:
            raise ValueError(f"above: less than below ({self.below}), got {self.above}")
        if self.ratio and self.lesser is None:
            raise ValueError("ratio: of two rows; give lesser")

    @property
    def rows(self) -> tuple[str, ...]:
        return (self.greater,) if self.lesser is None else (self.greater, self.lesser)

    @property
    def kind(self) -> Literal["value", "difference", "ratio"]:
        """What is judged: of one row, or of two."""
        return "ratio" if self.ratio else "value" if self.lesser is None else "difference"

    @property
    def least(self) -> float:
        """The smallest value that the quantity may have."""
        return 0.0 if self.ratio else -math.inf

    @property
    def group(self) -> tuple[str, str, str, str]:
        """Quantity, setting, kind and model: comparisons that are alike in these share a prior."""
        model = self.greater.partition(".")[0] if "." in self.greater else ""
        return self.quantity, self.setting, self.kind, model


def _require_number(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ValueError(f"{name}: a number, got {value!r}")


def near(check: Check, printed: float, margin: float) -> Check:
    """The same comparison as a magnitude: within ``margin`` of the ``printed`` number, either way. For a
    ratio the margin is a factor: 2 means from half to twice."""
    _require_number("printed", printed)
    _require_number("margin", margin)
    least = 1 if check.ratio else 0
    if not margin > least:
        what = "a factor above 1 for a ratio" if check.ratio else "a number above 0"
        raise ValueError(f"margin: {what}, got {margin} (printed {printed})")
    if check.ratio:
        return within(check, printed, margin)
    return replace(check, above=printed - margin, below=printed + margin, printed=printed)


def within(check: Check, printed: float, factor: float) -> Check:
    """The same check as a magnitude: within a ``factor`` of the ``printed`` number, either way."""
    return replace(check, above=printed / factor, below=printed * factor, printed=printed)


def claim(
    name: str, text: str, *checks: Check, where: str, reading: str = "", ours: bool = False, **more: Any
) -> Claim:  # fmt: skip
    """A claim of these checks. ``ours``: this project chose the range; so it is of every claim that no paper
    makes (`EXPECTED`). ``more``: other fields of `Claim`."""
    is_ours = ours or where == EXPECTED
    return Claim(name, text, where, checks, reading, margin=OURS if is_ours else PRINTED, **more)


EXPECTED = "this project's expectation"
"""Where a claim stands that no paper makes. It is judged on any data set."""


@dataclass(frozen=True)
class Claim:
    """One sentence to judge.

    reading          how the sentence was made measurable
    premises         must hold of the same runs; else the claim is *not tested*
    margin           who chose the range of the checks: ``printed`` (a direction or a printed number) or
                     ``ours`` (a tolerance, a level or a measure that this project chose, or a claim that no
                     paper makes)
    cannot_follow    arithmetic that shows that the printed numbers contradict each other
    assumed          an input of the result that nobody has measured: "agrees, given ..." it
    by_construction  two formulas are compared, so that only a defect could make it fail
    counted          numbers are compared that are counted, such as bytes, so that seeds may well agree
    """

    id: str
    text: str
    where: str
    checks: tuple[Check, ...]
    reading: str = ""
    premises: tuple[Check, ...] = ()
    margin: Literal["printed", "ours"] = "printed"
    cannot_follow: str = ""
    assumed: str = ""
    by_construction: bool = False
    counted: bool = False

    def __post_init__(self) -> None:
        if not self.checks:
            raise ValueError(f"checks: claim {self.id} has none; without one it cannot be judged")


@dataclass(frozen=True)
class Note:
    """Printed numbers that contradict each other: ``text``, and the ``arithmetic`` made of the numbers."""

    text: str
    arithmetic: str = ""


@dataclass(frozen=True)
class Choice:
    """Something the paper leaves open, what this project chose, and the config ``key`` that holds it."""

    silent: str
    chosen: str
    key: str


@dataclass(frozen=True)
class Paper:
    """A paper: ``title`` as cited, ``link``, ``data``: its data set, if it has one."""

    title: str
    link: str = ""
    data: str = ""

    @property
    def cited(self) -> str:
        """The title with its link, in markdown."""
        return f"[{self.title}]({self.link})" if self.link else self.title
